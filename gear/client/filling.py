"""Late columns as the user gives them, checked and turned into the bytes of whole trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.client.values import array_of, rows_of, storage_dtype
from gear.columns import flatten
from gear.errors import DataError
from gear.transport.messages import MAX_FRAME

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.schema import Column, Table


def encode(
    table: Table, count: int, columns: Mapping[str, Any], offsets: Any
) -> tuple[npt.NDArray[np.int64], dict[str, memoryview]]:
    """Rows per trajectory (int64[count]) and the bytes of each column, copies of what was given.

    Raises
    ------
    DataError
        Naming what does not fit.
    """
    if not isinstance(columns, Mapping) or not columns:
        raise DataError(f"fill: expected a dict of late column to rows, got {columns!r}")
    given = flatten(columns)
    late = {c.name: c for c in table.columns if c.late}
    unknown = sorted(map(str, given.keys() - late.keys()))
    if unknown:
        raise DataError(
            f"fill: {', '.join(map(repr, unknown))} are no late columns of table {table.name!r}; those are "
            f"{', '.join(late) or 'none'}"
        )
    lengths = None if offsets is None else _lengths(offsets, count)
    found: dict[str, np.ndarray] = {}
    for name, value in given.items():
        column = late[name]
        if column.per == "trajectory":
            found[name] = rows_of(column, value, count)
            continue
        rows, mine = _packed(column, value, lengths) if offsets is not None else _listed(column, value, count)
        if lengths is not None and (mine != lengths).any():
            at = int(np.argmax(mine != lengths))
            raise DataError(f"fill: column {name!r} has {mine[at]} rows for ids[{at}], other columns {lengths[at]}")
        lengths, found[name] = mine, rows
    parts = {name: memoryview(rows.tobytes()) for name, rows in found.items()}
    for name, part in parts.items():
        if len(part) > MAX_FRAME:
            raise DataError(
                f"fill: column {name!r} has {len(part)} bytes, at most {MAX_FRAME} at once; fill fewer trajectories"
            )
    return np.zeros(count, np.int64) if lengths is None else lengths, parts


def _lengths(offsets: Any, count: int) -> npt.NDArray[np.int64]:
    bounds = np.asarray(offsets)
    if bounds.ndim != 1 or len(bounds) != count + 1 or bounds.dtype.kind not in "iu":
        raise DataError(f"offsets: expected int64[{count + 1}], got {bounds.dtype}{list(bounds.shape)}")
    lengths = np.diff(bounds.astype(np.int64)).astype(np.int64)
    if bounds[0] != 0 or (lengths < 0).any():
        raise DataError("offsets: expected numbers that rise from 0")
    return lengths


def _packed(column: Column, value: Any, lengths: Any) -> tuple[np.ndarray, npt.NDArray[np.int64]]:
    rows = array_of(column, value, "T")
    if len(rows) != lengths.sum():
        raise DataError(
            f"fill: expected {lengths.sum()} rows of column {column.name!r}, as offsets says, got {len(rows)}"
        )
    return rows, lengths


def _listed(column: Column, value: Any, count: int) -> tuple[np.ndarray, npt.NDArray[np.int64]]:
    if not isinstance(value, (list, tuple)) or len(value) != count:
        got = f"{len(value)} of them" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"
        raise DataError(
            f"fill: column {column.name!r}: expected a list of {count} arrays [T, ...], one per id, got {got}; "
            "packed rows need offsets="
        )
    rows = [array_of(column, one, "T") for one in value]
    lengths = np.array([len(one) for one in rows], np.int64)
    return np.concatenate(rows) if rows else np.zeros((0, *column.shape), storage_dtype(column)), lengths

"""Filling late columns of a table: one call checked as a whole, then written, then published.

Nothing of a call is applied unless all of it fits; ids of trajectories that left are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gear.batch import Update
from gear.errors import DataError, ProtocolError
from gear.storage import late
from gear.storage.item_sets import bits_of
from gear.storage.stepwise import write_steps

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.table import StoredTable

Rows = bytes | memoryview | np.ndarray


def fill(
    stored: StoredTable, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], columns: Mapping[str, Rows]
) -> Update:
    """Write late columns of whole trajectories; how many ids were applied, how many were stale.

    Parameters
    ----------
    ids : int64[N]
        Each names a trajectory by any of its items.
    lengths : int64[N]
        Rows of each in the per-step columns.
    columns : bytes of each column: rows of all trajectories one behind the other, or one row each per trajectory.

    Raises
    ------
    DataError, ProtocolError
        Naming column or id, and what is wrong; nothing is changed.
    """
    table, layout = stored.table, stored.layout
    name = f"fill of table {table.name!r}"
    if lengths.shape != ids.shape or (lengths < 0).any():
        raise ProtocolError(f"{name}: expected a length >= 0 for each of {len(ids)} ids, got {lengths.shape}")
    if not columns:
        raise DataError(f"{name}: expected at least one late column")
    steps, places, sources = False, [], []
    for column, rows in columns.items():
        place = layout.placements.get(column)
        if place is None or not place.column.late:
            known = ", ".join(c.name for c in table.columns if c.late) or "none"
            raise DataError(f"{name}: {column!r} is no late column; those are {known}")
        by_step = place.column.per == "step"
        source = np.frombuffer(rows, np.uint8)
        expected = (int(lengths.sum()) if by_step else len(ids)) * place.width
        if len(source) != expected:
            raise ProtocolError(f"{name}: expected {expected} bytes of column {column!r}, got {len(source)}")
        steps |= by_step
        places.append(place)
        sources.append(source)
    found = np.empty(len(ids), np.int64)
    due = lengths if steps else np.full(len(ids), -1, np.int64)
    fault, entry, rows_there = late.find(stored.segment, stored.params, ids, due, found)
    if fault == late.GROWING:
        raise DataError(
            f"{name}: the trajectory of ids[{entry}] still grows ({rows_there} rows); fill it when it has ended; "
            "nothing was filled"
        )
    if fault == late.BAD_LENGTH:
        raise DataError(
            f"{name}: the trajectory of ids[{entry}] has {rows_there} rows, {lengths[entry]} came; give a row of the "
            "per-step columns for each step of the whole trajectory; nothing was filled"
        )
    if stored.snapshot is not None:
        stored.snapshot.before_fill(found, bits_of(table, columns))
    late.begin(stored.segment, stored.params, found)
    for place, source in zip(places, sources, strict=True):
        if place.column.per == "step":
            write_steps(stored, place, found, lengths, 0, source)
        else:
            at = place.offset, place.stride, place.width
            late.write_values(stored.segment, stored.params, found, *at, source.ctypes.data)
    late.complete(stored.segment, stored.params, found, bits_of(table, columns))
    if stored.groups is not None:
        stored.groups.filled(found[found >= 0].tolist())
    stale = int(np.count_nonzero(found < 0))
    return Update(len(ids) - stale, stale)

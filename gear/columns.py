"""One named array of a table: its name, shape and dtype, and how nested data gets such names.

Nothing here knows the table that a column belongs to, nor memory, sockets or kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec.structs import force_setattr

from gear.errors import DataError
from gear.rules import MAX_INT32, Spec, require, whole_number

DTYPES: dict[str, int] = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip
"""Names of the dtypes a column may have, with their item size in bytes."""

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}(/[A-Za-z0-9_.\-]{1,64})*")


def dtype_name(dtype: object, owner: str = "") -> str:
    """The canonical name of a dtype given as a name, a NumPy or torch dtype, or a scalar type."""
    text = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
    if text in DTYPES:
        return text
    try:
        name = text if dtype is None else np.dtype(dtype).name  # type: ignore[call-overload]
    except (TypeError, ValueError):
        name = text
    prefix = f"{owner}: " if owner else ""
    require(name in DTYPES, f"{prefix}dtype {dtype!r} is not supported; use one of {', '.join(DTYPES)}")
    return str(name)


class Column(Spec, frozen=True):
    """One named array of a table.

    Parameters
    ----------
    name : str
        Letters, digits, ``_ . -``; nested dicts become ``obs/image``.
    shape : tuple of int
        Shape of one row, without the time axis; at most 8 axes of size >= 1.
    dtype : str
        One of `DTYPES`; NumPy and torch dtypes are accepted.
    per : {"step", "trajectory"}
        T rows, or one row for the whole trajectory.
    placement : {"host", "device"}
        Memory that holds the column: of the host, or of the GPU that its shard serves (`gear-server --devices 0`).
        Columns that are late or per trajectory lie on the host.
    late : bool
        It is left out of the insert and filled afterwards, by `Client.fill`.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    per: Literal["step", "trajectory"] = "step"
    placement: Literal["host", "device"] = "host"
    late: bool = False

    def __post_init__(self) -> None:
        require(
            isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None,
            f"Column: name must be made of letters, digits and '_.-', parts joined by '/', got {self.name!r}",
        )
        owner = f"Column {self.name!r}"
        shape = (self.shape,) if isinstance(self.shape, (int, np.integer)) else self.shape
        require(isinstance(shape, (tuple, list)), f"{owner}: shape must be a tuple, got {shape!r}")
        require(len(shape) <= 8, f"{owner}: shape has {len(shape)} axes, at most 8 are supported")
        force_setattr(self, "shape", tuple(whole_number(owner, "shape", n) for n in shape))
        force_setattr(self, "dtype", dtype_name(self.dtype, owner))
        require(
            self.per in ("step", "trajectory"),
            f"{owner}: per must be 'step' or 'trajectory', got {self.per!r}",
        )
        require(
            self.placement in ("host", "device"),
            f"{owner}: placement must be 'host' or 'device', got {self.placement!r}",
        )
        require(isinstance(self.late, bool), f"{owner}: late must be True or False, got {self.late!r}")
        require(
            self.placement == "host" or self.per == "step",
            f"{owner}: placement='device' is for columns per step, got per={self.per!r}; leave placement out",
        )
        require(
            self.row_bytes <= MAX_INT32,
            f"{owner}: shape {self.shape} of {self.dtype} takes {self.row_bytes} bytes per row, at most {MAX_INT32} "
            "are supported",
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * DTYPES[self.dtype]


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts as one dict with names like ``obs/image``.

    Raises
    ------
    DataError
        If two values get the same name.
    """
    flat: dict[str, Any] = {}
    _flatten_into(flat, tree, "")
    return flat


def _flatten_into(flat: dict[str, Any], tree: Mapping[str, Any], prefix: str) -> None:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            _flatten_into(flat, value, name + "/")
        elif name in flat:
            raise DataError(f"two values are named {name!r}, one nested and one with '/' in its key; rename one")
        else:
            flat[name] = value


def column_differences(mine: Sequence[Column], theirs: Sequence[Column]) -> list[str]:
    """One line for each column that differs or is missing on one side, or one that says that their order does."""
    ours, others = {c.name: c for c in mine}, {c.name: c for c in theirs}
    pairs = ((n, ours.get(n), others.get(n)) for n in [*ours, *(n for n in others if n not in ours)])
    lines = [f"columns: {n!r}: {a or 'none'} against {b or 'none'}" for n, a, b in pairs if a != b]
    return lines or [f"columns: the order {', '.join(ours)} against {', '.join(others)}"]

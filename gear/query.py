"""What a learner asks for: a `View` per column, a `Query` of them, and the `Plan` made from both.

A query is frozen data and compares by value; a plan is made once per query, batch size and item length
and says where every column of a batch lies in one buffer. Plans describe memory and own none: the layout
of the table is handed in, so that nothing here knows how tables are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from gear.errors import SchemaError
from gear.schema import Column, Prioritized, Step, Table, Whole, Window

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout

ALIGN = 64
MOST_ITEMS = 1 << 20
"""Items per batch at most, as many as one message of the control channel may name."""

PLAN_FIELDS = 10
"""Fields of a row of a gather plan; `gear.kernels.reference` says what they mean."""


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one column of an item becomes a tensor.

    Parameters
    ----------
    column : str
        Name of the column.
    pad : bool, int or float
        Value of the steps that an item does not have.
    """

    column: str
    pad: bool | int | float = 0

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise SchemaError(f"View: column must be a name, got {self.column!r}")
        if not isinstance(self.pad, (bool, int, float)):
            raise SchemaError(f"View {self.column!r}: pad must be a number, got {self.pad!r}")


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `Client.sample` and `Client.select` draw and how the batch looks.

    Parameters
    ----------
    size : int
        Items per batch, at most `MOST_ITEMS`.
    table : str, optional
        Name of the table; may be left out where there is one table.
    views : sequence of View or str, optional
        Columns of the batch; a name stands for ``View(name)``. Default: every column but the late ones that are not
        required.
    require : sequence of str, optional
        Late columns that the items must have; one of the table's declared `requirements`.
    include_open : bool
        Draw open trajectories too, as long as they are now.
    """

    size: int = 256
    table: str = ""
    views: tuple[View, ...] = ()
    require: tuple[str, ...] = ()
    include_open: bool = False

    def __post_init__(self) -> None:
        size = self.size
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1:
            raise SchemaError(f"Query: size must be a whole number >= 1, got {size!r}")
        if size > MOST_ITEMS:
            raise SchemaError(f"Query: size must be at most {MOST_ITEMS} items, got {size!r}; draw several batches")
        force_setattr(self, "size", int(size))
        if not isinstance(self.table, str):
            raise SchemaError(f"Query: table must be a name, got {self.table!r}")
        force_setattr(self, "views", as_views(self.views))
        force_setattr(self, "require", _names(self.require))
        if not isinstance(self.include_open, bool):
            raise SchemaError(f"Query: include_open must be True or False, got {self.include_open!r}")


class Field(NamedTuple):
    """One array of a batch: where it lies in the buffer and what it is."""

    column: str
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int
    nbytes: int


class Plan(NamedTuple):
    """How `size` items of `length` steps are gathered into one buffer.

    Attributes
    ----------
    rows : int64[1 + C, PLAN_FIELDS], as the gather kernels read it.
    pads : uint8[P], pad values at the offsets that `rows` names.
    fields : the arrays of the batch; the mask is the last part of the buffer where `mask_offset` >= 0.
    by_name : the same fields by column, so that a batch makes an array only when asked for it.
    views : what it was made from, every column named.
    """

    table: Table
    size: int
    length: int
    rows: npt.NDArray[np.int64]
    pads: npt.NDArray[np.uint8]
    fields: tuple[Field, ...]
    by_name: dict[str, Field]
    mask_offset: int
    nbytes: int
    views: tuple[View, ...]

    @property
    def stepwise(self) -> bool:
        """Whether the arrays have no time axis: an item is one row."""
        return isinstance(self.table.item, Step)

    @property
    def prioritized(self) -> bool:
        """Whether draws follow priorities, so that importance weights differ from 1."""
        return isinstance(self.table.sampler, Prioritized)


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a column's dtype name; bfloat16 comes from ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def item_length(table: Table) -> int:
    """Steps of every item, 0 where each item has its own length."""
    item = table.item
    return 0 if isinstance(item, Whole) else item.length if isinstance(item, Window) else 1


def _names(require: object) -> tuple[str, ...]:
    """Names of late columns, sorted, each once."""
    names = (require,) if isinstance(require, str) else require
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
        raise SchemaError(f"Query: require must name late columns, got {require!r}")
    return tuple(sorted(set(names)))


def default_views(table: Table, require: Iterable[str] = ()) -> tuple[View, ...]:
    """A view of every column but the late ones that are not required."""
    return tuple(View(c.name) for c in table.columns if not c.late or c.name in require)


def late_columns(table: Table, views: Iterable[View]) -> tuple[str, ...]:
    """The late columns among views."""
    late = {c.name for c in table.columns if c.late}
    return tuple(view.column for view in views if view.column in late)


def as_views(columns: object) -> tuple[View, ...]:
    """Column names and views as views; raises SchemaError for anything else or a column named twice."""
    if isinstance(columns, (str, View)) or not isinstance(columns, Iterable):
        raise SchemaError(f"views must be a sequence of View or column names, got {columns!r}")
    views = tuple(View(v) if isinstance(v, str) else v for v in columns)
    for view in views:
        if not isinstance(view, View):
            raise SchemaError(f"views must be View or column names, got {view!r}")
    names = [v.column for v in views]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise SchemaError(f"views name columns twice: {', '.join(twice)}; one view per column")
    return views


def make_plan(layout: Layout, views: tuple[View, ...], size: int, length: int) -> Plan:
    """The plan for `size` items of at most `length` steps; no views stand for every column that is not late.

    Raises
    ------
    SchemaError
        If a view names a column that is not there or a pad value that its dtype cannot hold.
    """
    table = layout.table
    stepwise = isinstance(table.item, Step)
    views = views or default_views(table)
    rows = np.zeros((1 + len(views), PLAN_FIELDS), np.int64)
    pads, fields, at = bytearray(), [], 0
    for number, view in enumerate(views, 1):
        column, place = table.column(view.column), layout.placements[view.column]
        timed = column.per == "step"
        shape = (size, length, *column.shape) if timed and not stepwise else (size, *column.shape)
        pad = _pad_bytes(column, view.pad)
        offset = place.offset if timed else layout.regions["trajectories"].offset + place.offset
        rows[number, :6] = (not timed, offset, place.stride, place.width, at, len(pads) if pad else -1)
        pads += pad
        nbytes = size * (length if timed else 1) * place.width
        fields.append(Field(column.name, shape, numpy_dtype(column.dtype), at, nbytes))
        at += -(-nbytes // ALIGN) * ALIGN
    mask_offset = -1 if stepwise else at
    head = isinstance(table.item, Window) and table.item.edge == "head"
    rows[0, :8] = (
        layout.block_steps,
        layout.block_bytes,
        layout.regions["arena"].offset,
        layout.regions["blocks"].offset,
        layout.blocks,
        length,
        head,
        mask_offset,
    )
    nbytes = at if stepwise else at + size * length
    padding = np.frombuffer(bytes(pads), np.uint8).copy()
    by_name = {field.column: field for field in fields}
    return Plan(table, size, length, rows, padding, tuple(fields), by_name, mask_offset, nbytes, views)


def _pad_bytes(column: Column, pad: bool | int | float) -> bytes:
    """One padded row of the column, empty where it is all zero bytes."""
    dtype = numpy_dtype(column.dtype)
    try:
        with np.errstate(over="raise", invalid="raise"):
            value = np.array(pad).astype(dtype)
    except (FloatingPointError, OverflowError):
        value = None
    exact = column.dtype.startswith(("float", "bfloat"))
    if value is None or (not exact and not bool(value == pad)) or (math.isfinite(pad) and not math.isfinite(value)):
        raise SchemaError(f"View {column.name!r}: pad {pad!r} is not a value of dtype {column.dtype}")
    row = value.tobytes() * math.prod(column.shape)
    return row if any(row) else b""

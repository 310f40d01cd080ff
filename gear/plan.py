"""A plan: where every column of a batch lies in one buffer, and how each is made from the rows of a table.

A plan is made once per views, batch size and item length. It describes memory and owns none: the layout of the table
is handed in, so that nothing here knows how tables are stored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.errors import SchemaError
from gear.kernels import records as r
from gear.schema import Column, Prioritized, Step, Table, Whole, Window
from gear.views import FLOATING, AnyView, NStep, ReturnToGo, Timestep, View

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from gear.storage.layout import Layout

ALIGN = 64
ENDLESS = 1 << 40
"""Rows behind an item that a return-to-go reaches: all there are."""

_SIDES = {"": r.IN_PLACE, "tail": r.AT_TAIL, "head": r.AT_HEAD}


class Field(NamedTuple):
    """One array of a batch: where it lies in the buffer, what it is, and whether it has rows for steps."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int
    nbytes: int
    timed: bool


class ByName(dict[str, Field]):
    """Fields by their names; a name that is none of them is told which there are."""

    def __missing__(self, name: object) -> Field:
        raise KeyError(f"the batch has no array {name!r}; it has {', '.join(map(repr, self)) or 'none'}")


class Plan(NamedTuple):
    """How `size` items of `length` steps are gathered into one buffer.

    Attributes
    ----------
    rows : int64[1 + C, PLAN_FIELDS], as the gather kernels read it; int64[1 + C, VIEW_FIELDS] if `viewed`.
    pads : uint8[P], pad values at the offsets that `rows` names.
    fields : the arrays of the batch; the item's mask is the last part of the buffer where `mask_offset` >= 0.
    by_name : the same fields by name, so that a batch makes an array only when asked for it.
    masks : bool arrays by the name of the array they are for, where it is not the item's mask.
    views : what it was made from, every column named.
    viewed : whether there is more to do than copying the items' rows.
    total : steps of all items if they are packed, else -1.
    before, after : rows before an item and behind it that the views show, of other pieces of a split trajectory too.
    """

    table: Table
    size: int
    length: int
    rows: npt.NDArray[np.int64]
    pads: npt.NDArray[np.uint8]
    fields: tuple[Field, ...]
    by_name: ByName
    masks: dict[str, Field]
    mask_offset: int
    nbytes: int
    views: tuple[AnyView, ...]
    viewed: bool
    total: int
    before: int
    after: int

    @property
    def stepwise(self) -> bool:
        """Whether the arrays have no time axis: an item is one row."""
        return isinstance(self.table.item, Step)

    @property
    def packed(self) -> bool:
        """Whether items lie behind each other without padding."""
        return self.total >= 0

    @property
    def prioritized(self) -> bool:
        """Whether draws follow priorities, so that importance weights differ from 1."""
        return isinstance(self.table.sampler, Prioritized)

    def steps_of(self, lengths: npt.NDArray[np.int32]) -> int:
        """`total` of a batch of these items, laid out as this one."""
        return int(np.minimum(lengths, self.length).sum(dtype=np.int64)) if self.packed else -1

    def behind(self, items: int, steps: int) -> Plan:
        """The plan for what goes to the batch behind so many items; steps: theirs, if they are packed."""
        rows = self.rows.copy()
        for column in rows[1:]:
            places = items
            if column[r.KIND] == r.PER_STEP:
                count = int(column[r.COUNT]) if self.viewed else 0
                places = steps if self.packed else items * (count or self.length)
            column[r.TARGET] += places * column[r.BYTES if self.viewed else r.WIDTH]
            if self.viewed:
                for field, size in ((r.PRESENT, 1), (r.DISCOUNT, 4), (r.TAKEN, 4)):
                    column[field] += places * size if column[field] >= 0 else 0
        if self.mask_offset >= 0:
            rows[0, r.MASK] += items * self.length
        return self._replace(rows=rows)

    @property
    def regions(self) -> list[Field]:
        """All arrays with a place of their own in the buffer, the item's mask last."""
        own = list({id(field): field for field in self.masks.values()}.values())
        if self.mask_offset < 0:
            return [*self.fields, *own]
        n = self.size * self.length
        return [*self.fields, *own, Field("mask", (self.size, self.length), np.dtype(bool), self.mask_offset, n, True)]


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


def reach(views: tuple[AnyView, ...], length: int) -> tuple[int, int]:
    """Rows before and behind the own rows of items of at most `length` steps that the views show; at most.

    A view that shows more than an item's own rows may begin (or end) where an item of `length` steps would, however
    few rows it has.
    """
    before = after = 0
    for view in views:
        back = view.stack - 1 if isinstance(view, View) and view.stack else 0
        ahead = view.shift if isinstance(view, View) else view.n if isinstance(view, NStep) else 0
        if isinstance(view, ReturnToGo):
            ahead = ENDLESS
        shown = 0
        if view.offset or view.length:
            back, shown = back + length - 1 - view.offset, view.offset + (view.length or length) - 1
        before, after = max(before, back), max(after, ahead + max(0, shown))
    return before, after


def default_views(table: Table, require: Iterable[str] = ()) -> tuple[View, ...]:
    """A view of every column but the late ones that are not required."""
    return tuple(View(c.name) for c in table.columns if not c.late or c.name in require)


def late_columns(table: Table, views: Iterable[AnyView]) -> tuple[str, ...]:
    """The late columns among views."""
    late = {c.name for c in table.columns if c.late}
    return tuple(view.column for view in views if view.column in late)


def make_plan(layout: Layout, views: tuple[AnyView, ...], size: int, length: int, total: int = -1) -> Plan:
    """The plan for `size` items of at most `length` steps; no views stand for every column that is not late.

    Parameters
    ----------
    total : int
        Steps of all items together if they are to be packed, -1 if they are padded.

    Raises
    ------
    SchemaError
        If a view names a column that is not there, or asks for what cannot be made of it.
    """
    views = views or default_views(layout.table)
    viewed = not all(isinstance(v, View) and v.plain for v in views)
    return _Maker(layout, views, size, length, total, viewed).plan()


class _Maker:
    """A plan in the making: fields are laid one behind the other."""

    def __init__(
        self, layout: Layout, views: tuple[AnyView, ...], size: int, length: int, total: int, viewed: bool
    ) -> None:
        self.layout, self.views, self.size, self.length, self.total = layout, views, size, length, total
        self.viewed = viewed
        self.stepwise = isinstance(layout.table.item, Step)
        self.rows = np.zeros((1 + len(views), r.VIEW_FIELDS if viewed else r.PLAN_FIELDS), np.int64)
        self.pads = bytearray()
        self.fields: list[Field] = []
        self.masks: dict[str, Field] = {}
        self.at = 0

    def plan(self) -> Plan:
        """Lay out every view, then the masks."""
        layout, table = self.layout, self.layout.table
        moved: list[tuple[int, AnyView, tuple[int, ...], list[str]]] = []
        for number, view in enumerate(self.views, 1):
            first = len(self.fields)
            lead = self._view(number, view)
            if lead and (view.moved or (isinstance(view, View) and view.shift)):
                moved.append((number, view, lead, [field.name for field in self.fields[first:]]))
        by_name = ByName({field.name: field for field in self.fields})
        if len(by_name) < len(self.fields):
            names = [field.name for field in self.fields]
            twice = sorted({n for n in names if names.count(n) > 1})
            raise SchemaError(f"views: arrays are named twice: {', '.join(twice)}; give the views names of their own")
        for number, view, lead, names in moved:
            mask = self._lay(view.key, lead, np.dtype(bool), True)
            self.rows[number, r.PRESENT] = mask.offset
            self.masks.update(dict.fromkeys([view.key, *names], mask))
        masked = not self.stepwise and self.total < 0
        mask_offset = self.at if masked else -1
        head = isinstance(table.item, Window) and table.item.edge == "head"
        self.rows[0, :8] = (
            layout.block_steps,
            layout.block_bytes,
            layout.regions["arena"].offset,
            layout.regions["blocks"].offset,
            layout.blocks,
            self.length,
            head,
            mask_offset,
        )
        before, after = reach(self.views, self.length)
        if self.viewed:
            self.rows[0, r.SLOTS : r.PACKED + 1] = layout.regions["slots"].offset, layout.slots, self.total >= 0
        nbytes = self.at + self.size * self.length if masked else self.at
        return Plan(
            table,
            self.size,
            self.length,
            self.rows,
            np.frombuffer(bytes(self.pads), np.uint8).copy(),
            tuple(self.fields),
            by_name,
            self.masks,
            mask_offset,
            nbytes,
            self.views,
            self.viewed,
            self.total,
            before,
            after,
        )

    def _lay(self, name: str, shape: tuple[int, ...], dtype: np.dtype, timed: bool) -> Field:
        nbytes = math.prod(shape) * dtype.itemsize
        field = Field(name, shape, dtype, self.at, nbytes, timed)
        self.at += -(-nbytes // ALIGN) * ALIGN
        return field

    def _lead(self, view: AnyView) -> tuple[int, ...]:
        """The axes of a view's results before those of a row."""
        if self.total >= 0:
            if view.length or view.pad:
                raise SchemaError(
                    f"view {view.key!r}: length and pad have no meaning in the packed layout, where each item has its "
                    'own rows; leave them out, or use layout="padded"'
                )
            return (self.total,)
        if self.stepwise and not view.length:
            return (self.size,)
        return (self.size, view.length or self.length)

    def _view(self, number: int, view: AnyView) -> tuple[int, ...]:
        """Lay out one view's results; returns their leading axes, () for a per-trajectory column."""
        row = self.rows[number]
        if isinstance(view, Timestep):
            return self._made(number, view, Column("timestep", (), "int64"), r.TIMESTEP, view.dtype or "int64")
        column, place = self.layout.table.column(view.column), self.layout.placements[view.column]
        timed = column.per == "step"
        offset = place.offset if timed else self.layout.regions["trajectories"].offset + place.offset
        row[:4] = (not timed, offset, place.stride, place.width)
        if isinstance(view, (NStep, ReturnToGo)):
            if not timed:
                raise SchemaError(f"view {view.key!r}: column {column.name!r} has no steps to sum over")
            op = r.N_STEP if isinstance(view, NStep) else r.TO_GO
            return self._made(number, view, column, op, view.dtype or "float32")
        if not timed and (view.moved or view.shift or view.stack):
            raise SchemaError(
                f"View {column.name!r}: the column has one row per trajectory; only name, value, dtype and scale mean "
                "anything for it"
            )
        return self._column(number, view, column, timed)

    def _column(self, number: int, view: View, column: Column, timed: bool) -> tuple[int, ...]:
        row, result = self.rows[number], view.dtype or column.dtype
        if result not in FLOATING and result != column.dtype and (column.dtype in FLOATING or result == "bool"):
            raise SchemaError(
                f"View {column.name!r}: {column.dtype} is not converted to {result} on the way; ask for a floating "
                "dtype, or convert the batch"
            )
        lead = self._lead(view) if timed else (self.size,)
        dtype = numpy_dtype(result)
        frames = (view.stack,) if view.stack else ()
        field = self._lay(view.key, (*lead, *frames, *column.shape), dtype, timed)
        self.fields.append(field)
        row[r.TARGET] = field.offset
        row[r.PAD] = self._pad(view, result, math.prod((*frames, *column.shape)))
        if self.viewed:
            self._extend(row, view, column, result, r.STACK if view.stack else r.COPY)
            row[r.SHIFT], row[r.DEPTH], row[r.REPEAT] = view.shift, view.stack, view.fill == "repeat"
            row[r.SCALE] = _bits(view.scale)
            row[r.BYTES] = math.prod((*frames, *column.shape)) * dtype.itemsize
        return lead if timed else ()

    def _made(self, number: int, view: AnyView, column: Column, op: int, result: str) -> tuple[int, ...]:
        """Lay out what is computed: of `column`'s values, or from positions alone."""
        row, lead, dtype = self.rows[number], self._lead(view), numpy_dtype(result)
        name = f"{view.key}/return" if isinstance(view, NStep) else view.key
        field = self._lay(name, (*lead, *column.shape), dtype, True)
        self.fields.append(field)
        row[r.TARGET] = field.offset
        row[r.PAD] = self._pad(view, result, math.prod(column.shape))
        self._extend(row, view, column, result, op)
        row[r.SCALE], row[r.BYTES] = _bits(1.0), math.prod(column.shape) * dtype.itemsize
        if isinstance(view, (NStep, ReturnToGo)):
            row[r.GAMMA] = _bits(view.gamma)
        if isinstance(view, NStep):
            row[r.DEPTH] = view.n
            for place, part, kind in ((r.DISCOUNT, "discount", "float32"), (r.TAKEN, "steps", "int32")):
                extra = self._lay(f"{view.key}/{part}", lead, np.dtype(kind), True)
                self.fields.append(extra)
                row[place] = extra.offset
        return lead

    def _extend(self, row: npt.NDArray[np.int64], view: AnyView, column: Column, result: str, op: int) -> None:
        row[r.OP], row[r.BEGIN_AT], row[r.COUNT], row[r.SIDE] = op, view.offset, view.length, _SIDES[view.pad]
        row[r.SOURCE], row[r.RESULT] = r.DTYPES.index(column.dtype), r.DTYPES.index(result)
        row[r.ELEMENTS] = math.prod(column.shape)
        row[r.PRESENT] = row[r.DISCOUNT] = row[r.TAKEN] = -1

    def _pad(self, view: AnyView, dtype: str, count: int) -> int:
        """Where a row of padding begins in the pads, -1 where it is all zero bytes."""
        pad = _pad_bytes(view, dtype, count)
        if not pad:
            return -1
        at = len(self.pads)
        self.pads += pad
        return at


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def _pad_bytes(view: AnyView, name: str, count: int) -> bytes:
    """`count` values of padding, empty where they are all zero bytes."""
    value, dtype = view.value, numpy_dtype(name)
    try:
        with np.errstate(over="raise", invalid="raise"):
            made = np.array(value).astype(dtype)
    except (FloatingPointError, OverflowError):
        made = None
    exact = name in FLOATING
    if made is None or (not exact and not bool(made == value)) or (math.isfinite(value) and not math.isfinite(made)):
        raise SchemaError(f"view {view.key!r}: value {value!r} is not a value of dtype {name}")
    row = made.tobytes() * count
    return row if any(row) else b""

"""The views kernel in plain NumPy, written to be read: the oracle of every implementation, to the byte.

The plan is described in `records`; what the views mean, in `gear.views`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gear.kernels import records as r
from gear.kernels.reference import _check_places

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]
Row = tuple[int, int]
"""Block and step of a row."""


class Trajectory(NamedTuple):
    """What is there around an item; positions are relative to its first row.

    Attributes
    ----------
    rows : block and step of each row by position, from `low` on without a gap.
    end : position behind the last row, if the trajectory ends (or nothing more may be read) there.
    final : block and step of the final row, if there is one.
    terminal : whether it ended in a terminal state.
    timestep : steps before position 0, over all pieces.
    slot : the item's slot.
    have : the item's own rows, as its slot says.
    """

    rows: dict[int, Row]
    end: int
    final: Row | None
    terminal: bool
    timestep: int
    slot: int
    have: int

    @property
    def low(self) -> int:
        """Position of the first row."""
        return min(self.rows)


class _Records:
    """Block and slot records, and the walk along them."""

    def __init__(self, segment: Bytes, plan: Integers, neighbours: Shorts) -> None:
        blocks, slots = int(plan[0, r.BLOCKS]), int(plan[0, r.SLOTS])
        self.count, self.steps, self.n_slots = (int(plan[0, f]) for f in (r.BLOCK_COUNT, r.BLOCK_STEPS, r.SLOT_COUNT))
        self.blocks = segment[blocks : blocks + self.count * 4 * r.BLOCK_FIELDS].view(np.int32)
        self.blocks = self.blocks.reshape(self.count, r.BLOCK_FIELDS)
        self.slots = segment[slots : slots + self.n_slots * 8 * r.SLOT_FIELDS].view(np.int64)
        self.slots = self.slots.reshape(self.n_slots, r.SLOT_FIELDS)
        self.held, self.own = set(neighbours.tolist()), -1

    def is_block(self, block: int) -> bool:
        return 0 <= block < self.count

    def may_read(self, slot: int) -> bool:
        return 0 <= slot < self.n_slots and (slot == self.own or slot in self.held)

    def piece(self, slot: int, block: int, number: int, back: bool) -> tuple[list[Row], Row | None]:
        """Rows of a piece from row `number`, which lies in `block`, to its end (or beginning); the final row."""
        rows: list[Row] = []
        step, length = number % self.steps, int(self.slots[slot, r.LENGTH])
        while 0 <= number < length and self.is_block(block) and len(rows) <= self.count * self.steps:
            rows.append((block, step))
            number, step = (number - 1, step - 1) if back else (number + 1, step + 1)
            if step == self.steps or (step < 0 and number >= 0):
                block = int(self.blocks[block, r.PREVIOUS if back else r.NEXT])
                step = self.steps - 1 if back else 0
        final = (block, step) if number == length and self.slots[slot, r.FLAGS] & r.HAS_FINAL else None
        return rows, final if final is not None and self.is_block(block) else None

    def trajectory(self, row: int, want: int) -> Trajectory | None:
        """What is there around the item that begins at a row number."""
        block, step = divmod(row, self.steps)
        if want < 1 or row < 0 or not self.is_block(block):
            return None
        slot, ordinal = int(self.blocks[block, r.SLOT]), int(self.blocks[block, r.ORDINAL])
        if not 0 <= slot < self.n_slots or ordinal < 0:
            return None
        self.own = slot
        number = ordinal * self.steps + step
        have = max(0, min(want, int(self.slots[slot, r.LENGTH]) - number))
        if not have:
            return None
        ahead, final = self.piece(slot, block, number, back=False)
        last, whole = slot, len(ahead) == int(self.slots[slot, r.LENGTH]) - number
        while whole and self.slots[last, r.FLAGS] & r.CONTINUED:
            final, following = None, int(self.slots[last, r.SUCCESSOR])
            if not self.may_read(following) or not len(ahead):
                break
            more, final = self.piece(following, int(self.slots[following, r.FIRST]), 0, back=False)
            ahead, last, whole = ahead + more, following, len(more) == int(self.slots[following, r.LENGTH])
        behind = self.piece(slot, block, number, back=True)[0][1:]
        first, whole_behind = slot, len(behind) == number
        while whole_behind and self.may_read(before := int(self.slots[first, r.PREDECESSOR])):
            block, length = int(self.slots[before, r.LAST]), int(self.slots[before, r.LENGTH])
            more = self.piece(before, block, length - 1, back=True)[0]
            if not more:
                break
            behind, first, whole_behind = behind + more, before, len(more) == length
        rows = {-1 - i: one for i, one in enumerate(behind)} | dict(enumerate(ahead))
        flags = int(self.slots[last, r.FLAGS])
        terminal = whole and bool(flags & r.TERMINATED and not flags & r.CONTINUED)
        return Trajectory(rows, len(ahead), final, terminal, int(self.slots[slot, r.BASE]) + number, slot, have)


def _dtype(number: int) -> np.dtype:
    if r.DTYPES[number] != "bfloat16":
        return np.dtype(r.DTYPES[number])
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _real(view: Integers, field: int) -> float:
    return float(view[field : field + 1].view(np.float64)[0])


def convert(values: np.ndarray, result: np.dtype, scale: float) -> np.ndarray:
    """Values in another dtype: by way of float64 to floating ones, wrapping around to whole numbers."""
    if values.dtype == result and scale == 1.0:
        return values
    if result.name not in ("float16", "bfloat16", "float32", "float64"):
        return values.astype(np.int64).astype(result)
    wide = values.astype(np.float64) * scale
    with np.errstate(over="ignore", invalid="ignore"):
        return (wide.astype(np.float32) if result.name == "bfloat16" else wide).astype(result)


class _View:
    """One view of a plan."""

    def __init__(self, segment: Bytes, plan: Integers, number: int) -> None:
        self.segment, self.head, self.plan = segment, plan[0], plan[number]
        self.source, self.result = (_dtype(int(self.plan[f])) for f in (r.SOURCE, r.RESULT))
        self.scale, self.gamma = _real(self.plan, r.SCALE), _real(self.plan, r.GAMMA)

    def values(self, block: int, step: int) -> np.ndarray:
        """A row as it is stored."""
        at = self.head[r.ARENA] + block * self.head[r.BLOCK_BYTES] + self.plan[r.OFFSET] + step * self.plan[r.STRIDE]
        return self.segment[at : at + self.plan[r.WIDTH]].copy().view(self.source)

    def of_slot(self, slot: int) -> np.ndarray | None:
        """The row of a slot."""
        at = int(self.plan[r.OFFSET] + slot * self.plan[r.STRIDE])
        if at + self.plan[r.WIDTH] > len(self.segment):
            return None
        return self.segment[at : at + self.plan[r.WIDTH]].copy().view(self.source)

    def at(self, there: Trajectory, position: int) -> np.ndarray | None:
        """The row at a position, the final one at the end and behind it; None where there is none."""
        row = there.rows.get(position) if position < there.end else there.final
        return None if row is None else self.values(*row)

    def stack(self, there: Trajectory, position: int) -> np.ndarray | None:
        """The rows up to a position (the final one at most), the last one last."""
        position = min(position, there.end)
        if self.at(there, position) is None:
            return None
        depth, frames = int(self.plan[r.DEPTH]), []
        for frame in range(position - depth + 1, position + 1):
            row = self.at(there, max(frame, there.low))
            assert row is not None
            frames.append(row if frame >= there.low or self.plan[r.REPEAT] else np.zeros_like(row))
        return np.concatenate(frames)

    def sum_up(self, there: Trajectory, position: int) -> tuple[np.ndarray, float, int]:
        """Discounted sum of the rewards from a position on, discount, number of steps."""
        total, discount = np.zeros(int(self.plan[r.ELEMENTS])), 1.0
        taken = min(int(self.plan[r.DEPTH]), there.end - position)
        for i in range(taken):
            total += discount * self.values(*there.rows[position + i]).astype(np.float64)
            discount *= self.gamma
        ended = there.terminal and position + taken == there.end
        return convert(total, self.result, 1.0), 0.0 if ended else discount, taken

    def to_go(self, there: Trajectory, first: int, stop: int) -> list[np.ndarray]:
        """Sums of all rewards from positions first..stop on; those behind are summed from the front."""
        total, discount, sums = np.zeros(int(self.plan[r.ELEMENTS])), 1.0, []
        for position in range(stop, there.end):
            total += discount * self.values(*there.rows[position]).astype(np.float64)
            discount *= self.gamma
        for position in range(stop - 1, first - 1, -1):
            total = self.values(*there.rows[position]).astype(np.float64) + self.gamma * total
            sums.append(convert(total, self.result, 1.0))
        return sums[::-1]


def gather_views(
    segment: Bytes, plan: Integers, pads: Bytes, starts: Integers, lengths: Shorts, neighbours: Shorts, out: Bytes
) -> None:
    """Make the views of items.

    Item k begins at row number ``starts[k]`` and has ``min(lengths[k], L)`` rows. In the padded layout its position 0
    is that row, or, if the plan pads at the head, its last row is position L - 1. In the packed one it has as many
    places as rows.

    Parameters
    ----------
    segment : uint8[*]
        Block and slot records, arena and per-trajectory columns.
    plan : int64[1 + V, VIEW_FIELDS]
        See `records`.
    pads, starts, lengths, out
        As for `reference.gather`.
    neighbours : int32[K]
        Slots that may be read beside the items' own, in rising order: neighbouring pieces of split trajectories.

    Raises
    ------
    ValueError
        If the plan does not fit the arrays.
    """
    if len(lengths) != len(starts):
        raise ValueError("gather: starts and lengths differ in length")
    _check_places(segment, plan)
    longest, packed, mask = int(plan[0, r.ITEM_LENGTH]), bool(plan[0, r.PACKED]), int(plan[0, r.MASK])
    records = _Records(segment, plan, neighbours)
    at = 0
    for k in range(len(starts)):
        want = min(int(lengths[k]), longest)
        there = records.trajectory(int(starts[k]), want)
        have = 0 if there is None else there.have
        places = max(0, want) if packed else longest
        start = have - longest if plan[0, r.PAD_HEAD] and not packed else 0
        if mask >= 0:
            out[mask + k * longest : mask + (k + 1) * longest] = 0
            out[mask + k * longest - start :][:have] = 1
        for number in range(1, len(plan)):
            view = _View(segment, plan, number)
            if view.plan[r.KIND] == r.PER_TRAJECTORY:
                row = None if there is None else view.of_slot(there.slot)
                _write(view, pads, k, row, out)
            else:
                count = int(view.plan[r.COUNT]) or places
                base = k * count if view.plan[r.COUNT] else at
                _show(view, pads, there, start, count, base, out)
        at += places


def _write(view: _View, pads: Bytes, index: int, row: np.ndarray | None, out: Bytes) -> None:
    """Write one row of a result, or padding."""
    size, pad = int(view.plan[r.BYTES]), int(view.plan[r.PAD])
    target = out[int(view.plan[r.TARGET]) + index * size :][:size]
    if row is not None:
        target[:] = np.ascontiguousarray(convert(row, view.result, view.scale)).view(np.uint8)
    else:
        target[:] = pads[pad : pad + size] if pad >= 0 else 0


def _show(view: _View, pads: Bytes, there: Trajectory | None, start: int, count: int, base: int, out: Bytes) -> None:
    """Write the `count` rows that a view shows of an item, from row `base` of the result on."""
    plan, op = view.plan, int(view.plan[r.OP])
    first, own = start + int(plan[r.BEGIN_AT]), plan[r.BEGIN_AT] == 0 and plan[r.COUNT] == 0
    shown: list[int] = []
    if there is not None:
        low, stop = (0, min(there.have, there.end)) if own else (there.low, there.end)
        shown = [p for p in range(first, first + count) if low <= p < stop]
    gap = {r.AT_TAIL: 0, r.AT_HEAD: count - len(shown)}.get(int(plan[r.SIDE]), shown[0] - first if shown else 0)
    place = {p: gap + i for i, p in enumerate(shown)}
    present = np.zeros(count, np.uint8)
    discounts, taken = np.zeros(count, np.float32), np.zeros(count, np.int32)
    rows: dict[int, np.ndarray | None] = dict.fromkeys(range(count))
    for p in shown:
        assert there is not None
        if op == r.COPY:
            row = view.at(there, min(p + int(plan[r.SHIFT]), there.end))
        elif op == r.STACK:
            row = view.stack(there, p + int(plan[r.SHIFT]))
        elif op == r.TIMESTEP:
            row = np.array([there.timestep + p]).astype(view.result)
        elif op == r.N_STEP:
            row, discounts[place[p]], taken[place[p]] = view.sum_up(there, p)
        else:
            row = view.to_go(there, shown[0], shown[-1] + 1)[p - shown[0]]
        rows[place[p]] = row
        present[place[p]] = row is not None
    for i in range(count):
        row = rows[i]
        if row is None or op in (r.COPY, r.STACK):
            _write(view, pads, base + i, row, out)
        else:
            size = int(plan[r.BYTES])
            out[int(plan[r.TARGET]) + (base + i) * size :][:size] = row.view(np.uint8)
    for field, values in ((r.PRESENT, present), (r.DISCOUNT, discounts), (r.TAKEN, taken)):
        if plan[field] >= 0 and (field == r.PRESENT or op == r.N_STEP):
            raw = values.view(np.uint8)
            out[int(plan[field]) + base * values.itemsize :][: len(raw)] = raw

"""One gather of views on a GPU, made ready once for many batches; as `cuda_gather`, for plans of views.

A batch is one launch; of packed items it is two: the first numbers them, for where one begins depends on all before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from gear.kernels import records as r
from gear.kernels.cuda_gather import SCRATCH, check_places
from gear.kernels.cuda_launch import LANES, THREADS, WARPS, Call, Room, parts
from gear.kernels.cuda_packed import COUNTERS, number_packed
from gear.kernels.cuda_show import FIRST_RUN
from gear.kernels.cuda_views import ENDLESS, gather_views
from gear.kernels.cuda_windows import TILE
from gear.kernels.host_trace import RUN

Integers = npt.NDArray[np.int64]

SIZES = (1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8)
"""Bytes of a value by the dtypes' numbers."""

FLOATING = (r.FLOAT16, r.BFLOAT16, r.FLOAT32, r.FLOAT64)


def _check_view(view: Integers, head: Integers, items: int, total: int, pads: int, out: int) -> None:
    """Refuse a view whose results or pad values leave their arrays, or which is none; as the host does."""
    count, elements, packed, op = (int(v) for v in (view[r.COUNT], view[r.ELEMENTS], head[r.PACKED], view[r.OP]))
    if min(count, view[r.SHIFT], view[r.DEPTH], elements, view[r.TARGET]) < 0:
        raise ValueError("plan: a size or an offset is negative")
    if max(abs(int(view[r.BEGIN_AT])), view[r.SHIFT], view[r.DEPTH]) >= ENDLESS:
        raise ValueError("plan: a view reaches too far")
    source, result = int(view[r.SOURCE]), int(view[r.RESULT])
    if not (0 <= source <= r.FLOAT64 and 0 <= result <= r.FLOAT64 and r.COPY <= op <= r.TIMESTEP):
        raise ValueError("plan: no such dtype or result")
    frames = max(1, int(view[r.DEPTH])) if op == r.STACK else 1
    if view[r.BYTES] != frames * elements * SIZES[result]:
        raise ValueError("plan: a row of a result has another size")
    if op != r.TIMESTEP and view[r.WIDTH] != elements * SIZES[source]:
        raise ValueError("plan: a row of a column has another size")
    if op in (r.N_STEP, r.TO_GO) and result not in FLOATING:
        raise ValueError("plan: a sum has a floating dtype")
    rows = items
    if view[r.KIND] == r.PER_STEP:
        rows = items * count if count else total if packed else items * int(head[r.ITEM_LENGTH])
        if count and packed:
            raise ValueError("plan: packed items have their own rows")
    if view[r.TARGET] + rows * view[r.BYTES] > out or view[r.PRESENT] + rows > out:
        raise ValueError("plan: a column does not fit into the output")
    beside = view[[r.DISCOUNT, r.TAKEN]]
    if op == r.N_STEP and (beside.min() < 0 or beside.max() + 4 * rows > out):
        raise ValueError("plan: a column does not fit into the output")
    if view[r.PAD] >= 0 and view[r.PAD] + view[r.BYTES] > pads:
        raise ValueError("plan: a pad value lies outside the pads")
    if result != source or op > r.STACK or view[r.SCALE] != np.float64(1.0).view(np.int64):
        _check_alignment(view, head, SIZES[source], SIZES[result])


def _check_alignment(view: Integers, head: Integers, wide: int, narrow: int) -> None:
    """Refuse values to compute with that are not at multiples of their size, which tables never have."""
    lies = [int(view[r.OFFSET]), int(view[r.STRIDE])]
    lies += [int(head[r.ARENA]), int(head[r.BLOCK_BYTES])] if view[r.KIND] == r.PER_STEP else []
    if (view[r.OP] != r.TIMESTEP and any(at % wide for at in lies)) or view[r.TARGET] % narrow:
        raise ValueError(f"plan: values of {wide} and {narrow} bytes do not lie at multiples of that")
    if view[r.OP] == r.N_STEP and (view[r.DISCOUNT] % 4 or view[r.TAKEN] % 4):
        raise ValueError("plan: discounts or numbers of steps do not lie at multiples of 4")


def _reach(plan: Integers) -> tuple[int, int]:
    """Rows before and behind items that the views show, beside what they sum up to the end."""
    before = after = 0
    length = int(plan[0, r.ITEM_LENGTH])
    for view in plan[1:]:
        if view[r.KIND] == r.PER_STEP:
            first, count = int(view[r.BEGIN_AT]), int(view[r.COUNT]) or length
            back = int(view[r.DEPTH]) - 1 if view[r.OP] == r.STACK else 0
            ahead = int(view[r.DEPTH] if view[r.OP] == r.N_STEP else view[r.SHIFT])
            before = max(before, back - min(first, 0))
            after = max(after, ahead + max(0, first + count - length))
    return before, after


class GatherViews:
    """Gathers views of batches of `items` items by a plan, one at a time (another stream takes another one).

    See `reference_views.gather_views`.

    Parameters
    ----------
    segment : the segment, or any array of its size.
    plan, pads : int64[1 + V, VIEW_FIELDS] and uint8[P], NumPy arrays.
    out : the output, or any array of its size.
    total : rows of packed items together, at most; items beyond it are left out.
    split : whether other pieces of split trajectories may be read (`neighbours` is not empty).
    arena : the blocks, where they lie apart from the segment (`cuda_gather.check_places`).

    Raises
    ------
    ValueError
        If the plan does not fit the arrays.
    """

    def __init__(
        self, segment: Any, plan: Integers, pads: npt.NDArray[np.uint8], items: int, out: Any, total: int, split: bool,
        arena: Any = None,
    ) -> None:  # fmt: skip
        self._given, self.pads, self.split = pads, cuda.to_device(pads), split
        self.scratch, self.offsets = Room(np.int64), Room(np.int64)
        self.fit(segment, plan, items, out, total, arena)
        self.plan = Call().table(plan)

    def fit(self, segment: Any, plan: Integers, items: int, out: Any, total: int = -1, arena: Any = None) -> None:
        """As `Gather.fit`."""
        if plan.shape[1] < r.VIEW_FIELDS:
            raise ValueError("plan: not a plan of views")
        self.end, self.arena = check_places(segment, plan, arena), arena
        slots, count, length = (int(plan[0, f]) for f in (r.SLOTS, r.SLOT_COUNT, r.ITEM_LENGTH))
        if min(slots, count) < 0 or slots + count * 8 * r.SLOT_FIELDS > len(segment):
            raise ValueError("plan: the slots lie outside the segment")
        packed = bool(plan[0, r.PACKED])
        if plan[0, r.MASK] >= 0 and (packed or plan[0, r.MASK] + items * length > len(out)):
            raise ValueError("plan: the mask does not fit into the output")
        for view in plan[1:]:
            _check_view(view, plan[0], items, total, len(self._given), len(out))
        self.items, self.total, self.sizes = items, total, (len(segment), len(out))
        self.length, self.packed, self.reach = length, packed, _reach(plan)
        rows = length + sum(self.reach)
        self.room = FIRST_RUN + RUN * (rows + 3 if self.split else rows // int(plan[0, r.BLOCK_STEPS]) + 4)
        counts = np.where(plan[1:, r.COUNT] > 0, plan[1:, r.COUNT], length)
        units = 1 + int((-(-counts * plan[1:, r.BYTES] // TILE)).sum())
        across, deep = parts(items, units)
        self.grid = max(1, min(across, SCRATCH // (8 * self.room * deep))), deep
        self.scratch.make(self.grid[0] * deep * self.room)
        self.offsets.make(items)

    def __call__(
        self, segment: Any, starts: Any, lengths: Any, neighbours: Any, out: Any, stream: Any = 0, plan: Any = None
    ) -> None:
        """Gather one batch into `out`; arrays on the device are used where they are, and nothing waits.

        plan : as of `Gather`.
        """
        items = len(starts)
        if len(lengths) != items:
            raise ValueError("gather: starts and lengths differ in length")
        if (len(segment), len(out)) != self.sizes or items > self.items or (len(neighbours) and not self.split):
            raise ValueError(
                f"gather: made ready for {self.items} items, {self.sizes[0]} bytes of segment, {self.sizes[1]} of "
                f"output and {'any' if self.split else 'no'} neighbours, got {items}, {len(segment)}, {len(out)} "
                f"and {len(neighbours)}; make another one ready"
            )
        if not items:
            return
        with Call(stream) as call:
            offsets, sizes = call.writes(self.offsets.array), call.reads(lengths)
            call.writes(self.scratch.array)
            if self.packed:
                call.launch(number_packed, 1, min(COUNTERS, 4 * THREADS), sizes, items, self.length, offsets)
            if self.arena is not None:
                call.reads(self.arena)
            given = (
                call.reads(segment),
                self.end,
                self.plan if plan is None else plan,
                call.reads(self.pads),
                call.reads(starts),
                sizes,
                items,
            )
            arguments = (*given, call.reads(neighbours), len(neighbours), call.writes(out), self.total, offsets)
            call.launch(gather_views, self.grid, (LANES, WARPS), *arguments, *self.reach, self.scratch.array, self.room)


def gather(
    segment: Any, plan: Integers, pads: npt.NDArray[np.uint8], starts: Any, lengths: Any, neighbours: Any, out: Any,
    stream: Any = 0,
) -> None:  # fmt: skip
    """Make the views of items; see `reference_views.gather_views`.

    Of packed items whose lengths lie on the device, those that would leave the output are left out.
    """
    if len(lengths) != len(starts):
        raise ValueError("gather: starts and lengths differ in length")
    length = int(plan[0, r.ITEM_LENGTH])
    total = int(np.clip(lengths, 0, length).sum()) if isinstance(lengths, np.ndarray) else _fits(plan, len(out))
    ready = GatherViews(segment, plan, pads, len(starts), out, total, len(neighbours) > 0)
    ready(segment, starts, lengths, neighbours, out, stream)


def _fits(plan: Integers, out: int) -> int:
    """Packed rows that every per-step view has room for."""
    most = out
    for view in plan[1:]:
        if view[r.KIND] == r.PER_STEP:
            ends = [(r.TARGET, int(view[r.BYTES])), (r.PRESENT, 1)]
            ends += [(r.DISCOUNT, 4), (r.TAKEN, 4)] if view[r.OP] == r.N_STEP else []
            most = min(most, *((out - int(view[f])) // size for f, size in ends if size and view[f] >= 0))
    return max(0, most)

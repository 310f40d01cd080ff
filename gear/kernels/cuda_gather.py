"""One gather on a GPU, made ready once for many batches: the checked plan on the device, scratch, the launch's shape.

A batch is one launch: all columns, the padding, the mask and the per-trajectory columns of all its items. One, because
starting a launch takes microseconds, as long as a small batch; and no more are needed, because a block of threads
follows the chain of its own item. Only packed items take a launch before it, which numbers them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from gear.kernels import records as r
from gear.kernels.cuda_launch import LANES, THREADS, WARPS, Call, Room, parts, room
from gear.kernels.cuda_packed import COUNTERS, number_packed
from gear.kernels.cuda_rows import MOST, gather_rows
from gear.kernels.cuda_windows import TILE, gather_windows
from gear.kernels.reference import _check_output, _check_places

Integers = npt.NDArray[np.int64]

SCRATCH = 64 << 20
"""Bytes of scratch that a gather takes at most; with long chains fewer items are under way for it."""


def _check_packed(plan: Integers, pads: int, items: int, total: int, out: int) -> None:
    """Refuse a plan whose batch leaves the output, or whose pad values leave the pads (sizes in bytes)."""
    for column in plan[1:]:
        rows = total if column[r.KIND] == r.PER_STEP else items
        if column[r.TARGET] + rows * column[r.WIDTH] > out:
            raise ValueError("plan: a column does not fit into the output")
        if column[r.PAD] >= 0 and column[r.PAD] + column[r.WIDTH] > pads:
            raise ValueError("plan: a pad value lies outside the pads")


def check_places(segment: Any, plan: Integers, arena: Any) -> int:
    """Refuse a plan whose blocks or columns leave the segment, or the arena if it lies apart from it.

    Returns what bounds the addresses of rows: bytes behind the segment's beginning. An arena that lies apart is reached
    by its distance from the segment, in either direction.
    """
    if arena is None:
        _check_places(segment, plan)
        return len(segment)
    inside, count = plan.copy(), int(plan[0, r.BLOCK_COUNT])
    inside[0, [r.ARENA, r.BLOCK_BYTES]] = 0, max(int(plan[0, r.BLOCK_BYTES]), 0)
    if count * int(plan[0, r.BLOCK_BYTES]) > len(arena):
        raise ValueError("plan: the blocks lie outside the arena")
    if (plan[1:, r.KIND] != r.PER_STEP).any():
        raise ValueError("plan: columns per trajectory lie in the segment")
    _check_places(_Sized(max(len(segment), len(arena))), inside)  # type: ignore[arg-type]
    if int(plan[0, r.BLOCKS]) + count * 4 * r.BLOCK_FIELDS > len(segment):
        raise ValueError("plan: the blocks lie outside the segment")
    return max(len(segment), int(plan[0, r.ARENA]) + len(arena))


class _Sized:
    """Something of a length."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class Gather:
    """Gathers batches of `items` items by a plan, one at a time (another stream takes another one).

    See `reference.gather`.

    Parameters
    ----------
    segment : the segment, or any array of its size.
    plan, pads : int64[1 + C, PLAN_FIELDS] and uint8[P], NumPy arrays.
    out : the output, or any array of its size.
    total : rows of all items together, at most, if they are to lie one behind the other (`reference.gather_packed`);
        items beyond it are left out.
    arena : the blocks, where they lie apart from the segment; the plan's ARENA is their distance from it in bytes.

    Raises
    ------
    ValueError
        If the plan does not fit the arrays.
    """

    def __init__(
        self, segment: Any, plan: Integers, pads: npt.NDArray[np.uint8], items: int, out: Any, total: int = -1,
        arena: Any = None,
    ) -> None:  # fmt: skip
        self._given, self.pads = pads, cuda.to_device(pads)
        self.scratch, self.offsets = Room(np.int32), Room(np.int64)
        self.fit(segment, plan, items, out, total, arena)
        self.plan = Call().table(plan)

    def fit(self, segment: Any, plan: Integers, items: int, out: Any, total: int = -1, arena: Any = None) -> None:
        """Get ready for batches by another plan of the same columns, which calls are given then.

        Memory is taken only where there was less before. Raises ValueError as the constructor does.
        """
        self.reach, self.arena = check_places(segment, plan, arena), arena
        if total < 0:
            _check_output(plan, self._given, items, out)
        else:
            _check_packed(plan, len(self._given), items, total, len(out))
            self.offsets.make(items)
        self.total = total
        self.items, self.sizes = items, (len(segment), len(out))
        self.length = length = int(plan[0, r.ITEM_LENGTH])
        steps = int(plan[0, r.BLOCK_STEPS])
        self.rowwise, self.grid = length == 1 and total < 0, (1, 1)
        if self.rowwise:
            self.tile = max(1, min(MOST, THREADS, -(-items // room()) if items else 1))
            self.grid = max(1, min(-(-items // self.tile), room())), 1
            return
        units = 1 + sum(
            1 if kind != r.PER_STEP else -(-length * width // TILE)
            for kind, width in plan[1:, [r.KIND, r.WIDTH]].tolist()
        )
        self.room = length // steps + 4
        across, deep = parts(items, units)
        across = max(1, min(across, SCRATCH // (4 * self.room * deep)))
        self.grid = (across, deep)
        self.scratch.make(across * deep * self.room)

    def __call__(self, segment: Any, starts: Any, lengths: Any, out: Any, stream: Any = 0, plan: Any = None) -> None:
        """Gather one batch into `out`; arrays on the device are used where they are, and nothing waits.

        plan : the plan of the last `fit`, on the device; default the constructor's.
        """
        if len(lengths) != len(starts):
            raise ValueError("gather: starts and lengths differ in length")
        if (len(segment), len(out)) != self.sizes or len(starts) > self.items:
            raise ValueError(
                f"gather: made ready for {self.items} items, {self.sizes[0]} bytes of segment and {self.sizes[1]} of "
                f"output, got {len(starts)}, {len(segment)} and {len(out)}; make another one ready"
            )
        if not len(starts):
            return
        with Call(stream) as call:
            if self.arena is not None:
                call.reads(self.arena)
            table = self.plan if plan is None else plan
            arguments: list[Any] = [call.reads(segment), self.reach, table, call.reads(self.pads)]
            arguments += [call.reads(starts), call.reads(lengths), len(starts), call.writes(out)]
            if self.rowwise:
                call.launch(gather_rows, self.grid, (LANES, WARPS), *arguments, self.tile)
                return
            offsets = 0 if self.total < 0 else call.writes(self.offsets.array)
            if offsets:
                given = arguments[5], len(starts), self.length, offsets
                call.launch(number_packed, 1, min(COUNTERS, 4 * THREADS), *given)
            arguments += [call.writes(self.scratch.array), self.room, offsets, self.total]
            call.launch(gather_windows, self.grid, (LANES, WARPS), *arguments)


def gather(
    segment: Any, plan: Integers, pads: npt.NDArray[np.uint8], starts: Any, lengths: Any, out: Any, stream: Any = 0
) -> None:
    """Collect the rows of items into contiguous columns; see `reference.gather`."""
    if len(lengths) != len(starts):
        raise ValueError("gather: starts and lengths differ in length")
    Gather(segment, plan, pads, len(starts), out)(segment, starts, lengths, out, stream)


def gather_packed(
    segment: Any, plan: Integers, pads: npt.NDArray[np.uint8], starts: Any, lengths: Any, out: Any, stream: Any = 0
) -> None:
    """Collect the rows of items into contiguous columns, one item behind the other; see `reference.gather_packed`.

    Of items whose lengths lie on the device, those that would leave the output are left out.
    """
    if len(lengths) != len(starts):
        raise ValueError("gather: starts and lengths differ in length")
    if isinstance(lengths, np.ndarray):
        total = int(np.clip(lengths, 0, int(plan[0, r.ITEM_LENGTH])).sum())
    else:
        total = min([len(out), *((len(out) - int(c[r.TARGET])) // int(c[r.WIDTH]) for c in plan[1:] if _timed(c))])
    Gather(segment, plan, pads, len(starts), out, max(0, total))(segment, starts, lengths, out, stream)


def _timed(column: Integers) -> bool:
    return bool(column[r.KIND] == r.PER_STEP and column[r.WIDTH] > 0)

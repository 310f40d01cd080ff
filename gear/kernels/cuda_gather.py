"""One gather on a GPU, made ready once for many batches: the checked plan on the device, scratch, the launch's shape.

A batch is one launch: all columns, the padding, the mask and the per-trajectory columns of all its items. One, because
starting a launch takes microseconds, as long as a small batch; and no more are needed, because a block of threads
follows the chain of its own item.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from gear.kernels import records as r
from gear.kernels.cuda_launch import LANES, THREADS, WARPS, Call, parts, room
from gear.kernels.cuda_rows import MOST, gather_rows
from gear.kernels.cuda_windows import TILE, gather_windows
from gear.kernels.reference import _check_output, _check_places

Integers = npt.NDArray[np.int64]

SCRATCH = 64 << 20
"""Bytes of scratch that a gather takes at most; with long chains fewer items are under way for it."""


class Gather:
    """Gathers batches of `items` items by a plan; see `reference.gather`.

    Parameters
    ----------
    segment : the segment, or any array of its size.
    plan, pads : int64[1 + C, PLAN_FIELDS] and uint8[P], NumPy arrays.
    out : the output, or any array of its size.

    Raises
    ------
    ValueError
        If the plan does not fit the arrays.
    """

    def __init__(self, segment: Any, plan: Integers, pads: npt.NDArray[np.uint8], items: int, out: Any) -> None:
        _check_places(segment, plan)
        _check_output(plan, pads, items, out)
        self.items, self.sizes = items, (len(segment), len(out))
        self.plan, self.pads = Call().table(plan), cuda.to_device(pads)
        length, steps = int(plan[0, r.ITEM_LENGTH]), int(plan[0, r.BLOCK_STEPS])
        self.rowwise, self.grid = length == 1, (1, 1)
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
        self.scratch = cuda.device_array(across * deep * self.room, np.int32)

    def __call__(self, segment: Any, starts: Any, lengths: Any, out: Any, stream: Any = 0) -> None:
        """Gather one batch into `out`; arrays on the device are used where they are, and nothing waits."""
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
            arguments: list[Any] = [call.reads(segment), self.sizes[0], self.plan, call.reads(self.pads)]
            arguments += [call.reads(starts), call.reads(lengths), len(starts), call.writes(out)]
            if self.rowwise:
                call.launch(gather_rows, self.grid, (LANES, WARPS), *arguments, self.tile)
            else:
                scratch = call.writes(self.scratch)
                call.launch(gather_windows, self.grid, (LANES, WARPS), *arguments, scratch, self.room)


def gather(
    segment: Any, plan: Integers, pads: npt.NDArray[np.uint8], starts: Any, lengths: Any, out: Any, stream: Any = 0
) -> None:
    """Collect the rows of items into contiguous columns; see `reference.gather`."""
    if len(lengths) != len(starts):
        raise ValueError("gather: starts and lengths differ in length")
    Gather(segment, plan, pads, len(starts), out)(segment, starts, lengths, out, stream)

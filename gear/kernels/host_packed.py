"""Gathering whole items one behind the other, without padding, on the host: run by run along the chain of blocks.

What `host_views` would make of plain columns, without looking up what lies around each item: a column of an item is
copied block after block, so that both sides are read and written in order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import helper, kernel
from gear.kernels.host_copy import check_places, fill, gather_trajectory
from gear.kernels.host_windows import ask_for, copy_rows, follow
from gear.kernels.records import (
    ARENA,
    BLOCK_BYTES,
    BLOCK_STEPS,
    BLOCKS,
    ITEM_LENGTH,
    KIND,
    OFFSET,
    PAD,
    PER_STEP,
    STRIDE,
    TARGET,
    WIDTH,
)

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]


@helper
def _check_packed(plan: Integers, pads: int, items: int, total: int, out: int) -> None:
    """Refuse a plan whose batch leaves the output, or whose pad values leave the pads (sizes in bytes)."""
    for c in range(1, plan.shape[0]):
        rows = total if plan[c, KIND] == PER_STEP else items
        if plan[c, TARGET] + rows * plan[c, WIDTH] > out:
            raise ValueError("plan: a column does not fit into the output")
        if plan[c, PAD] >= 0 and plan[c, PAD] + plan[c, WIDTH] > pads:
            raise ValueError("plan: a pad value lies outside the pads")


@kernel
def gather_packed(segment: Bytes, plan: Integers, pads: Bytes, starts: Integers, lengths: Shorts, out: Bytes) -> None:
    """Collect the rows of items, one behind the other; see `reference.gather_packed`."""
    if lengths.shape[0] != starts.shape[0]:
        raise ValueError("gather: starts and lengths differ in length")
    check_places(segment.shape[0], plan)
    total, longest = np.int64(0), np.int64(0)
    for k in range(starts.shape[0]):
        want = max(np.int64(0), min(np.int64(lengths[k]), plan[0, ITEM_LENGTH]))
        total, longest = total + want, max(longest, want)
    _check_packed(plan, pads.shape[0], starts.shape[0], total, out.shape[0])
    steps, target, values = plan[0, BLOCK_STEPS], out.ctypes.data, pads.ctypes.data
    arena, records = segment.ctypes.data + plan[0, ARENA], segment.ctypes.data + plan[0, BLOCKS]
    chain = np.empty(longest // steps + 2, np.int64)
    at = np.int64(0)
    for k in range(starts.shape[0]):
        if k + 1 < starts.shape[0]:
            ask_for(segment, plan, starts[k + 1], min(np.int64(lengths[k + 1]), plan[0, ITEM_LENGTH]))
        want = max(np.int64(0), min(np.int64(lengths[k]), plan[0, ITEM_LENGTH]))
        have = follow(records, plan, starts[k], want, chain)
        gather_trajectory(segment, plan, values, k, chain[0] if have > 0 else np.int64(-1), target)
        for c in range(1, plan.shape[0]):
            if plan[c, KIND] != PER_STEP:
                continue
            stride, width = plan[c, STRIDE], plan[c, WIDTH]
            to, step, left, n = target + plan[c, TARGET] + at * width, starts[k] % steps, have, 0
            while left > 0:
                rows = min(left, steps - step)
                source = arena + chain[n] * plan[0, BLOCK_BYTES] + plan[c, OFFSET]
                copy_rows(to, source + step * stride, stride, width, rows)
                to, step, left, n = to + rows * width, np.int64(0), left - rows, n + 1
            fill(to, values, plan[c, PAD], width, want - have)
        at += want

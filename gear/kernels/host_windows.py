"""Gathering items of several rows on the host: windows and whole trajectories, run by run.

Compiled into `host.gather`. An item is followed along the chain of its blocks; inside a block a column is
one run of bytes (a strip) or rows side by side with other columns (interleaved).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import copy, helper, memcpy, memset, prefetch, read_int32
from gear.kernels.host_copy import fill, gather_trajectory
from gear.kernels.records import (
    ARENA,
    BLOCK_BYTES,
    BLOCK_COUNT,
    BLOCK_FIELDS,
    BLOCK_STEPS,
    BLOCKS,
    ITEM_LENGTH,
    KIND,
    MASK,
    NEXT,
    OFFSET,
    PAD,
    PAD_HEAD,
    PER_STEP,
    STRIDE,
    TARGET,
    WIDTH,
)

SHORT = 256
"""Bytes up to which copying in line beats calling memcpy."""

AHEAD, LINE = 4096, 64
"""Bytes of a run asked for from memory while the item before is copied; bytes of a cache line."""

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]


@helper
def copy_rows(target: int, source: int, stride: int, width: int, rows: int) -> None:
    """Copy rows that lie `stride` bytes apart to rows without gaps."""
    if stride == width:
        if rows * width < SHORT:
            copy(target, source, rows * width)
        else:
            memcpy(target, source, rows * width)
    elif width == 4:
        for i in range(rows):
            memcpy(target + i * 4, source + i * stride, 4)
    else:
        for i in range(rows):
            copy(target + i * width, source + i * stride, width)


@helper
def follow(records: int, plan: Integers, row: int, want: int, chain: Integers) -> int:
    """How many of `want` rows from row number `row` on are there; chain: their blocks, each read once.

    Once, because whoever lost its pin gathers while the records change: what was checked is what is used.
    """
    steps, blocks = plan[0, BLOCK_STEPS], plan[0, BLOCK_COUNT]
    block = row // steps
    if row < 0 or block >= blocks or want < 1:
        return 0
    have, n = min(want, steps - (row - block * steps)), 0
    chain[0] = block
    while have < want:
        block = read_int32(records + 4 * (block * BLOCK_FIELDS + NEXT))
        if block < 0 or block >= blocks:
            break
        n += 1
        chain[n] = block
        have += min(steps, want - have)
    return have


@helper
def ask_for(segment: Bytes, plan: Integers, row: int, want: int) -> None:
    """Prefetch the first run of an item, whatever its row number."""
    steps, block = plan[0, BLOCK_STEPS], row // plan[0, BLOCK_STEPS]
    if row < 0 or block >= plan[0, BLOCK_COUNT]:
        return
    step, source = row - block * steps, segment.ctypes.data + plan[0, ARENA] + block * plan[0, BLOCK_BYTES]
    prefetch(segment.ctypes.data + plan[0, BLOCKS] + 4 * block * BLOCK_FIELDS)
    for c in range(1, plan.shape[0]):
        if plan[c, KIND] == PER_STEP:
            at = source + plan[c, OFFSET] + step * plan[c, STRIDE]
            for z in range(0, min(min(steps - step, want) * plan[c, STRIDE], AHEAD), LINE):
                prefetch(at + z)


@helper
def gather_windows(segment: Bytes, plan: Integers, pads: int, starts: Integers, lengths: Shorts, target: int) -> None:
    """Items of several rows: whole runs of a column at once, block by block along the chain."""
    columns, steps, length, head = plan.shape[0] - 1, plan[0, BLOCK_STEPS], plan[0, ITEM_LENGTH], plan[0, PAD_HEAD]
    arena, records, mask = segment.ctypes.data + plan[0, ARENA], segment.ctypes.data + plan[0, BLOCKS], plan[0, MASK]
    chain = np.empty(length // steps + 2, np.int64)
    for k in range(starts.shape[0]):
        if k + 1 < starts.shape[0]:
            ask_for(segment, plan, starts[k + 1], min(np.int64(lengths[k + 1]), length))
        have = follow(records, plan, starts[k], min(np.int64(lengths[k]), length), chain)
        gather_trajectory(segment, plan, pads, k, chain[0] if have > 0 else -1, target)
        first = k * length + (length - have if head else 0)
        gap = k * length + (0 if head else have)
        if mask >= 0:
            memset(target + mask + first, 1, have)
            memset(target + mask + gap, 0, length - have)
        for c in range(1, columns + 1 if have < length else 1):
            if plan[c, KIND] == PER_STEP:
                fill(target + plan[c, TARGET] + gap * plan[c, WIDTH], pads, plan[c, PAD], plan[c, WIDTH], length - have)
        end, n, step = first + have, 0, starts[k] % steps
        while first < end:
            rows, source = min(end - first, steps - step), arena + chain[n] * plan[0, BLOCK_BYTES]
            for c in range(1, columns + 1):
                if plan[c, KIND] == PER_STEP:
                    stride, width = plan[c, STRIDE], plan[c, WIDTH]
                    to = target + plan[c, TARGET] + first * width
                    copy_rows(to, source + plan[c, OFFSET] + step * stride, stride, width, rows)
            first, n, step = first + rows, n + 1, np.int64(0)

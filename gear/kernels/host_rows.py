"""Gathering items of one row each on the host: random rows, as many of them in flight as memory allows.

Compiled into `host.gather`. Rows go in tiles: while one tile is copied, the next one is on its way from
memory. Inside a tile the columns are the outer loop, so that a copy's width is settled once per column.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import copy, helper, memcpy, memset, prefetch, read_int64
from gear.kernels.host_copy import fill, gather_trajectory
from gear.kernels.records import (
    ARENA,
    BLOCK_BYTES,
    BLOCK_COUNT,
    BLOCK_FIELDS,
    BLOCK_STEPS,
    BLOCKS,
    KIND,
    MASK,
    OFFSET,
    PAD,
    PER_STEP,
    STRIDE,
    TARGET,
    WIDTH,
)

TILE = 16
"""Rows asked for from memory while the tile before is copied; a power of two."""

RING = 2 * TILE - 1
"""Mask of the ring that holds the places of two tiles."""

LINE, LINES = 64, 8
"""Bytes of a cache line; lines asked for of one row (of a longer one the processor fetches the rest)."""

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]


@helper
def _power(steps: int) -> int:
    """Binary logarithm of `steps`, -1 if it is no power of two."""
    shift = np.int64(0)
    while np.int64(1) << shift < steps:
        shift += 1
    return shift if np.int64(1) << shift == steps else np.int64(-1)


@helper
def _span(plan: Integers) -> tuple[int, int, int]:
    """(stride, begin, end) of a row whose per-step columns lie side by side; stride 0 if they do not."""
    pitch, low, high = np.int64(-1), np.int64(1 << 62), np.int64(0)
    for c in range(1, plan.shape[0]):
        if plan[c, KIND] == PER_STEP:
            if pitch >= 0 and pitch != plan[c, STRIDE]:
                return np.int64(0), low, high
            pitch, low = plan[c, STRIDE], min(low, plan[c, OFFSET])
            high = max(high, plan[c, OFFSET] + plan[c, WIDTH])
    return (pitch if 0 < high - low <= pitch else np.int64(0)), low, high


@helper
def _copy_column(target: int, source: int, at: int, step: int, rows: int, stride: int, width: int) -> None:
    """Rows of one column, all there; at, step: addresses of int64[rows]."""
    if width == 4:
        for k in range(rows):
            memcpy(target + 4 * k, source + read_int64(at + 8 * k) + read_int64(step + 8 * k) * stride, 4)
    elif width == 1:
        for k in range(rows):
            memcpy(target + k, source + read_int64(at + 8 * k) + read_int64(step + 8 * k) * stride, 1)
    else:
        for k in range(rows):
            copy(target + k * width, source + read_int64(at + 8 * k) + read_int64(step + 8 * k) * stride, width)


@helper
def gather_rows(segment: Bytes, plan: Integers, pads: int, starts: Integers, lengths: Shorts, target: int) -> None:
    """Items of one row: column c of item k goes to target + plan[c, TARGET] + k * width."""
    n, columns, steps = starts.shape[0], plan.shape[0], plan[0, BLOCK_STEPS]
    block_bytes, blocks, mask = plan[0, BLOCK_BYTES], plan[0, BLOCK_COUNT], plan[0, MASK]
    arena, records = segment.ctypes.data + plan[0, ARENA], segment.ctypes.data + plan[0, BLOCKS]
    shift, (pitch, low, high) = _power(steps), _span(plan)
    trajectories = False
    for c in range(1, columns):
        trajectories = trajectories or plan[c, KIND] != PER_STEP
    # Of each row in the ring: its block (-1: not there), its step in it, its offset in the arena. With
    # interleaved columns the offset is the row's, and no step is added; else it is the block's.
    block_of, step_of, at_of = np.empty(RING + 1, np.int64), np.empty(RING + 1, np.int64), np.empty(RING + 1, np.int64)
    missing = 0
    for begin in range(-TILE, n, TILE):
        missing_ahead = 0
        for k in range(begin + TILE, min(begin + 2 * TILE, n)):
            row, place = starts[k], k & RING
            block = row >> shift if shift >= 0 else row // steps
            if row < 0 or block >= blocks or lengths[k] < 1:
                block_of[place], missing_ahead = -1, missing_ahead + 1
                continue
            step = row - block * steps
            at = block * block_bytes + step * pitch
            block_of[place], step_of[place], at_of[place] = block, step, at
            if trajectories:
                prefetch(records + block * 4 * BLOCK_FIELDS)
            if pitch > 0:
                for z in range(low, min(high, low + LINE * LINES), LINE):
                    prefetch(arena + at + z)
                prefetch(arena + at + high - 1)
            else:
                for c in range(1, columns):
                    if plan[c, KIND] == PER_STEP:
                        prefetch(arena + at + plan[c, OFFSET] + step * plan[c, STRIDE])
        first, end = max(begin, 0), min(begin + TILE, n)
        for c in range(1, columns if begin >= 0 else 1):
            if plan[c, KIND] != PER_STEP:
                continue
            stride, width = plan[c, STRIDE] - pitch, plan[c, WIDTH]
            to, source = target + plan[c, TARGET] + begin * width, arena + plan[c, OFFSET]
            if missing == 0:
                at = at_of.ctypes.data + 8 * (begin & RING)
                step = step_of.ctypes.data + 8 * (begin & RING)
                _copy_column(to, source, at, step, end - begin, stride, width)
                continue
            for k in range(begin, end):
                if block_of[k & RING] < 0:
                    fill(to, pads, plan[c, PAD], width, 1)
                else:
                    copy(to, source + at_of[k & RING] + step_of[k & RING] * stride, width)
                to += width
        if mask >= 0 or trajectories:
            for k in range(first, end):
                block = block_of[k & RING]
                if mask >= 0:
                    memset(target + mask + k, 0 if block < 0 else 1, 1)
                if trajectories:
                    gather_trajectory(segment, plan, pads, k, block, target)
        missing = missing_ahead

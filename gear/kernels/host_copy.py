"""What gathering single rows and gathering windows share on the host: padding, per-trajectory columns.

Compiled into the kernels of `host`. Addresses are integers; the caller has checked the plan.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import copy, helper, memset, read_int32
from gear.kernels.records import (
    ARENA,
    BLOCK_BYTES,
    BLOCK_COUNT,
    BLOCK_FIELDS,
    BLOCK_STEPS,
    BLOCKS,
    ITEM_LENGTH,
    KIND,
    OFFSET,
    PAD,
    PER_STEP,
    SLOT,
    STRIDE,
    TARGET,
    WIDTH,
)

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


@helper
def fill(target: int, pads: int, pad: int, width: int, rows: int) -> None:
    """Write `rows` pad rows: the value at pads + pad, or zeros if pad < 0."""
    if pad < 0:
        memset(target, 0, rows * width)
    else:
        for i in range(rows):
            copy(target + i * width, pads + pad, width)


@helper
def gather_trajectory(segment: Bytes, plan: Integers, pads: int, k: int, block: int, target: int) -> None:
    """Per-trajectory columns of item k, whose first row lies in `block` (-1: it has no rows)."""
    slot = np.int64(-1)
    if block >= 0:
        slot = read_int32(segment.ctypes.data + plan[0, BLOCKS] + 4 * (block * BLOCK_FIELDS + SLOT))
    for c in range(1, plan.shape[0]):
        if plan[c, KIND] != PER_STEP:
            width, at = plan[c, WIDTH], plan[c, OFFSET] + slot * plan[c, STRIDE]
            to = target + plan[c, TARGET] + k * width
            if slot >= 0 and at + width <= segment.shape[0]:
                copy(to, segment.ctypes.data + at, width)
            else:
                fill(to, pads, plan[c, PAD], width, 1)


@helper
def check_places(size: int, plan: Integers) -> None:
    """Refuse a plan whose blocks or columns leave the segment of `size` bytes."""
    steps, block_bytes, blocks = plan[0, BLOCK_STEPS], plan[0, BLOCK_BYTES], plan[0, BLOCK_COUNT]
    length, arena, records = plan[0, ITEM_LENGTH], plan[0, ARENA], plan[0, BLOCKS]
    if steps < 1 or block_bytes < 0 or blocks < 0 or length < 0 or arena < 0 or records < 0:
        raise ValueError("plan: a size or an offset is negative")
    if arena + blocks * block_bytes > size or records + blocks * 4 * BLOCK_FIELDS > size:
        raise ValueError("plan: the blocks lie outside the segment")
    for c in range(1, plan.shape[0]):
        offset, stride, width = plan[c, OFFSET], plan[c, STRIDE], plan[c, WIDTH]
        if offset < 0 or stride < 0 or width < 0 or plan[c, TARGET] < 0:
            raise ValueError("plan: a size or an offset is negative")
        if plan[c, KIND] == PER_STEP and offset + (steps - 1) * stride + width > block_bytes:
            raise ValueError("plan: a column lies outside its block")

"""Gathering items of one row each on a GPU: random rows, every column in one launch.

A block of threads takes a tile of items: each thread finds where one of them lies, then all go through the tile's words
column by column, consecutive threads on consecutive words of the batch.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from gear.kernels.cuda_copy import clear_word, move_word, widest
from gear.kernels.cuda_seam import device, kernel, load_8, peek_4, quotient, store_1
from gear.kernels.cuda_windows import is_row, slot_of
from gear.kernels.records import (
    ARENA,
    BLOCK_BYTES,
    BLOCK_COUNT,
    BLOCK_STEPS,
    KIND,
    MASK,
    OFFSET,
    PAD,
    PER_STEP,
    STRIDE,
    TARGET,
    WIDTH,
)

MOST = 256
"""Items of a tile at most."""

PLACES = 3 * MOST


@device
def copy_column(segment, size, plan, c, pads, target, places, rows, lane, lanes):
    """A tile's rows of column c: the words of all rows in turn, however the rows divide them."""
    base, stride, width, pad = segment + plan[c, OFFSET], plan[c, STRIDE], plan[c, WIDTH], plan[c, PAD]
    coarse, fine, coarse_of, fine_of = stride, 0, 2 * MOST, 0
    if plan[c, KIND] == PER_STEP:
        base, coarse, fine, coarse_of, fine_of = base + plan[0, ARENA], plan[0, BLOCK_BYTES], stride, 0, MOST
    word = widest(base | coarse | fine | width | target | (pads + pad if pad >= 0 else 0))
    each = quotient(width, word)
    row = quotient(lane, each)
    at = lane - row * each
    rows_on = quotient(lanes, each)
    on = lanes - rows_on * each
    while row < rows:
        to, place = target + row * width + at * word, places[coarse_of + row]
        source = base + place * coarse + places[fine_of + row] * fine
        if place >= 0 and source + width <= segment + size:
            move_word(to, source + at * word, word)
        elif pad >= 0:
            move_word(to, pads + pad + at * word, word)
        else:
            clear_word(to, word)
        row, at = row + rows_on, at + on
        if at >= each:
            row, at = row + 1, at - each


@kernel
def gather_rows(segment, size, plan, pads, starts, lengths, items, out, tile):
    """Gather items of one row; see `reference.gather`. Arrays are addresses but for `plan`, which has been checked.

    Grid: tiles of `tile` items, `MOST` at most, or fewer; block: (lanes of a warp, warps).
    """
    places = cuda.shared.array(PLACES, np.int64)  # blocks (-1: no row), steps in them, slots
    lane, lanes = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x, cuda.blockDim.x * cuda.blockDim.y
    steps, blocks, mask = plan[0, BLOCK_STEPS], plan[0, BLOCK_COUNT], plan[0, MASK]
    trajectories = False
    for c in range(1, plan.shape[0]):
        trajectories = trajectories or plan[c, KIND] != PER_STEP
    for begin in range(cuda.blockIdx.x * tile, items, cuda.gridDim.x * tile):
        rows = min(tile, items - begin)
        for i in range(lane, rows, lanes):
            row, block, step = load_8(starts + 8 * (begin + i)), -1, 0
            if peek_4(lengths + 4 * (begin + i)) >= 1 and is_row(row, steps, blocks):
                block = quotient(row, steps)
                step = row - block * steps
            places[i], places[MOST + i] = block, step
            if trajectories:
                places[2 * MOST + i] = slot_of(segment, plan, block) if block >= 0 else -1
            if mask >= 0:
                store_1(out + mask + begin + i, 1 if block >= 0 else 0)
        cuda.syncthreads()
        for c in range(1, plan.shape[0]):
            if plan[c, WIDTH] > 0:
                target = out + plan[c, TARGET] + begin * plan[c, WIDTH]
                copy_column(segment, size, plan, c, pads, target, places, rows, lane, lanes)
        cuda.syncthreads()

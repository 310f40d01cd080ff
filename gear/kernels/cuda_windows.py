"""Gathering items of several rows on a GPU: windows and whole trajectories, every column in one launch.

A block of threads makes an item, or a part of one if there are fewer items than the GPU has room for. Its first thread
follows the chain of blocks, then its warps take turns at tiles of the item's columns; a tile is a few runs of rows.
"""

from __future__ import annotations

from numba import cuda

from gear.kernels.cuda_copy import copy_rows, fill
from gear.kernels.cuda_seam import device, kernel, load_4, load_8, peek_4, quotient, store_1, store_4
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
    SLOT,
    STRIDE,
    TARGET,
    WIDTH,
)

TILE = 8192
"""Bytes of a column that a warp makes at a time; longer rows are not divided."""


@device
def rows_per_tile(width):
    """Rows of a column that a warp makes at a time."""
    return max(1, quotient(TILE, max(1, width)))


@device
def is_row(row, steps, blocks):
    """Whether a row number, whatever it is, lies in the arena."""
    return row >= 0 and quotient(row, steps) < blocks


@device
def follow(segment, plan, row, want, chain):
    """How many of `want` rows from row number `row` on are there; int32s at `chain`: their blocks, each read once."""
    steps, blocks = plan[0, BLOCK_STEPS], plan[0, BLOCK_COUNT]
    if want < 1 or not is_row(row, steps, blocks):
        return 0
    block = quotient(row, steps)
    have = min(want, steps - (row - block * steps))
    store_4(chain, block)
    while have < want:
        block = peek_4(segment + plan[0, BLOCKS] + 4 * (block * BLOCK_FIELDS + NEXT))
        if block < 0 or block >= blocks:
            break
        chain += 4
        store_4(chain, block)
        have += min(steps, want - have)
    return have


@device
def slot_of(segment, plan, block):
    """The slot that owns a block."""
    return peek_4(segment + plan[0, BLOCKS] + 4 * (block * BLOCK_FIELDS + SLOT))


@device
def make_rows(segment, plan, c, pads, target, chain, step, slot, begin, end, first, beyond, lane, lanes):
    """Rows begin..end of column c, of which first..beyond are there and the others padding.

    What is there begins at `step` of the chain's first block; a per-trajectory column has the row of the slot. All
    comes to one call of `copy_rows`, which is long: the compiler writes it out wherever it is called.
    """
    steps, stride, width, at = plan[0, BLOCK_STEPS], plan[c, STRIDE], plan[c, WIDTH], plan[c, PAD]
    row = begin
    while row < end:
        to, source, apart = target + row * width, pads + at, 0
        if row < first or row >= beyond:
            rows = (min(first, end) if row < first else end) - row
            if at < 0:
                fill(to, rows * width, 0, lane, lanes)
                row += rows
                continue
        elif plan[c, KIND] == PER_STEP:
            position = row - first + step
            i = quotient(position, steps)
            rows, apart = min(min(beyond, end) - row, (i + 1) * steps - position), stride
            block = segment + plan[0, ARENA] + load_4(chain + 4 * i) * plan[0, BLOCK_BYTES]
            source = block + plan[c, OFFSET] + (position - i * steps) * stride
        else:
            rows, source = 1, segment + plan[c, OFFSET] + slot * stride
        copy_rows(to, width, source, apart, width, rows, lane, lanes)
        row += rows


@device
def is_there(size, plan, c, slot):
    """Whether a per-trajectory column has a row of the slot within the segment's `size` bytes."""
    return slot >= 0 and plan[c, OFFSET] + slot * plan[c, STRIDE] + plan[c, WIDTH] <= size


@kernel
def gather_windows(segment, size, plan, pads, starts, lengths, items, out, scratch, room, offsets, limit):
    """Gather items; see `reference.gather`. Arrays are addresses but for `plan`, which has been checked.

    offsets: int64[items], where items begin that lie behind each other (`reference.gather_packed`), or 0 for items of
    equal length; limit: rows that the output has for the former, those beyond it are left out.

    Grid: (items or fewer, parts of an item); block: (lanes of a warp, warps). scratch: `room` int32 per block of
    threads, of which the first two are the item's rows and slot, the others its chain.
    """
    lane, lanes = cuda.threadIdx.x, cuda.blockDim.x
    warp, warps = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y, cuda.gridDim.y * cuda.blockDim.y
    note = scratch + 4 * room * (cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x)
    chain, steps, longest, mask = note + 8, plan[0, BLOCK_STEPS], plan[0, ITEM_LENGTH], plan[0, MASK]
    for k in range(cuda.blockIdx.x, items, cuda.gridDim.x):
        row, want = load_8(starts + 8 * k), min(peek_4(lengths + 4 * k), longest)
        length, at = longest, k * longest
        if offsets != 0:
            length, at = max(0, want), load_8(offsets + 8 * k)
            length = length if at + length <= limit else 0
        if lane == 0 and cuda.threadIdx.y == 0:
            have = follow(segment, plan, row, want, chain)
            store_4(note, have)
            store_4(note + 4, slot_of(segment, plan, load_4(chain)) if have > 0 else -1)
        cuda.syncthreads()
        have, slot = load_4(note), peek_4(note + 4)
        head = length - have if plan[0, PAD_HEAD] and offsets == 0 else 0
        step, turn = row - quotient(row, steps) * steps if have > 0 else 0, warp
        for c in range(1, plan.shape[0]):
            width, places, begins, first, beyond = plan[c, WIDTH], length, at, head, head + have
            if plan[c, KIND] != PER_STEP:
                places, begins, first, beyond = 1, k, 0, 1 if is_there(size, plan, c, slot) else 0
            each, target = rows_per_tile(width), out + plan[c, TARGET] + begins * width
            begin = turn * each
            while begin < places and width > 0:
                end = min(begin + each, places)
                make_rows(
                    segment, plan, c, pads, target, chain, step, slot, begin, end, first, beyond, lane, lanes
                )  # fmt: skip
                begin += warps * each
            turn = (turn - quotient(places + each - 1, each)) % warps
        if mask >= 0 and offsets == 0 and turn == 0:
            for i in range(lane, length, lanes):
                store_1(out + mask + k * length + i, 1 if head <= i < head + have else 0)
        cuda.syncthreads()

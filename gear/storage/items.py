"""Items of a slot: how many there are and where each lies.

The items of a trajectory are its positions 0, stride, 2 * stride, ...; the first `ITEMS` of them are
drawable. An item's index in per-item arrays is its slot (whole trajectories) or
``block * items_per_block + (t % block_steps) // stride``. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.program import FLAG
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.programs import COMMIT


@kernel
def slot_of(segment, params, item):
    """The slot of an item in use."""
    if params[f.P_ITEM] == f.WHOLE:
        return item
    block = item // params[f.P_ITEMS_PER_BLOCK]
    return np.int64(int32s(segment, params, f.R_BLOCKS)[block * f.BLOCK_FIELDS + f.SLOT])


@COMMIT.kernel(ended=FLAG)
def item_count(params, length, ended):
    """Drawable items of a trajectory of `length` rows that has ended or may still grow."""
    kind = params[f.P_ITEM]
    if kind == f.WHOLE:
        return 1 if ended else 0
    if kind == f.STEP:
        return length if ended else max(0, length - params[f.P_STEP_N])
    window, stride, edge = params[f.P_LENGTH], params[f.P_STRIDE], params[f.P_EDGE]
    if edge == f.HEAD or (edge != f.INSIDE and ended):
        return (length + stride - 1) // stride
    if length >= window:
        return (length - window) // stride + 1
    return 1 if ended and length > 0 else 0


@kernel
def first_item(params, ordinal):
    """Number of the first item that lies in the trajectory's block `ordinal` or behind."""
    stride = params[f.P_STRIDE]
    return (ordinal * params[f.P_BLOCK_STEPS] + stride - 1) // stride


@kernel
def item_index(params, block, ordinal, item):
    """Index of the trajectory's item number `item`, which lies in `block`, its block number `ordinal`."""
    stride = params[f.P_STRIDE]
    within = item * stride - ordinal * params[f.P_BLOCK_STEPS]
    return block * params[f.P_ITEMS_PER_BLOCK] + within // stride


@kernel
def item_of(params, blocks, block, row):
    """Item index of a row of a block in use (its slot for whole trajectories)."""
    if params[f.P_ITEM] == f.WHOLE:
        return np.int64(blocks[block * f.BLOCK_FIELDS + f.SLOT])
    within = row - block * params[f.P_BLOCK_STEPS]
    if params[f.P_STRIDE] > 1:
        within //= params[f.P_STRIDE]
    return block * params[f.P_ITEMS_PER_BLOCK] + within


@kernel
def block_at(segment, params, slot, ordinal):
    """The slot's block number `ordinal`: found at once in a contiguous chain, else from the nearer end."""
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    block = slots[slot * f.SLOT_FIELDS + f.FIRST]
    guess = block + ordinal
    if guess < params[f.P_BLOCKS]:
        record = guess * f.BLOCK_FIELDS
        if blocks[record + f.SLOT] == slot and blocks[record + f.ORDINAL] == ordinal:
            return guess
    last = slots[slot * f.SLOT_FIELDS + f.LAST]
    behind = blocks[last * f.BLOCK_FIELDS + f.ORDINAL] - ordinal
    if behind < ordinal:
        for _ in range(behind):
            last = np.int64(blocks[last * f.BLOCK_FIELDS + f.PREVIOUS])
        return last
    for _ in range(ordinal):
        block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
    return block


@kernel
def item_at(segment, params, slot, item):
    """Index of the slot's item number `item`."""
    if params[f.P_ITEM] == f.WHOLE:
        return slot
    ordinal = item * params[f.P_STRIDE] // params[f.P_BLOCK_STEPS]
    return item_index(params, block_at(segment, params, slot, ordinal), ordinal, item)


@kernel
def indices(segment, params, slot, begin, end):
    """Item indices of the slot's items begin..end-1, int64[end - begin]."""
    out = np.empty(max(0, end - begin), np.int64)
    if end <= begin:
        return out
    if params[f.P_ITEM] == f.WHOLE:
        out[0] = slot
        return out
    blocks = int32s(segment, params, f.R_BLOCKS)
    block = block_at(segment, params, slot, begin * params[f.P_STRIDE] // params[f.P_BLOCK_STEPS])
    item = begin
    while item < end:
        ordinal = np.int64(blocks[block * f.BLOCK_FIELDS + f.ORDINAL])
        stop = min(end, first_item(params, ordinal + 1))
        while item < stop:
            out[item - begin] = item_index(params, block, ordinal, item)
            item += 1
        block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
    return out

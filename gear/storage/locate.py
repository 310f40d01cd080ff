"""Where the rows of drawn items lie and what their ids are; their slots are pinned on the way.

Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s


@kernel
def locate(segment, params, n, pin, ids, starts, lengths):
    """Turn the first n item indices in `starts` into row numbers; give their ids and lengths; pin their slots.

    pin: 1 pins, 0 does not. ids, starts: int64[B]; lengths: int32[B].
    """
    if params[f.P_ITEM] == f.WHOLE:
        _whole(segment, params, n, pin, ids, starts, lengths)
    elif params[f.P_ITEM] == f.STEP:
        _steps(segment, params, n, pin, ids, starts, lengths)
    else:
        _windows(segment, params, n, pin, ids, starts, lengths)


@kernel
def _id_prefix(params):
    return params[f.P_TABLE] << f.ID_TABLE_SHIFT | params[f.P_SHARD] << f.ID_SHARD_SHIFT


@kernel
def _whole(segment, params, n, pin, ids, starts, lengths):
    """Pin the first n slots in `starts`; say where their rows start, how many there are, and their ids."""
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    prefix, row_bits, steps = _id_prefix(params), params[f.P_ROW_BITS], params[f.P_BLOCK_STEPS]
    for k in range(n):
        at = starts[k] * f.SLOT_FIELDS
        block = slots[at + f.FIRST]
        starts[k] = block * steps
        lengths[k] = slots[at + f.LENGTH]
        slots[at + f.PINS] += pin
        ids[k] = prefix | np.int64(blocks[block * f.BLOCK_FIELDS + f.GENERATION]) << row_bits | starts[k]


@kernel
def _steps(segment, params, n, pin, ids, starts, lengths):
    """The same for the first n item indices in `starts`, each a row."""
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    prefix, row_bits, steps = _id_prefix(params), params[f.P_ROW_BITS], np.uint64(params[f.P_BLOCK_STEPS])
    for k in range(n):
        record = np.int64(np.uint64(starts[k]) // steps) * f.BLOCK_FIELDS
        lengths[k] = 1
        if pin:
            slots[blocks[record + f.SLOT] * f.SLOT_FIELDS + f.PINS] += 1
        ids[k] = prefix | np.int64(blocks[record + f.GENERATION]) << row_bits | starts[k]


@kernel
def _windows(segment, params, n, pin, ids, starts, lengths):
    """The same for the first n item indices in `starts`, each a window of rows of one trajectory."""
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    prefix, row_bits, steps = _id_prefix(params), params[f.P_ROW_BITS], params[f.P_BLOCK_STEPS]
    per_block, stride = params[f.P_ITEMS_PER_BLOCK], params[f.P_STRIDE]
    window, head = params[f.P_LENGTH], params[f.P_EDGE] == f.HEAD
    for k in range(n):
        block = starts[k] // per_block
        record = block * f.BLOCK_FIELDS
        at = np.int64(blocks[record + f.SLOT]) * f.SLOT_FIELDS
        base = np.int64(blocks[record + f.ORDINAL]) * steps
        # Undo the division by the stride: the position is the multiple of it that lies there.
        t = base + (starts[k] - block * per_block) * stride
        if stride > 1:
            t += (stride - t % stride) % stride
        row = block * steps + t - base
        starts[k] = row
        if head:
            lengths[k] = min(window, t + 1)
            begin = t + 1 - lengths[k]
            while base > begin:
                block = np.int64(blocks[block * f.BLOCK_FIELDS + f.PREVIOUS])
                base -= steps
            starts[k] = block * steps + begin - base
        else:
            lengths[k] = min(window, slots[at + f.LENGTH] - t)
        slots[at + f.PINS] += pin
        ids[k] = prefix | np.int64(blocks[record + f.GENERATION]) << row_bits | row

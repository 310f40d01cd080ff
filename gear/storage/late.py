"""Late columns: rows that come after the insert, and what their arrival makes drawable.

Only the shard writes them: the bytes come with the message and are put into the trajectory's own blocks, so a client
needs no lease on what others read, and nothing of a client that wakes up too late can do harm. Which columns are there
says a bit per column in the slot's late record; rows are written before their bit is set, and a count beside it
is odd while rows that were there already are being overwritten, so that a reader sees whether they changed under it.
Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import copy, fence, memcpy, memset
from gear.kernels.program import LONGS
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.items import indices
from gear.storage.programs import COMMIT
from gear.storage.publish import join
from gear.storage.sets import head, items_in

# What `find` finds wrong with an entry.
FINE, GROWING, BAD_LENGTH = range(3)


@COMMIT.kernel()
def slot_named(segment, params, name):
    """The slot of the stored trajectory that an id names, whichever of its rows that is of; -1 if it is gone."""
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    row = name & ((np.int64(1) << params[f.P_ROW_BITS]) - 1)
    generation_mask = (np.int64(1) << (f.ID_SHARD_SHIFT - params[f.P_ROW_BITS])) - 1
    prefix = params[f.P_TABLE] << (f.ID_TABLE_SHIFT - f.ID_SHARD_SHIFT) | params[f.P_SHARD]
    block = row // params[f.P_BLOCK_STEPS]
    if name < 0 or name >> f.ID_SHARD_SHIFT != prefix or block >= params[f.P_BLOCKS]:
        return np.int64(-1)
    record = block * f.BLOCK_FIELDS
    slot = np.int64(blocks[record + f.SLOT])
    if slot < 0 or blocks[record + f.GENERATION] != (name >> params[f.P_ROW_BITS]) & generation_mask:
        return np.int64(-1)
    state = slots[slot * f.SLOT_FIELDS + f.STATE]
    return slot if state == f.OPEN or state == f.CLOSED else np.int64(-1)


@COMMIT.kernel(ids=LONGS, lengths=LONGS, found=LONGS)
def find(segment, params, ids, lengths, found):
    """The slots (int64[N]) that ids name, -1 for stale ones; lengths: rows that came for each, -1 if none are due.

    Returns (fault, entry, rows of its trajectory).
    """
    slots = int64s(segment, params, f.R_SLOTS)
    for k in range(ids.shape[0]):
        slot = slot_named(segment, params, ids[k])
        found[k] = slot
        if slot < 0:
            continue
        at = slot * f.SLOT_FIELDS
        if slots[at + f.STATE] != f.CLOSED:
            return GROWING, k, slots[at + f.LENGTH]
        if lengths[k] >= 0 and lengths[k] != slots[at + f.LENGTH]:
            return BAD_LENGTH, k, slots[at + f.LENGTH]
    return FINE, 0, 0


@COMMIT.kernel(found=LONGS)
def begin(segment, params, found):
    """Rows of these slots are about to change. A slot may come twice."""
    late = int64s(segment, params, f.R_LATE)
    for k in range(found.shape[0]):
        if found[k] >= 0:
            late[found[k] * f.LATE_FIELDS + f.LATE_CHANGES] |= 1
    fence()


@COMMIT.kernel(found=LONGS, lengths=LONGS)
def write_steps(segment, params, found, lengths, first, offset, stride, width, source):
    """Write the rows of a per-step column, from row `first` of each trajectory on.

    found: int64[N], slots, -1 to leave the rows out; lengths: int64[N]; source: address of the rows of all, one
    trajectory behind the other. A final row that is there already becomes zero in this column.
    """
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    steps, block_bytes = params[f.P_BLOCK_STEPS], params[f.P_BLOCK_BYTES]
    arena = segment.ctypes.data + params[f.R_ARENA] + offset
    for k in range(found.shape[0]):
        rows = lengths[k]
        if found[k] < 0:
            source += rows * width
            continue
        at = found[k] * f.SLOT_FIELDS
        block, row = slots[at + f.FIRST], first
        if first >= steps:
            block, row = (
                slots[at + f.LAST],
                first - steps * np.int64(blocks[slots[at + f.LAST] * f.BLOCK_FIELDS + f.ORDINAL]),
            )
            while row < 0:
                block = np.int64(blocks[block * f.BLOCK_FIELDS + f.PREVIOUS])
                row += steps
        while rows > 0:
            part, to = min(rows, steps - row), arena + block * block_bytes + row * stride
            if stride == width:
                memcpy(to, source, part * width)
            else:
                for i in range(part):
                    copy(to + i * stride, source + i * width, width)
            source += part * width
            rows -= part
            row += part
            if row < steps:
                continue
            row = 0
            block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
        if slots[at + f.FLAGS] & f.HAS_FINAL:
            memset(arena + block * block_bytes + row * stride, 0, width)


@COMMIT.kernel(found=LONGS)
def write_values(segment, params, found, offset, stride, width, source):
    """Write one row each of a per-trajectory column."""
    base = segment.ctypes.data + params[f.R_TRAJECTORIES] + offset
    for k in range(found.shape[0]):
        if found[k] >= 0:
            copy(base + found[k] * stride, source + k * width, width)


@COMMIT.kernel(found=LONGS)
def complete(segment, params, found, bits):
    """The late columns `bits` of these slots are written: items enter the sets that wanted just them."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    late = int64s(segment, params, f.R_LATE)
    fence()
    for k in range(found.shape[0]):
        slot = found[k]
        if slot < 0:
            counters[f.STALE_FILLS] += 1
            continue
        counters[f.FILLED] += 1
        late[slot * f.LATE_FIELDS + f.LATE_CHANGES] = (late[slot * f.LATE_FIELDS + f.LATE_CHANGES] | 1) + 1
        at = slot * f.LATE_FIELDS + f.LATE_BITS
        there = late[at]
        late[at] = there | bits
        n = slots[slot * f.SLOT_FIELDS + f.ITEMS]
        for s in range(1, params[f.P_SETS]):
            line = head(params, s)
            needs = line[f.P_NEEDS]
            if needs != 0 and there & needs != needs and items_in(segment, line, slot) > 0:
                join(segment, params, line, slot, indices(segment, params, slot, 0, n))

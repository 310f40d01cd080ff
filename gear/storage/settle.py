"""After a draw: pins released, credit and uses spent or returned, priorities updated by id.

One compiled call per batch. Single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import prefetch
from gear.kernels.program import FLAG, FLOATS, LONGS, SHORTS
from gear.selection import distinct
from gear.selection.prioritized import refused
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.evict import evict, unpin
from gear.storage.items import item_of
from gear.storage.passing import forgive
from gear.storage.programs import COMMIT, DRAW
from gear.storage.publish import reweigh
from gear.storage.remover import by_priority, weigh
from gear.storage.sampler import is_heap
from gear.storage.sets import head
from gear.storage.uses import give_back, unuse


@COMMIT.kernel(ids=LONGS)
def release(segment, params, ids):
    """End the pins of a settled draw."""
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    mask, steps = (np.int64(1) << params[f.P_ROW_BITS]) - 1, params[f.P_BLOCK_STEPS]
    for k in range(ids.shape[0]):
        slot = np.int64(blocks[(ids[k] & mask) // steps * f.BLOCK_FIELDS + f.SLOT])
        at = slot * f.SLOT_FIELDS
        if slots[at + f.PINS] == 1 and slots[at + f.STATE] == f.EVICTED:
            unpin(segment, params, slot)
        else:
            slots[at + f.PINS] -= 1


@COMMIT.kernel(pinned=SHORTS)
def release_slots(segment, params, pinned):
    """End a pin of each of the slots."""
    slots = int64s(segment, params, f.R_SLOTS)
    for k in range(pinned.shape[0]):
        at = pinned[k] * f.SLOT_FIELDS
        if slots[at + f.PINS] == 1 and slots[at + f.STATE] == f.EVICTED:
            unpin(segment, params, np.int64(pinned[k]))
        else:
            slots[at + f.PINS] -= 1


@DRAW.kernel(ids=LONGS, delivered=FLAG)
def settle(segment, params, which, ids, delivered):
    """Spend the credit and uses of pinned items drawn from set number `which`, or return both."""
    counters = int64s(segment, params, f.R_COUNTERS)
    counters[f.RESERVED_ITEMS] -= ids.shape[0]
    if delivered:
        counters[f.SAMPLED_ITEMS] += ids.shape[0]
    if delivered and params[f.P_MAX_TIMES] == 0:
        return
    if params[f.P_MAX_TIMES] == 0 and params[f.P_SAMPLER] != f.EPOCHS and params[f.P_MAX_STALENESS] < 0:
        return
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    times = int32s(segment, params, f.R_TIMES)
    mask = (np.int64(1) << params[f.P_ROW_BITS]) - 1
    for k in range(ids.shape[0]):
        row = ids[k] & mask
        block = row // params[f.P_BLOCK_STEPS]
        slot = np.int64(blocks[block * f.BLOCK_FIELDS + f.SLOT])
        at = slot * f.SLOT_FIELDS
        item = item_of(params, blocks, block, row)
        stored = slots[at + f.STATE] == f.OPEN or slots[at + f.STATE] == f.CLOSED
        if not stored:
            if not delivered and slots[at + f.FLAGS] & f.STALE_NOW:
                if params[f.P_MAX_TIMES] > 0:
                    times[2 * item] -= 1
                if params[f.P_MAX_TIMES] == 0 or times[2 * item] == 0:
                    forgive(segment, params, 1)
            continue
        if delivered:
            times[2 * item + 1] += 1
            if times[2 * item + 1] >= params[f.P_MAX_TIMES]:
                slots[at + f.GONE] += 1
                counters[f.ITEM_COUNT] -= 1
                counters[f.DELETED_ITEMS] += 1
                if slots[at + f.STATE] == f.CLOSED and slots[at + f.GONE] == slots[at + f.ITEMS]:
                    evict(segment, params, slot, True)
            continue
        if params[f.P_MAX_TIMES] > 0:
            times[2 * item] -= 1
            if times[2 * item] == params[f.P_MAX_TIMES] - 1:  # it was out of the draws and comes back
                unuse(segment, params, item)
                continue
        give_back(segment, head(params, which), item)


@COMMIT.kernel(ids=LONGS, priorities=FLOATS)
def update(segment, params, ids, priorities):
    """Set raw priorities by id, all or nothing; of duplicates the last wins.

    Returns (applied, -1) or (0, index of the first refused priority).
    """
    bad = refused(priorities)
    if bad >= 0:
        return 0, bad
    counters = int64s(segment, params, f.R_COUNTERS)
    floats = float64s(segment, params, f.R_FLOATS)
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    raw = float64s(segment, params, f.R_RAW)
    in_heap = is_heap(params)
    times = int32s(segment, params, f.R_TIMES)
    row_mask, steps, stride = (np.int64(1) << params[f.P_ROW_BITS]) - 1, params[f.P_BLOCK_STEPS], params[f.P_STRIDE]
    generation_mask = (np.int64(1) << (f.ID_SHARD_SHIFT - params[f.P_ROW_BITS])) - 1
    prefix = params[f.P_TABLE] << (f.ID_TABLE_SHIFT - f.ID_SHARD_SHIFT) | params[f.P_SHARD]
    items = np.empty(ids.shape[0], np.int64)
    values = np.empty(ids.shape[0])
    touched = np.empty(ids.shape[0], np.int64)
    n, applied, n_touched = 0, 0, 0
    seen = distinct.room(ids.shape[0] if by_priority(params) else 0)
    for k in range(ids.shape[0]):  # records lie anywhere: they come while others are asked for
        prefetch(blocks.ctypes.data + 4 * f.BLOCK_FIELDS * np.int64(np.uint64(ids[k] & row_mask) // np.uint64(steps)))
    largest = floats[f.MAX_PRIORITY]
    for k in range(ids.shape[0]):
        row = ids[k] & row_mask
        block = np.int64(np.uint64(row) // np.uint64(steps))
        if ids[k] < 0 or ids[k] >> f.ID_SHARD_SHIFT != prefix or block >= params[f.P_BLOCKS]:
            continue
        record = block * f.BLOCK_FIELDS
        slot = np.int64(blocks[record + f.SLOT])
        if slot < 0 or blocks[record + f.GENERATION] != (ids[k] >> params[f.P_ROW_BITS]) & generation_mask:
            continue
        at = slot * f.SLOT_FIELDS
        if slots[at + f.STATE] != f.OPEN and slots[at + f.STATE] != f.CLOSED:
            continue
        t = np.int64(blocks[record + f.ORDINAL]) * steps + row - block * steps
        if params[f.P_ITEM] == f.WHOLE:
            if t != 0:
                continue
        elif stride == 1:  # divisions are dear
            if t >= slots[at + f.ITEMS]:
                continue
        elif t % stride != 0 or t // stride >= slots[at + f.ITEMS]:
            continue
        item = item_of(params, blocks, block, row)
        applied += 1
        largest = max(largest, priorities[k])
        if by_priority(params) and slots[at + f.STATE] == f.CLOSED and distinct.is_new(seen, slot):
            touched[n_touched] = slot
            n_touched += 1
        spent = times.shape[0] > 0 and times[2 * item] >= params[f.P_MAX_TIMES]
        if raw.shape[0] > 0 and (spent or not in_heap):  # the keys of a heap change one by one, with their places
            raw[item] = priorities[k]
        if not spent:
            items[n], values[n] = item, priorities[k]
            n += 1
    floats[f.MAX_PRIORITY] = largest
    reweigh(segment, params, items[:n], values[:n])
    for k in range(n_touched):
        weigh(segment, params, touched[k])
    counters[f.UPDATED] += applied
    counters[f.STALE] += ids.shape[0] - applied
    return applied, -1

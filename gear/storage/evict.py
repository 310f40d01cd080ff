"""Eviction: a trajectory leaves the table at once, its blocks when the last reader has let go.

Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.host import random_bits, tree_draw, tree_total
from gear.selection import uniform
from gear.storage import fields as f
from gear.storage.blocks import free_block, free_slot
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.items import take_from_remover, withdraw

REMOVER_STREAM = 0x5DEECE66D
"""Keeps the remover's random numbers apart from the sampler's, which share the table's seed."""


@kernel
def free_chain(segment, params, slot):
    """Return the slot and all its blocks to the allocator."""
    counters = int64s(segment, params, f.R_COUNTERS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    ring = int32s(segment, params, f.R_FREE_BLOCKS)
    block = slots[slot * f.SLOT_FIELDS + f.FIRST]
    while block >= 0:
        following = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
        free_block(counters, blocks, ring, params, block)
        block = following
    free_slot(counters, slots, int32s(segment, params, f.R_FREE_SLOTS), params, slot)


@kernel
def evict(segment, params, slot, consumed):
    """Take a published slot out of the table; `consumed`: its items are used up, it is not driven out."""
    counters = int64s(segment, params, f.R_COUNTERS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    withdraw(segment, params, slot)
    if slots[at + f.STATE] == f.CLOSED:
        take_from_remover(segment, params, slot)
    older, newer = slots[at + f.OLDER], slots[at + f.NEWER]
    if older >= 0:
        slots[older * f.SLOT_FIELDS + f.NEWER] = newer
    else:
        counters[f.OLDEST] = newer
    if newer >= 0:
        slots[newer * f.SLOT_FIELDS + f.OLDER] = older
    else:
        counters[f.NEWEST] = older
    chain, block = 0, slots[at + f.FIRST]
    while block >= 0:
        chain += 1
        block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
    slots[at + f.STATE] = f.EVICTED
    counters[f.STORED] -= 1
    counters[f.STORED_STEPS] -= slots[at + f.LENGTH]
    counters[f.USED_BLOCKS] -= chain
    counters[f.USED_SLOTS] -= 1
    left = slots[at + f.ITEMS] - slots[at + f.GONE]
    counters[f.ITEM_COUNT] -= left
    counters[f.DELETED_ITEMS] += left
    if consumed:
        counters[f.CONSUMED] += 1
    else:
        counters[f.EVICTED_COUNT] += 1
        counters[f.EVICTED_STEPS] += slots[at + f.LENGTH]
    if slots[at + f.PINS] == 0:
        free_chain(segment, params, slot)
    else:
        slots[at + f.CURSOR] = chain
        counters[f.HELD_BLOCKS] += chain
        counters[f.HELD_SLOTS] += 1


@kernel
def unpin(segment, params, slot):
    """One reader (or the writer) of the slot lets go; the last one frees what was evicted."""
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    slots[at + f.PINS] -= 1
    if slots[at + f.PINS] == 0 and slots[at + f.STATE] == f.EVICTED:
        counters = int64s(segment, params, f.R_COUNTERS)
        counters[f.HELD_BLOCKS] -= slots[at + f.CURSOR]
        counters[f.HELD_SLOTS] -= 1
        free_chain(segment, params, slot)


@kernel
def victim(segment, params, keep):
    """The slot that leaves next, -1 if there is none but `keep`.

    The remover chooses among closed slots; only when none is left an open trajectory goes, the oldest
    first, so that a silent writer can not fill the table for ever.
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    seed = params[f.P_SEED] ^ REMOVER_STREAM
    if params[f.P_REMOVER] == f.UNIFORM and counters[f.REMOVER_LIVE] > 0:
        draw = counters[f.REMOVER_DRAWS]
        counters[f.REMOVER_DRAWS] += 1
        return np.int64(
            int64s(segment, params, f.R_REMOVER_LIVE)[uniform.below(seed, draw, 0, counters[f.REMOVER_LIVE])]
            & uniform.UNIT
        )
    if params[f.P_REMOVER] == f.PRIORITIZED:
        tree = float64s(segment, params, f.R_REMOVER_TREE)
        starts = int64s(segment, params, f.R_REMOVER_STARTS)
        total = tree_total(tree, starts)
        if total > 0.0:
            draw = counters[f.REMOVER_DRAWS]
            counters[f.REMOVER_DRAWS] += 1
            masses = np.empty(1)
            items = np.empty(1, np.int64)
            masses[0] = float(random_bits(seed, draw, 0) >> np.uint64(11)) * (1.0 / 9007199254740992.0) * total
            tree_draw(tree, starts, masses, items)
            if items[0] >= 0:
                return items[0]
    slot = counters[f.OLDEST]
    while slot >= 0 and slots[slot * f.SLOT_FIELDS + f.STATE] != f.CLOSED:
        slot = slots[slot * f.SLOT_FIELDS + f.NEWER]
    if slot >= 0:
        return slot
    slot = counters[f.OLDEST]
    while slot == keep and slot >= 0:
        slot = slots[slot * f.SLOT_FIELDS + f.NEWER]
    return slot

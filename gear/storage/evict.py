"""Eviction: a trajectory leaves the table at once, its blocks when the last reader has let go.

Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.host import random_bits, tree_draw, tree_total
from gear.selection import uniform
from gear.storage.blocks import free_block, free_slot
from gear.storage.directory import (
    CONSUMED,
    DELETED_ITEMS,
    EVICTED_COUNT,
    EVICTED_STEPS,
    HELD_BLOCKS,
    HELD_SLOTS,
    ITEM_COUNT,
    NEWEST,
    OLDEST,
    P_REMOVER,
    P_SEED,
    R_BLOCKS,
    R_COUNTERS,
    R_FREE_BLOCKS,
    R_FREE_SLOTS,
    R_REMOVER_LIVE,
    R_REMOVER_STARTS,
    R_REMOVER_TREE,
    R_SLOTS,
    REMOVER_DRAWS,
    REMOVER_LIVE,
    STORED,
    STORED_STEPS,
    USED_BLOCKS,
    USED_SLOTS,
    float64s,
    int32s,
    int64s,
)
from gear.storage.items import take_from_remover, withdraw
from gear.storage.layout import (
    BLOCK_FIELDS,
    CLOSED,
    CURSOR,
    EVICTED,
    FIRST,
    GONE,
    ITEMS,
    LENGTH,
    NEWER,
    NEXT,
    OLDER,
    PINS,
    PRIORITIZED,
    SLOT_FIELDS,
    STATE,
    UNIFORM,
)

REMOVER_STREAM = 0x5DEECE66D
"""Keeps the remover's random numbers apart from the sampler's, which share the table's seed."""


@kernel
def free_chain(segment, params, slot):
    """Return the slot and all its blocks to the allocator."""
    counters = int64s(segment, params, R_COUNTERS)
    blocks = int32s(segment, params, R_BLOCKS)
    slots = int64s(segment, params, R_SLOTS)
    ring = int32s(segment, params, R_FREE_BLOCKS)
    block = slots[slot * SLOT_FIELDS + FIRST]
    while block >= 0:
        following = np.int64(blocks[block * BLOCK_FIELDS + NEXT])
        free_block(counters, blocks, ring, params, block)
        block = following
    free_slot(counters, slots, int32s(segment, params, R_FREE_SLOTS), params, slot)


@kernel
def evict(segment, params, slot, consumed):
    """Take a published slot out of the table; `consumed`: its items are used up, it is not driven out."""
    counters = int64s(segment, params, R_COUNTERS)
    blocks = int32s(segment, params, R_BLOCKS)
    slots = int64s(segment, params, R_SLOTS)
    at = slot * SLOT_FIELDS
    withdraw(segment, params, slot)
    if slots[at + STATE] == CLOSED:
        take_from_remover(segment, params, slot)
    older, newer = slots[at + OLDER], slots[at + NEWER]
    if older >= 0:
        slots[older * SLOT_FIELDS + NEWER] = newer
    else:
        counters[OLDEST] = newer
    if newer >= 0:
        slots[newer * SLOT_FIELDS + OLDER] = older
    else:
        counters[NEWEST] = older
    chain, block = 0, slots[at + FIRST]
    while block >= 0:
        chain += 1
        block = np.int64(blocks[block * BLOCK_FIELDS + NEXT])
    slots[at + STATE] = EVICTED
    counters[STORED] -= 1
    counters[STORED_STEPS] -= slots[at + LENGTH]
    counters[USED_BLOCKS] -= chain
    counters[USED_SLOTS] -= 1
    left = slots[at + ITEMS] - slots[at + GONE]
    counters[ITEM_COUNT] -= left
    counters[DELETED_ITEMS] += left
    if consumed:
        counters[CONSUMED] += 1
    else:
        counters[EVICTED_COUNT] += 1
        counters[EVICTED_STEPS] += slots[at + LENGTH]
    if slots[at + PINS] == 0:
        free_chain(segment, params, slot)
    else:
        slots[at + CURSOR] = chain
        counters[HELD_BLOCKS] += chain
        counters[HELD_SLOTS] += 1


@kernel
def unpin(segment, params, slot):
    """One reader (or the writer) of the slot lets go; the last one frees what was evicted."""
    slots = int64s(segment, params, R_SLOTS)
    at = slot * SLOT_FIELDS
    slots[at + PINS] -= 1
    if slots[at + PINS] == 0 and slots[at + STATE] == EVICTED:
        counters = int64s(segment, params, R_COUNTERS)
        counters[HELD_BLOCKS] -= slots[at + CURSOR]
        counters[HELD_SLOTS] -= 1
        free_chain(segment, params, slot)


@kernel
def victim(segment, params, keep):
    """The slot that leaves next, -1 if there is none but `keep`.

    The remover chooses among closed slots; only when none is left an open trajectory goes, the oldest
    first, so that a silent writer can not fill the table for ever.
    """
    counters = int64s(segment, params, R_COUNTERS)
    slots = int64s(segment, params, R_SLOTS)
    seed = params[P_SEED] ^ REMOVER_STREAM
    if params[P_REMOVER] == UNIFORM and counters[REMOVER_LIVE] > 0:
        draw = counters[REMOVER_DRAWS]
        counters[REMOVER_DRAWS] += 1
        return np.int64(int32s(segment, params, R_REMOVER_LIVE)[uniform.below(seed, draw, 0, counters[REMOVER_LIVE])])
    if params[P_REMOVER] == PRIORITIZED:
        tree = float64s(segment, params, R_REMOVER_TREE)
        starts = int64s(segment, params, R_REMOVER_STARTS)
        total = tree_total(tree, starts)
        if total > 0.0:
            draw = counters[REMOVER_DRAWS]
            counters[REMOVER_DRAWS] += 1
            masses = np.empty(1)
            items = np.empty(1, np.int64)
            masses[0] = float(random_bits(seed, draw, 0) >> np.uint64(11)) * (1.0 / 9007199254740992.0) * total
            tree_draw(tree, starts, masses, items)
            if items[0] >= 0:
                return items[0]
    slot = counters[OLDEST]
    while slot >= 0 and slots[slot * SLOT_FIELDS + STATE] != CLOSED:
        slot = slots[slot * SLOT_FIELDS + NEWER]
    if slot >= 0:
        return slot
    slot = counters[OLDEST]
    while slot == keep and slot >= 0:
        slot = slots[slot * SLOT_FIELDS + NEWER]
    return slot

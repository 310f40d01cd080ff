"""Eviction: a trajectory leaves the table at once, its blocks when the last reader has let go.

Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.program import FLAG
from gear.storage import fields as f
from gear.storage.blocks import free_block, free_slot
from gear.storage.directory import int32s, int64s
from gear.storage.mates import part
from gear.storage.programs import COMMIT
from gear.storage.publish import withdraw
from gear.storage.remover import take_from_remover
from gear.storage.seams import part_pieces


@kernel
def free_chain(segment, params, slot):
    """Return the slot and all its blocks to the allocator."""
    counters = int64s(segment, params, f.R_COUNTERS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    ring = int32s(segment, params, f.R_FREE_BLOCKS)
    part_pieces(segment, params, slot)
    block = slots[slot * f.SLOT_FIELDS + f.FIRST]
    while block >= 0:
        following = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
        free_block(counters, blocks, ring, params, block)
        block = following
    free_slot(counters, slots, int32s(segment, params, f.R_FREE_SLOTS), params, slot)


@COMMIT.kernel(consumed=FLAG)
def evict(segment, params, slot, consumed):
    """Take a published slot out of the table; `consumed`: its items are used up, it is not driven out."""
    counters = int64s(segment, params, f.R_COUNTERS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    withdraw(segment, params, slot)
    if params[f.P_GROUPED] > 0:
        part(segment, params, slot)
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
def drive_out(segment, params, slot):
    """Evict what the remover chose, and the others of its group."""
    if params[f.P_GROUPED] > 0:
        mates = int32s(segment, params, f.R_MATES)
        while mates[slot] != slot:
            evict(segment, params, np.int64(mates[slot]), False)
    evict(segment, params, slot, False)


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

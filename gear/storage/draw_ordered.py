"""Draws in an order: the oldest or the newest item first, or the one with the largest or the smallest priority.

The first in order is drawn as often as it may be; then, or where a batch holds no item twice, the next. Each
fills ``items``: int64[B] with item indices and returns how many it drew. `line` is the head of the set that is drawn
from, `params` are those of the table. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.items import item_index
from gear.storage.sampler import list_slot, unlist_slot
from gear.storage.sets import items_in
from gear.storage.uses import exhaust, restore, use


@kernel
def _enter(segment, params, slot):
    """(number, block) at which the items of a slot that can be drawn begin, in the order of the sampler."""
    at = slot * f.SLOT_FIELDS
    slots = int64s(segment, params, f.R_SLOTS)
    lifo = params[f.P_SAMPLER] == f.LIFO
    if slot < 0:
        return np.int64(0), np.int64(-1)
    if params[f.P_MAX_TIMES] > 0:
        return slots[at + f.CURSOR] - (1 if lifo else 0), slots[at + f.CURSOR_BLOCK]
    if lifo:
        return items_in(segment, params, slot) - 1, slots[at + f.LAST]
    return np.int64(0), slots[at + f.FIRST]


@kernel
def _item(segment, params, slot, number, block):
    """(index of the slot's item `number`, the block it lies in), looked for from `block` on."""
    if params[f.P_ITEM] == f.WHOLE:
        return slot, block
    blocks = int32s(segment, params, f.R_BLOCKS)
    ordinal = number * params[f.P_STRIDE] // params[f.P_BLOCK_STEPS]
    while blocks[block * f.BLOCK_FIELDS + f.ORDINAL] < ordinal:
        block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
    while blocks[block * f.BLOCK_FIELDS + f.ORDINAL] > ordinal:
        block = np.int64(blocks[block * f.BLOCK_FIELDS + f.PREVIOUS])
    return item_index(params, block, ordinal, number), block


@kernel
def _next_of(segment, params, slot, number, block):
    """The first item of `slot` that can be drawn, from item `number` on: (number, block, item), item -1 if none.

    Used-up items at the slot's cursor move it, so that each is passed over once.
    """
    slots = int64s(segment, params, f.R_SLOTS)
    times = int32s(segment, params, f.R_TIMES)
    lifo, limited = params[f.P_SAMPLER] == f.LIFO, params[f.P_MAX_TIMES] > 0
    at, n = slot * f.SLOT_FIELDS, items_in(segment, params, slot)
    while 0 <= number < n:
        item, block = _item(segment, params, slot, number, block)
        if not limited or times[2 * item] < params[f.P_MAX_TIMES]:
            return number, block, item
        if lifo and slots[at + f.CURSOR] == number + 1:
            slots[at + f.CURSOR], slots[at + f.CURSOR_BLOCK] = number, block
        elif not lifo and slots[at + f.CURSOR] == number:
            slots[at + f.CURSOR], slots[at + f.CURSOR_BLOCK] = number + 1, block
        number += -1 if lifo else 1
    return number, block, np.int64(-1)


@kernel
def _next(segment, params, slot, number, block):
    """The same along the chain of slots, from `slot` on: (slot, number, block, item), slot -1 if there is none."""
    slots = int64s(segment, params, f.R_SLOTS)
    while slot >= 0:
        number, block, item = _next_of(segment, params, slot, number, block)
        if item >= 0:
            return slot, number, block, item
        slot = slots[slot * f.SLOT_FIELDS + (f.OLDER if params[f.P_SAMPLER] == f.LIFO else f.NEWER)]
        number, block = _enter(segment, params, slot)
    return slot, number, block, np.int64(-1)


@kernel
def draw_line(segment, params, size, items):
    """The oldest item first, or the newest."""
    lifo = params[f.P_SAMPLER] == f.LIFO
    slot = int64s(segment, params, f.R_COUNTERS)[f.NEWEST if lifo else f.OLDEST]
    number, block = _enter(segment, params, slot)
    n = 0
    while n < size:
        slot, number, block, item = _next(segment, params, slot, number, block)
        if slot < 0:
            break
        items[n] = item
        n += 1
        if params[f.P_MAX_TIMES] > 0:
            use(segment, params, items[n - 1 : n])
        if params[f.P_DISTINCT] != 0:
            number += -1 if lifo else 1
    return n


@kernel
def draw_slots(segment, params, line, size, items):
    """The first item of the first slot in the heap of slots; of a slot whose items are all drawn the next one is."""
    counters = int64s(segment, line, f.R_COUNTERS)
    heap = int64s(segment, line, f.R_LIVE)
    limited, no_item_twice = params[f.P_MAX_TIMES] > 0, params[f.P_DISTINCT] != 0
    passed = np.empty(size if no_item_twice else 0, np.int64)  # slots to put back
    n = back = 0
    while n < size and counters[f.LIVE_UNITS] > 0 and (no_item_twice or counters[f.LIVE_ITEMS] > 0):
        slot = heap[0]
        number, block = _enter(segment, line, slot)
        drawn = n
        while n < size:
            number, block, item = _next_of(segment, line, slot, number, block)
            if item < 0:
                break
            items[n] = item
            n += 1
            if limited:
                use(segment, params, items[n - 1 : n])
            if no_item_twice:
                number += -1 if line[f.P_SAMPLER] == f.LIFO else 1
        if n < size:
            unlist_slot(segment, line, slot)  # its items are used up, or all in the batch
            if no_item_twice and n > drawn:
                passed[back] = slot
                back += 1
    for k in range(back):
        list_slot(segment, line, passed[k])
    return n


@kernel
def draw_heap(segment, params, line, size, items):
    """The item with the largest priority first, or the smallest."""
    counters = int64s(segment, line, f.R_COUNTERS)
    heap = int64s(segment, line, f.R_LIVE)
    limited, no_item_twice = params[f.P_MAX_TIMES] > 0, params[f.P_DISTINCT] != 0
    n = 0
    while n < size and counters[f.LIVE_ITEMS] > 0:
        items[n] = heap[0]
        n += 1
        if no_item_twice:
            exhaust(segment, line, items[n - 1])
        elif limited:
            use(segment, params, items[n - 1 : n])
    if no_item_twice:
        for k in range(n):
            restore(segment, line, items[k])
        if limited:
            use(segment, params, items[:n])
    return n

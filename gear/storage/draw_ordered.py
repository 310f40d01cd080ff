"""Draws in an order: the oldest or the newest item first, or the one with the largest or the smallest priority.

The first in order is drawn as often as it may be; then, or where a batch holds no item twice, the next. Each
fills ``items``: int64[B] with item indices and returns how many it drew. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.items import item_index
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
        return slots[at + f.ITEMS] - 1, slots[at + f.LAST]
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
def _next(segment, params, slot, number, block):
    """The first item that can be drawn, from item `number` of `slot` on: (slot, number, block, item), slot -1 if none.

    Used-up items at a slot's cursor move it, so that each is passed over once.
    """
    slots = int64s(segment, params, f.R_SLOTS)
    times = int32s(segment, params, f.R_TIMES)
    lifo, limited = params[f.P_SAMPLER] == f.LIFO, params[f.P_MAX_TIMES] > 0
    while slot >= 0:
        at = slot * f.SLOT_FIELDS
        while 0 <= number < slots[at + f.ITEMS]:
            item, block = _item(segment, params, slot, number, block)
            if not limited or times[2 * item] < params[f.P_MAX_TIMES]:
                return slot, number, block, item
            if lifo and slots[at + f.CURSOR] == number + 1:
                slots[at + f.CURSOR], slots[at + f.CURSOR_BLOCK] = number, block
            elif not lifo and slots[at + f.CURSOR] == number:
                slots[at + f.CURSOR], slots[at + f.CURSOR_BLOCK] = number + 1, block
            number += -1 if lifo else 1
        slot = slots[at + (f.OLDER if lifo else f.NEWER)]
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
def draw_heap(segment, params, size, items):
    """The item with the largest priority first, or the smallest."""
    counters = int64s(segment, params, f.R_COUNTERS)
    heap = int64s(segment, params, f.R_LIVE)
    limited, no_item_twice = params[f.P_MAX_TIMES] > 0, params[f.P_DISTINCT] != 0
    n = 0
    while n < size and counters[f.LIVE_ITEMS] > 0:
        items[n] = heap[0]
        n += 1
        if no_item_twice:
            exhaust(segment, params, items[n - 1])
        elif limited:
            use(segment, params, items[n - 1 : n])
    if no_item_twice:
        for k in range(n):
            restore(segment, params, items[k])
        if limited:
            use(segment, params, items[:n])
    return n

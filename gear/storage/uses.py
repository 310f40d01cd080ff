"""What a draw takes from the sampler and what comes back: items used up, given back, drawable again.

Of each item ``times`` holds how often it was handed out and how often it was delivered, where
`max_times_sampled` limits that. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.selection import epochs
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.items import slot_of
from gear.storage.sampler import (
    add_uniform,
    into_heap,
    is_heap,
    leave_list,
    list_slot,
    listed,
    no_mass,
    set_priorities,
    take_uniform,
    unit_of,
)
from gear.storage.sets import head, items_in


@kernel
def use(segment, params, items):
    """Hand the items (int64[N], indices) out once each; those used up by that can not be drawn again."""
    times = int32s(segment, params, f.R_TIMES)
    for k in range(items.shape[0]):
        times[2 * items[k]] += 1
        if times[2 * items[k]] == params[f.P_MAX_TIMES]:
            exhaust(segment, params, items[k])
            for s in range(1, params[f.P_SETS]):
                line = head(params, s)
                if items_in(segment, line, slot_of(segment, params, items[k])) > 0:
                    exhaust(segment, line, items[k])


@kernel
def unuse(segment, params, item):
    """An item that was used up can be drawn again, from every set that it belongs to."""
    restore(segment, params, item)
    for s in range(1, params[f.P_SETS]):
        line = head(params, s)
        if items_in(segment, line, slot_of(segment, params, item)) > 0:
            restore(segment, line, item)


@kernel
def exhaust(segment, params, item):
    """An item can not be drawn from a set for now: it is used up, or already in a batch that holds no item twice."""
    sampler = params[f.P_SAMPLER]
    if sampler == f.UNIFORM:
        take_uniform(segment, params, unit_of(segment, params, item), 1)
    elif sampler == f.FIFO or sampler == f.LIFO or sampler == f.FRESH:
        int64s(segment, params, f.R_COUNTERS)[f.LIVE_ITEMS] -= 1
    else:
        one = np.empty(1, np.int64)
        one[0] = item
        if sampler == f.PRIORITIZED:
            no_mass(segment, params, one)
        else:
            leave_list(segment, params, one)


@kernel
def restore(segment, params, item):
    """An item that could not be drawn from a set can be drawn again, by its old priority and in its old place."""
    sampler = params[f.P_SAMPLER]
    counters = int64s(segment, params, f.R_COUNTERS)
    if sampler == f.UNIFORM:
        add_uniform(segment, params, unit_of(segment, params, item), 1)
    elif sampler == f.PRIORITIZED:
        one, value = np.empty(1, np.int64), np.empty(1)
        one[0], value[0] = item, float64s(segment, params, f.R_RAW)[item]
        set_priorities(segment, params, one, value)
    elif sampler == f.EPOCHS:
        live = int64s(segment, params, f.R_LIVE)
        position = int32s(segment, params, f.R_POSITION)
        counters[f.LIVE_ITEMS] = epochs.add(live, position, counters[f.LIVE_ITEMS], item)
    elif is_heap(params):
        into_heap(segment, params, item)
    else:
        counters[f.LIVE_ITEMS] += 1
        _move_cursor_back(segment, params, item)
        if params[f.P_BY_SLOT] != 0:
            list_slot(segment, params, slot_of(segment, params, item))


@kernel
def _move_cursor_back(segment, params, item):
    """The cursor of an item's slot passes over nothing that can be drawn."""
    slots = int64s(segment, params, f.R_SLOTS)
    slot, number, block = item, np.int64(0), slots[item * f.SLOT_FIELDS + f.FIRST] if params[f.P_ITEM] == f.WHOLE else 0
    if params[f.P_ITEM] != f.WHOLE:
        blocks = int32s(segment, params, f.R_BLOCKS)
        block = item // params[f.P_ITEMS_PER_BLOCK]
        slot = np.int64(blocks[block * f.BLOCK_FIELDS + f.SLOT])
        begin = np.int64(blocks[block * f.BLOCK_FIELDS + f.ORDINAL]) * params[f.P_BLOCK_STEPS]
        stride = params[f.P_STRIDE]
        number = (begin + (item - block * params[f.P_ITEMS_PER_BLOCK]) * stride + stride - 1) // stride
    at = slot * f.SLOT_FIELDS
    if params[f.P_SAMPLER] != f.LIFO:
        if number < slots[at + f.CURSOR]:
            slots[at + f.CURSOR], slots[at + f.CURSOR_BLOCK] = number, block
    elif number + 1 > slots[at + f.CURSOR]:
        slots[at + f.CURSOR], slots[at + f.CURSOR_BLOCK] = number + 1, block


@kernel
def give_back(segment, params, item):
    """An item was drawn from a set and not delivered: it is drawn again in its running epoch."""
    if params[f.P_SAMPLER] == f.EPOCHS:
        counters = int64s(segment, params, f.R_COUNTERS)
        live = int64s(segment, params, f.R_LIVE)
        position = int32s(segment, params, f.R_POSITION)
        if listed(segment, params, item):
            counters[f.EPOCH_DRAWN] = epochs.give_back(live, position, counters[f.EPOCH_DRAWN], item)

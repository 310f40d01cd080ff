"""The sampler's structure of one set of items: what enters it and leaves it.

Each sampler keeps what it draws from: a list of units (uniform), a sum tree (prioritized), a heap, a shuffled list
(epochs), a heap of slots (fresh; fifo and lifo beside set 0), or nothing but the chain of slots (fifo, lifo).
`params` is the head of one set here, of which only the counters of its structure are changed. `publish` goes over all
sets. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel, prefetch
from gear.kernels.host import tree_update
from gear.selection import epochs, heap, uniform
from gear.selection.prioritized import leaf
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.items import indices
from gear.storage.lines import delist, enlist


@kernel
def unit_of(segment, params, item):
    """The unit of the uniform sampler that holds an item: its slot or its block."""
    if params[f.P_ITEM] == f.WHOLE:
        return item
    block = item // params[f.P_ITEMS_PER_BLOCK]
    if params[f.P_OVER] != 0:
        return np.int64(int32s(segment, params, f.R_BLOCKS)[block * f.BLOCK_FIELDS + f.SLOT])
    return block


@kernel
def add_uniform(segment, params, unit, amount):
    """Raise the item count of a unit."""
    counters = int64s(segment, params, f.R_COUNTERS)
    live = int64s(segment, params, f.R_LIVE)
    position = int32s(segment, params, f.R_POSITION)
    size = uniform.raise_count(live, position, counters[f.LIVE_UNITS], unit, amount)
    counters[f.LIVE_UNITS] = size
    counters[f.LIVE_ITEMS] += amount
    counters[f.MOST_PER_UNIT] = max(counters[f.MOST_PER_UNIT], uniform.count(live, position, size, unit))


@kernel
def take_uniform(segment, params, unit, amount):
    """Lower the item count of a unit; at zero it leaves the list of live units. `amount` -1: all of them."""
    counters = int64s(segment, params, f.R_COUNTERS)
    live = int64s(segment, params, f.R_LIVE)
    position = int32s(segment, params, f.R_POSITION)
    if amount < 0:
        amount = uniform.count(live, position, counters[f.LIVE_UNITS], unit)
        if amount == 0:
            return
    counters[f.LIVE_UNITS] = uniform.lower_count(live, position, counters[f.LIVE_UNITS], unit, amount)
    counters[f.LIVE_ITEMS] -= amount


@kernel
def write_leaves(segment, params, items, leaves):
    """Give items (int64[N], indices) their leaves (float64[N]); of duplicates the last wins."""
    tree = float64s(segment, params, f.R_TREE)
    if params[f.P_DISTINCT] != 0:
        change = 0
        for k in range(items.shape[0]):
            change += np.int64(leaves[k] > 0.0) - np.int64(tree[items[k]] > 0.0)
            tree[items[k]] = leaves[k]
        int64s(segment, params, f.R_COUNTERS)[f.LIVE_ITEMS] += change
    counters = int64s(segment, params, f.R_COUNTERS)
    if counters[f.SUMMED_THERE] != 0:
        _note_leaves(segment, params, items, leaves)
        return
    tree_update(tree, float64s(segment, params, f.R_MINS), int64s(segment, params, f.R_STARTS), items, leaves)


@kernel
def _note_leaves(segment, params, items, leaves):
    """Write leaves, which a GPU sums up, and note whose they are as long as there is room."""
    counters = int64s(segment, params, f.R_COUNTERS)
    tree, changed = float64s(segment, params, f.R_TREE), int64s(segment, params, f.R_CHANGED)
    n = counters[f.CHANGED]
    for k in range(items.shape[0]):
        tree[items[k]] = leaves[k]
        if n + k < changed.shape[0]:
            changed[n + k] = items[k]
    counters[f.CHANGED] = n + items.shape[0]


@kernel
def set_priorities(segment, params, items, priorities):
    """Give items (int64[N], indices) their raw priorities (float64[N]) in the sampler's tree."""
    floats = float64s(segment, params, f.R_FLOATS)
    leaves, tree = np.empty(items.shape[0]), float64s(segment, params, f.R_TREE)
    for k in range(items.shape[0]):
        prefetch(tree.ctypes.data + 8 * items[k])  # comes while powers are taken
        leaves[k] = leaf(priorities[k], floats[f.ALPHA], floats[f.EPS])
    write_leaves(segment, params, items, leaves)


@kernel
def no_mass(segment, params, items):
    """Items that a prioritized sampler does not draw for now."""
    write_leaves(segment, params, items, np.zeros(items.shape[0]))


@kernel
def is_heap(params):
    """Whether the sampler is a heap, whose keys are the raw priorities."""
    return params[f.P_SAMPLER] == f.MAX_HEAP or params[f.P_SAMPLER] == f.MIN_HEAP


@kernel
def listed(segment, params, item):
    """Whether an item is in the heap, or in the list of the epoch."""
    live = int64s(segment, params, f.R_LIVE)
    place = int32s(segment, params, f.R_POSITION)[item]
    return place < int64s(segment, params, f.R_COUNTERS)[f.LIVE_ITEMS] and live[place] == item


@kernel
def slot_listed(segment, params, slot):
    """Whether a slot is in the heap of slots."""
    live = int64s(segment, params, f.R_LIVE)
    place = int32s(segment, params, f.R_POSITION)[slot]
    return place < int64s(segment, params, f.R_COUNTERS)[f.LIVE_UNITS] and live[place] == slot


@kernel
def list_slot(segment, params, slot):
    """Put a slot into the heap of slots, unless it is there: some of its items can be drawn."""
    if slot_listed(segment, params, slot):
        return
    counters = int64s(segment, params, f.R_COUNTERS)
    live, position = int64s(segment, params, f.R_LIVE), int32s(segment, params, f.R_POSITION)
    keys, stamps = float64s(segment, params, f.R_SLOT_KEYS), int64s(segment, params, f.R_SLOT_STAMPS)
    counters[f.LIVE_UNITS] = heap.push(live, position, keys, stamps, counters[f.LIVE_UNITS], 1.0, slot)


@kernel
def unlist_slot(segment, params, slot):
    """Take a slot out of the heap of slots, if it is there."""
    if not slot_listed(segment, params, slot):
        return
    counters = int64s(segment, params, f.R_COUNTERS)
    live, position = int64s(segment, params, f.R_LIVE), int32s(segment, params, f.R_POSITION)
    keys, stamps = float64s(segment, params, f.R_SLOT_KEYS), int64s(segment, params, f.R_SLOT_STAMPS)
    counters[f.LIVE_UNITS] = heap.take(live, position, keys, stamps, counters[f.LIVE_UNITS], 1.0, slot)


@kernel
def into_heap(segment, params, item):
    """Put an item where its raw priority and its stamp belong, whether or not it is in the heap."""
    counters = int64s(segment, params, f.R_COUNTERS)
    live = int64s(segment, params, f.R_LIVE)
    position = int32s(segment, params, f.R_POSITION)
    keys, stamps = float64s(segment, params, f.R_RAW), int64s(segment, params, f.R_STAMPS)
    sign = 1.0 if params[f.P_SAMPLER] == f.MAX_HEAP else -1.0
    if listed(segment, params, item):
        heap.moved(live, position, keys, stamps, counters[f.LIVE_ITEMS], sign, item)
    else:
        counters[f.LIVE_ITEMS] = heap.push(live, position, keys, stamps, counters[f.LIVE_ITEMS], sign, item)


@kernel
def leave_list(segment, params, items):
    """Take those items out of the heap, or the epoch, that are in it."""
    counters = int64s(segment, params, f.R_COUNTERS)
    live = int64s(segment, params, f.R_LIVE)
    position = int32s(segment, params, f.R_POSITION)
    keys, stamps = float64s(segment, params, f.R_RAW), int64s(segment, params, f.R_STAMPS)
    sign = 1.0 if params[f.P_SAMPLER] == f.MAX_HEAP else -1.0
    for k in range(items.shape[0]):
        item, size = items[k], counters[f.LIVE_ITEMS]
        if not listed(segment, params, item):
            continue
        if params[f.P_SAMPLER] == f.EPOCHS:
            size, counters[f.EPOCH_DRAWN] = epochs.remove(live, position, size, counters[f.EPOCH_DRAWN], item)
        else:
            size = heap.take(live, position, keys, stamps, size, sign, item)
        counters[f.LIVE_ITEMS] = size


@kernel
def enter(segment, params, slot, items):
    """Items (int64[N], indices) of `slot` that are not used up can be drawn from now on; their priorities are set.

    Of a prioritized sampler's set 0 the leaves are written by whoever knows the priorities.
    """
    sampler, n = params[f.P_SAMPLER], items.shape[0]
    counters = int64s(segment, params, f.R_COUNTERS)
    if sampler == f.UNIFORM:
        first = 0  # items of a unit are neighbours
        for k in range(1, n + 1):
            unit = unit_of(segment, params, items[first])
            if k == n or unit_of(segment, params, items[k]) != unit:
                add_uniform(segment, params, unit, k - first)
                first = k
    elif is_heap(params):
        for k in range(n):
            into_heap(segment, params, items[k])
    elif sampler == f.EPOCHS:
        live = int64s(segment, params, f.R_LIVE)
        position = int32s(segment, params, f.R_POSITION)
        for k in range(n):
            counters[f.LIVE_ITEMS] = epochs.add(live, position, counters[f.LIVE_ITEMS], items[k])
    elif sampler != f.PRIORITIZED:
        counters[f.LIVE_ITEMS] += n
        if params[f.P_CONSUMERS] > 0 and params[f.P_GROUPED] == 0:  # items of a group wait for its others
            enlist(segment, params, items)
        if params[f.P_BY_SLOT] != 0 and n > 0:
            list_slot(segment, params, slot)


@kernel
def leave(segment, params, slot, n):
    """Take the first n items of `slot`, all that the set has, out of the structure."""
    sampler = params[f.P_SAMPLER]
    if n == 0:
        return
    if sampler == f.UNIFORM:
        if params[f.P_ITEM] == f.WHOLE or params[f.P_OVER] != 0:
            take_uniform(segment, params, slot, -1)
            return
        blocks = int32s(segment, params, f.R_BLOCKS)
        block = int64s(segment, params, f.R_SLOTS)[slot * f.SLOT_FIELDS + f.FIRST]
        while block >= 0:
            take_uniform(segment, params, block, -1)
            block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
        return
    if params[f.P_CONSUMERS] > 0:
        delist(segment, params, indices(segment, params, slot, 0, n))
        return
    if sampler == f.FIFO or sampler == f.LIFO or sampler == f.FRESH:
        live = n
        if params[f.P_MAX_TIMES] > 0:
            items = indices(segment, params, slot, 0, n)
            times = int32s(segment, params, f.R_TIMES)
            for k in range(n):
                if times[2 * items[k]] >= params[f.P_MAX_TIMES]:
                    live -= 1
        int64s(segment, params, f.R_COUNTERS)[f.LIVE_ITEMS] -= live
        if params[f.P_BY_SLOT] != 0:
            unlist_slot(segment, params, slot)
        return
    items = indices(segment, params, slot, 0, n)
    if sampler == f.PRIORITIZED:
        no_mass(segment, params, items)
    else:
        leave_list(segment, params, items)

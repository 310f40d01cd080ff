"""The way of items into all their sets and out of them: published, completed, withdrawn, given a new priority.

What is kept once per item (raw priorities, stamps, uses) is changed here, and then the structure of each set that
the item belongs to. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.items import indices, slot_of
from gear.storage.sampler import enter, into_heap, is_heap, leave, set_priorities, write_leaves
from gear.storage.sets import head, items_in


@kernel
def publish(segment, params, slot, begin, end, priorities, at, given):
    """Make items begin..end-1 of `slot` drawable; they are in the record already.

    `given` of the float64 `priorities` from index `at` on are theirs: 0 (the largest so far), 1 (for all)
    or one for each.
    """
    if end <= begin:
        return
    sampler = params[f.P_SAMPLER]
    raw = float64s(segment, params, f.R_RAW)
    times = int32s(segment, params, f.R_TIMES)
    items = indices(segment, params, slot, begin, end)
    if sampler == f.PRIORITIZED or raw.shape[0] > 0:
        floats = float64s(segment, params, f.R_FLOATS)
        values = np.empty(end - begin)
        for k in range(end - begin):
            if given == 0:
                values[k] = floats[f.MAX_PRIORITY]
            else:
                values[k] = priorities[at if given == 1 else at + k]
        for k in range(end - begin):
            floats[f.MAX_PRIORITY] = max(floats[f.MAX_PRIORITY], values[k])
        for k in range(end - begin if raw.shape[0] > 0 else 0):
            raw[items[k]] = values[k]
        if sampler == f.PRIORITIZED:
            set_priorities(segment, params, items, values)
        elif is_heap(params):
            for k in range(end - begin):
                _stamp(segment, params, items[k])
    for k in range(end - begin if times.shape[0] > 0 else 0):
        times[2 * items[k]] = 0
        times[2 * items[k] + 1] = 0
    if sampler == f.LIFO:
        slots = int64s(segment, params, f.R_SLOTS)
        slots[slot * f.SLOT_FIELDS + f.CURSOR] = end
        slots[slot * f.SLOT_FIELDS + f.CURSOR_BLOCK] = slots[slot * f.SLOT_FIELDS + f.LAST]
    enter(segment, params, slot, items)
    for k in range(1, params[f.P_SETS]):
        line = head(params, k)
        if items_in(segment, line, slot) >= end:
            join(segment, params, line, slot, items)


@kernel
def _stamp(segment, params, item):
    """Of equal priorities this item is the one inserted, or weighed, last."""
    counters = int64s(segment, params, f.R_COUNTERS)
    counters[f.STAMP] += 1
    int64s(segment, params, f.R_STAMPS)[item] = counters[f.STAMP]


@kernel
def join(segment, params, line, slot, items):
    """Items of `slot` that are in set 0 enter another set as well, but for those used up."""
    times = int32s(segment, params, f.R_TIMES)
    if params[f.P_MAX_TIMES] > 0:
        left = np.empty(items.shape[0], np.int64)
        n = 0
        for k in range(items.shape[0]):
            if times[2 * items[k]] < params[f.P_MAX_TIMES]:
                left[n] = items[k]
                n += 1
        items = left[:n]
    if items.shape[0] == 0:
        return
    if params[f.P_SAMPLER] == f.PRIORITIZED:
        tree = float64s(segment, params, f.R_TREE)
        leaves = np.empty(items.shape[0])
        for k in range(items.shape[0]):
            leaves[k] = tree[items[k]]
        write_leaves(segment, line, items, leaves)
    else:
        enter(segment, line, slot, items)


@kernel
def withdraw(segment, params, slot):
    """Take every item of `slot`, which is still stored, out of every set."""
    for k in range(params[f.P_SETS]):
        line = head(params, k)
        leave(segment, line, slot, items_in(segment, line, slot))


@kernel
def _members(segment, params, line, items, priorities):
    """Those items, and their priorities, that belong to the set."""
    mine, values = np.empty(items.shape[0], np.int64), np.empty(items.shape[0])
    n = 0
    for k in range(items.shape[0]):
        if items_in(segment, line, slot_of(segment, params, items[k])) > 0:
            mine[n], values[n] = items[k], priorities[k]
            n += 1
    return mine[:n], values[:n]


@kernel
def reweigh(segment, params, items, priorities):
    """Drawable items (int64[N], indices) get new raw priorities (float64[N]), which are stored where that is needed."""
    if params[f.P_SAMPLER] == f.PRIORITIZED:
        set_priorities(segment, params, items, priorities)
        for s in range(1, params[f.P_SETS]):
            line = head(params, s)
            mine, values = _members(segment, params, line, items, priorities)
            set_priorities(segment, line, mine, values)
    elif is_heap(params):
        raw = float64s(segment, params, f.R_RAW)
        for k in range(items.shape[0]):
            raw[items[k]] = priorities[k]
            _stamp(segment, params, items[k])
            for s in range(params[f.P_SETS]):
                line = head(params, s)
                if items_in(segment, line, slot_of(segment, params, items[k])) > 0:
                    into_heap(segment, line, items[k])

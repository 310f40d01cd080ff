"""The remover: which closed trajectory leaves next.

It chooses among slots; where priorities count, a slot's is the largest of its items'. `Fifo` and `Lifo` need nothing
but the chain of slots. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.host import random_bits, tree_draw, tree_total, tree_update
from gear.selection import heap, uniform
from gear.selection.prioritized import leaf
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.items import indices

REMOVER_STREAM = 0x5DEECE66D
"""Keeps the remover's random numbers apart from the sampler's, which share the table's seed."""


@kernel
def by_priority(params):
    """Whether the remover goes by priorities, so that `weigh` must follow every change of one."""
    kind = params[f.P_REMOVER]
    return kind == f.PRIORITIZED or kind == f.MAX_HEAP or kind == f.MIN_HEAP


@kernel
def add_to_remover(segment, params, slot):
    """A closed slot may be removed from now on."""
    if params[f.P_REMOVER] == f.UNIFORM:
        counters = int64s(segment, params, f.R_COUNTERS)
        counters[f.REMOVER_LIVE] = uniform.raise_count(
            int64s(segment, params, f.R_REMOVER_LIVE),
            int32s(segment, params, f.R_REMOVER_POSITION),
            counters[f.REMOVER_LIVE],
            slot,
            1,
        )
    elif by_priority(params):
        _weigh(segment, params, slot, True)


@kernel
def weigh(segment, params, slot):
    """The priorities of a closed slot's items have changed."""
    _weigh(segment, params, slot, False)


@kernel
def _weigh(segment, params, slot, fresh):
    slots = int64s(segment, params, f.R_SLOTS)
    raw = float64s(segment, params, f.R_RAW)
    items = indices(segment, params, slot, 0, slots[slot * f.SLOT_FIELDS + f.ITEMS])
    largest = 0.0
    for k in range(items.shape[0]):
        largest = max(largest, raw[items[k]])
    if params[f.P_REMOVER] == f.PRIORITIZED:
        floats = float64s(segment, params, f.R_FLOATS)
        _set_leaf(segment, params, slot, leaf(largest, floats[f.REMOVER_ALPHA], floats[f.REMOVER_EPS]))
        return
    counters = int64s(segment, params, f.R_COUNTERS)
    live, place = int64s(segment, params, f.R_REMOVER_LIVE), int32s(segment, params, f.R_REMOVER_POSITION)
    keys, stamps = float64s(segment, params, f.R_REMOVER_KEYS), int64s(segment, params, f.R_REMOVER_STAMPS)
    counters[f.STAMP] += 1
    keys[slot], stamps[slot] = largest, counters[f.STAMP]
    size, sign = counters[f.REMOVER_LIVE], 1.0 if params[f.P_REMOVER] == f.MAX_HEAP else -1.0
    if fresh:
        counters[f.REMOVER_LIVE] = heap.push(live, place, keys, stamps, size, sign, slot)
    else:
        heap.moved(live, place, keys, stamps, size, sign, slot)


@kernel
def _set_leaf(segment, params, slot, value):
    items = np.empty(1, np.int64)
    leaves = np.empty(1)
    items[0] = slot
    leaves[0] = value
    tree_update(
        float64s(segment, params, f.R_REMOVER_TREE),
        float64s(segment, params, f.R_REMOVER_MINS),
        int64s(segment, params, f.R_REMOVER_STARTS),
        items,
        leaves,
    )


@kernel
def take_from_remover(segment, params, slot):
    """A slot that leaves is no candidate any more."""
    counters = int64s(segment, params, f.R_COUNTERS)
    if params[f.P_REMOVER] == f.PRIORITIZED:
        _set_leaf(segment, params, slot, 0.0)
    elif params[f.P_REMOVER] == f.UNIFORM:
        counters[f.REMOVER_LIVE] = uniform.lower_count(
            int64s(segment, params, f.R_REMOVER_LIVE),
            int32s(segment, params, f.R_REMOVER_POSITION),
            counters[f.REMOVER_LIVE],
            slot,
            1,
        )
    elif by_priority(params):
        live, place = int64s(segment, params, f.R_REMOVER_LIVE), int32s(segment, params, f.R_REMOVER_POSITION)
        keys, stamps = float64s(segment, params, f.R_REMOVER_KEYS), int64s(segment, params, f.R_REMOVER_STAMPS)
        sign = 1.0 if params[f.P_REMOVER] == f.MAX_HEAP else -1.0
        counters[f.REMOVER_LIVE] = heap.take(live, place, keys, stamps, counters[f.REMOVER_LIVE], sign, slot)


@kernel
def _random(segment, params):
    """The closed slot that a uniform or prioritized remover draws; -1 where none has mass."""
    counters = int64s(segment, params, f.R_COUNTERS)
    seed, draw = params[f.P_SEED] ^ REMOVER_STREAM, counters[f.REMOVER_DRAWS]
    if params[f.P_REMOVER] == f.UNIFORM:
        if counters[f.REMOVER_LIVE] == 0:
            return np.int64(-1)
        counters[f.REMOVER_DRAWS] += 1
        chosen = uniform.below(seed, draw, 0, counters[f.REMOVER_LIVE])
        return np.int64(int64s(segment, params, f.R_REMOVER_LIVE)[chosen] & uniform.UNIT)
    tree = float64s(segment, params, f.R_REMOVER_TREE)
    starts = int64s(segment, params, f.R_REMOVER_STARTS)
    total = tree_total(tree, starts)
    if total <= 0.0:
        return np.int64(-1)
    counters[f.REMOVER_DRAWS] += 1
    masses = np.empty(1)
    items = np.empty(1, np.int64)
    masses[0] = float(random_bits(seed, draw, 0) >> np.uint64(11)) * (1.0 / 9007199254740992.0) * total
    tree_draw(tree, starts, masses, items)
    return items[0]


@kernel
def _closed(segment, params, slot, following):
    """The first closed slot from `slot` on, going by the field `following`; -1 if there is none."""
    slots = int64s(segment, params, f.R_SLOTS)
    while slot >= 0 and slots[slot * f.SLOT_FIELDS + f.STATE] != f.CLOSED:
        slot = slots[slot * f.SLOT_FIELDS + following]
    return slot


@kernel
def victim(segment, params, keep):
    """The slot that leaves next, -1 if there is none but `keep`.

    The remover chooses among closed slots; only when none is left an open trajectory of a writer goes, the oldest
    first, so that a silent one can not fill the table for ever. Those of the table stay.
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    slot = np.int64(-1)
    if params[f.P_REMOVER] == f.LIFO:
        slot = _closed(segment, params, counters[f.NEWEST], f.OLDER)
    elif params[f.P_REMOVER] == f.UNIFORM or params[f.P_REMOVER] == f.PRIORITIZED:
        slot = _random(segment, params)
    elif params[f.P_REMOVER] != f.FIFO and counters[f.REMOVER_LIVE] > 0:
        slot = int64s(segment, params, f.R_REMOVER_LIVE)[0]
    if slot < 0:
        slot = _closed(segment, params, counters[f.OLDEST], f.NEWER)
    if slot >= 0:
        return slot
    slots = int64s(segment, params, f.R_SLOTS)
    slot = counters[f.OLDEST]
    while slot >= 0 and (slot == keep or slots[slot * f.SLOT_FIELDS + f.WRITER] == f.TABLE):
        slot = slots[slot * f.SLOT_FIELDS + f.NEWER]
    return slot


@kernel
def idle(slots, slot):
    """Whether a stored slot is closed and nobody reads it, so that its blocks are free once it is evicted."""
    return slots[slot * f.SLOT_FIELDS + f.STATE] == f.CLOSED and slots[slot * f.SLOT_FIELDS + f.PINS] == 0


@kernel
def idle_victim(segment, params):
    """The first idle slot in the remover's order, -1 if none is idle; the oldest where the remover draws."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    if params[f.P_REMOVER] == f.MAX_HEAP or params[f.P_REMOVER] == f.MIN_HEAP:
        live = int64s(segment, params, f.R_REMOVER_LIVE)
        keys, stamps = float64s(segment, params, f.R_REMOVER_KEYS), int64s(segment, params, f.R_REMOVER_STAMPS)
        sign, best = 1.0 if params[f.P_REMOVER] == f.MAX_HEAP else -1.0, np.int64(-1)
        for k in range(counters[f.REMOVER_LIVE]):
            if idle(slots, live[k]) and (best < 0 or heap.before(keys, stamps, sign, live[k], best)):
                best = live[k]
        return best
    lifo = params[f.P_REMOVER] == f.LIFO
    slot = counters[f.NEWEST if lifo else f.OLDEST]
    while slot >= 0 and not idle(slots, slot):
        slot = slots[slot * f.SLOT_FIELDS + (f.OLDER if lifo else f.NEWER)]
    return slot

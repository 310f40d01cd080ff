"""Items of a slot: how many there are, where each lies, and their way into and out of the sampler.

The items of a trajectory are its positions 0, stride, 2 * stride, ...; the first `ITEMS` of them are
drawable. An item's index in per-item arrays is its slot (whole trajectories) or
``block * items_per_block + (t % block_steps) // stride``. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.host import tree_update
from gear.selection import uniform
from gear.selection.prioritized import leaf
from gear.storage.directory import (
    ALPHA,
    EPS,
    LIVE_ITEMS,
    LIVE_UNITS,
    MAX_PRIORITY,
    MOST_PER_UNIT,
    P_BLOCK_STEPS,
    P_EDGE,
    P_ITEM,
    P_ITEMS_PER_BLOCK,
    P_LENGTH,
    P_REMOVER,
    P_SAMPLER,
    P_STEP_N,
    P_STRIDE,
    R_BLOCKS,
    R_COUNT,
    R_COUNTERS,
    R_FLOATS,
    R_LIVE,
    R_MINS,
    R_POSITION,
    R_RAW,
    R_REMOVER_LIVE,
    R_REMOVER_MINS,
    R_REMOVER_POSITION,
    R_REMOVER_STARTS,
    R_REMOVER_TREE,
    R_SLOTS,
    R_STARTS,
    R_TIMES,
    R_TREE,
    REMOVER_ALPHA,
    REMOVER_EPS,
    REMOVER_LIVE,
    float32s,
    float64s,
    int32s,
    int64s,
)
from gear.storage.layout import (
    BLOCK_FIELDS,
    FIRST,
    HEAD,
    INSIDE,
    ITEMS,
    LAST,
    NEXT,
    ORDINAL,
    PREVIOUS,
    PRIORITIZED,
    SLOT_FIELDS,
    STEP,
    UNIFORM,
    WHOLE,
)


@kernel
def item_count(params, length, ended):
    """Drawable items of a trajectory of `length` rows that has ended or may still grow."""
    kind = params[P_ITEM]
    if kind == WHOLE:
        return 1 if ended else 0
    if kind == STEP:
        return length if ended else max(0, length - params[P_STEP_N])
    window, stride, edge = params[P_LENGTH], params[P_STRIDE], params[P_EDGE]
    if edge == HEAD or (edge != INSIDE and ended):
        return (length + stride - 1) // stride
    if length >= window:
        return (length - window) // stride + 1
    return 1 if ended and length > 0 else 0


@kernel
def first_item(params, ordinal):
    """Number of the first item that lies in the trajectory's block `ordinal` or behind."""
    stride = params[P_STRIDE]
    return (ordinal * params[P_BLOCK_STEPS] + stride - 1) // stride


@kernel
def item_index(params, block, ordinal, item):
    """Index of the trajectory's item number `item`, which lies in `block`, its block number `ordinal`."""
    stride = params[P_STRIDE]
    within = item * stride - ordinal * params[P_BLOCK_STEPS]
    return block * params[P_ITEMS_PER_BLOCK] + within // stride


@kernel
def indices(segment, params, slot, begin, end):
    """Item indices of the slot's items begin..end-1, int64[end - begin]."""
    out = np.empty(end - begin, np.int64)
    if params[P_ITEM] == WHOLE:
        if end > begin:
            out[0] = slot
        return out
    blocks = int32s(segment, params, R_BLOCKS)
    slots = int64s(segment, params, R_SLOTS)
    if end <= begin:
        return out
    # New items lie near the end of the chain: walking back keeps appending linear.
    block = slots[slot * SLOT_FIELDS + LAST]
    target = begin * params[P_STRIDE] // params[P_BLOCK_STEPS]
    while blocks[block * BLOCK_FIELDS + ORDINAL] > target:
        block = np.int64(blocks[block * BLOCK_FIELDS + PREVIOUS])
    item = begin
    while item < end:
        ordinal = np.int64(blocks[block * BLOCK_FIELDS + ORDINAL])
        stop = min(end, first_item(params, ordinal + 1))
        while item < stop:
            out[item - begin] = item_index(params, block, ordinal, item)
            item += 1
        block = np.int64(blocks[block * BLOCK_FIELDS + NEXT])
    return out


@kernel
def add_uniform(segment, params, units, amounts):
    """Raise the item count of each unit, int64[N] each."""
    counters = int64s(segment, params, R_COUNTERS)
    live = int32s(segment, params, R_LIVE)
    position = int32s(segment, params, R_POSITION)
    count = int32s(segment, params, R_COUNT)
    for k in range(units.shape[0]):
        if count[units[k]] == 0:
            counters[LIVE_UNITS] = uniform.add(live, position, counters[LIVE_UNITS], units[k])
        count[units[k]] += amounts[k]
        counters[LIVE_ITEMS] += amounts[k]
        counters[MOST_PER_UNIT] = max(counters[MOST_PER_UNIT], count[units[k]])


@kernel
def take_uniform(segment, params, unit, amount):
    """Lower the item count of a unit; at zero it leaves the list of live units."""
    counters = int64s(segment, params, R_COUNTERS)
    count = int32s(segment, params, R_COUNT)
    count[unit] -= amount
    counters[LIVE_ITEMS] -= amount
    if count[unit] == 0:
        counters[LIVE_UNITS] = uniform.remove(
            int32s(segment, params, R_LIVE), int32s(segment, params, R_POSITION), counters[LIVE_UNITS], unit
        )


@kernel
def set_leaves(segment, params, items, priorities):
    """Give items (int64[N], indices) their raw priorities (float64[N]) in the sampler's tree."""
    floats = float64s(segment, params, R_FLOATS)
    leaves = np.empty(items.shape[0])
    for k in range(items.shape[0]):
        leaves[k] = leaf(priorities[k], floats[ALPHA], floats[EPS])
    tree_update(
        float64s(segment, params, R_TREE),
        float64s(segment, params, R_MINS),
        int64s(segment, params, R_STARTS),
        items,
        leaves,
    )


@kernel
def publish(segment, params, slot, begin, end, priorities, at, given):
    """Make items begin..end-1 of `slot` drawable.

    `given` of the float64 `priorities` from index `at` on are theirs: 0 (the largest so far), 1 (for all)
    or one for each.
    """
    if end <= begin:
        return
    floats = float64s(segment, params, R_FLOATS)
    raw = float32s(segment, params, R_RAW)
    times = int32s(segment, params, R_TIMES)
    prioritized = params[P_SAMPLER] == PRIORITIZED
    items = indices(segment, params, slot, begin, end)
    if prioritized or raw.shape[0] > 0:
        values = np.empty(end - begin)
        for k in range(end - begin):
            if given == 0:
                values[k] = floats[MAX_PRIORITY]
            else:
                values[k] = priorities[at if given == 1 else at + k]
        for k in range(end - begin):
            floats[MAX_PRIORITY] = max(floats[MAX_PRIORITY], values[k])
        for k in range(end - begin if raw.shape[0] > 0 else 0):
            raw[items[k]] = values[k]
        if prioritized:
            set_leaves(segment, params, items, values)
    for k in range(end - begin if times.shape[0] > 0 else 0):
        times[2 * items[k]] = 0
        times[2 * items[k] + 1] = 0
    if params[P_SAMPLER] == UNIFORM:
        units = np.empty(end - begin, np.int64)
        per_unit = 1 if params[P_ITEM] == WHOLE else params[P_ITEMS_PER_BLOCK]
        amounts = np.empty(end - begin, np.int64)
        n = 0
        for k in range(end - begin):
            unit = items[k] // per_unit
            if n > 0 and units[n - 1] == unit:
                amounts[n - 1] += 1
            else:
                units[n] = unit
                amounts[n] = 1
                n += 1
        add_uniform(segment, params, units[:n], amounts[:n])


@kernel
def withdraw(segment, params, slot):
    """Take every item of `slot` out of the sampler."""
    slots = int64s(segment, params, R_SLOTS)
    n = slots[slot * SLOT_FIELDS + ITEMS]
    if n == 0:
        return
    if params[P_SAMPLER] == PRIORITIZED:
        items = indices(segment, params, slot, 0, n)
        tree_update(
            float64s(segment, params, R_TREE),
            float64s(segment, params, R_MINS),
            int64s(segment, params, R_STARTS),
            items,
            np.zeros(n),
        )
    elif params[P_SAMPLER] == UNIFORM:
        count = int32s(segment, params, R_COUNT)
        if params[P_ITEM] == WHOLE:
            if count[slot] > 0:
                take_uniform(segment, params, slot, count[slot])
            return
        blocks = int32s(segment, params, R_BLOCKS)
        block = slots[slot * SLOT_FIELDS + FIRST]
        while block >= 0:
            if count[block] > 0:
                take_uniform(segment, params, block, count[block])
            block = np.int64(blocks[block * BLOCK_FIELDS + NEXT])


@kernel
def add_to_remover(segment, params, slot):
    """A closed slot may be removed from now on."""
    counters = int64s(segment, params, R_COUNTERS)
    if params[P_REMOVER] == UNIFORM:
        counters[REMOVER_LIVE] = uniform.add(
            int32s(segment, params, R_REMOVER_LIVE),
            int32s(segment, params, R_REMOVER_POSITION),
            counters[REMOVER_LIVE],
            slot,
        )
    elif params[P_REMOVER] == PRIORITIZED:
        weigh_for_remover(segment, params, slot)


@kernel
def weigh_for_remover(segment, params, slot):
    """A closed slot weighs what its largest item priority weighs."""
    slots = int64s(segment, params, R_SLOTS)
    floats = float64s(segment, params, R_FLOATS)
    raw = float32s(segment, params, R_RAW)
    items = indices(segment, params, slot, 0, slots[slot * SLOT_FIELDS + ITEMS])
    largest = 0.0
    for k in range(items.shape[0]):
        largest = max(largest, raw[items[k]])
    _set_remover_leaf(segment, params, slot, leaf(largest, floats[REMOVER_ALPHA], floats[REMOVER_EPS]))


@kernel
def _set_remover_leaf(segment, params, slot, value):
    items = np.empty(1, np.int64)
    leaves = np.empty(1)
    items[0] = slot
    leaves[0] = value
    tree_update(
        float64s(segment, params, R_REMOVER_TREE),
        float64s(segment, params, R_REMOVER_MINS),
        int64s(segment, params, R_REMOVER_STARTS),
        items,
        leaves,
    )


@kernel
def take_from_remover(segment, params, slot):
    """A slot that leaves is no candidate any more."""
    counters = int64s(segment, params, R_COUNTERS)
    if params[P_REMOVER] == UNIFORM:
        counters[REMOVER_LIVE] = uniform.remove(
            int32s(segment, params, R_REMOVER_LIVE),
            int32s(segment, params, R_REMOVER_POSITION),
            counters[REMOVER_LIVE],
            slot,
        )
    elif params[P_REMOVER] == PRIORITIZED:
        _set_remover_leaf(segment, params, slot, 0.0)

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
from gear.storage import fields as f
from gear.storage.directory import float32s, float64s, int32s, int64s


@kernel
def item_count(params, length, ended):
    """Drawable items of a trajectory of `length` rows that has ended or may still grow."""
    kind = params[f.P_ITEM]
    if kind == f.WHOLE:
        return 1 if ended else 0
    if kind == f.STEP:
        return length if ended else max(0, length - params[f.P_STEP_N])
    window, stride, edge = params[f.P_LENGTH], params[f.P_STRIDE], params[f.P_EDGE]
    if edge == f.HEAD or (edge != f.INSIDE and ended):
        return (length + stride - 1) // stride
    if length >= window:
        return (length - window) // stride + 1
    return 1 if ended and length > 0 else 0


@kernel
def first_item(params, ordinal):
    """Number of the first item that lies in the trajectory's block `ordinal` or behind."""
    stride = params[f.P_STRIDE]
    return (ordinal * params[f.P_BLOCK_STEPS] + stride - 1) // stride


@kernel
def item_index(params, block, ordinal, item):
    """Index of the trajectory's item number `item`, which lies in `block`, its block number `ordinal`."""
    stride = params[f.P_STRIDE]
    within = item * stride - ordinal * params[f.P_BLOCK_STEPS]
    return block * params[f.P_ITEMS_PER_BLOCK] + within // stride


@kernel
def indices(segment, params, slot, begin, end):
    """Item indices of the slot's items begin..end-1, int64[end - begin]."""
    out = np.empty(end - begin, np.int64)
    if params[f.P_ITEM] == f.WHOLE:
        if end > begin:
            out[0] = slot
        return out
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    if end <= begin:
        return out
    # New items lie near the end of the chain: walking back keeps appending linear.
    block = slots[slot * f.SLOT_FIELDS + f.LAST]
    target = begin * params[f.P_STRIDE] // params[f.P_BLOCK_STEPS]
    while blocks[block * f.BLOCK_FIELDS + f.ORDINAL] > target:
        block = np.int64(blocks[block * f.BLOCK_FIELDS + f.PREVIOUS])
    item = begin
    while item < end:
        ordinal = np.int64(blocks[block * f.BLOCK_FIELDS + f.ORDINAL])
        stop = min(end, first_item(params, ordinal + 1))
        while item < stop:
            out[item - begin] = item_index(params, block, ordinal, item)
            item += 1
        block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
    return out


@kernel
def add_uniform(segment, params, units, amounts):
    """Raise the item count of each unit, int64[N] each."""
    counters = int64s(segment, params, f.R_COUNTERS)
    live = int64s(segment, params, f.R_LIVE)
    position = int32s(segment, params, f.R_POSITION)
    for k in range(units.shape[0]):
        size = uniform.raise_count(live, position, counters[f.LIVE_UNITS], units[k], amounts[k])
        counters[f.LIVE_UNITS] = size
        counters[f.LIVE_ITEMS] += amounts[k]
        most = uniform.count(live, position, size, units[k])
        counters[f.MOST_PER_UNIT] = max(counters[f.MOST_PER_UNIT], most)


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
def set_leaves(segment, params, items, priorities):
    """Give items (int64[N], indices) their raw priorities (float64[N]) in the sampler's tree."""
    floats = float64s(segment, params, f.R_FLOATS)
    leaves = np.empty(items.shape[0])
    for k in range(items.shape[0]):
        leaves[k] = leaf(priorities[k], floats[f.ALPHA], floats[f.EPS])
    tree_update(
        float64s(segment, params, f.R_TREE),
        float64s(segment, params, f.R_MINS),
        int64s(segment, params, f.R_STARTS),
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
    floats = float64s(segment, params, f.R_FLOATS)
    raw = float32s(segment, params, f.R_RAW)
    times = int32s(segment, params, f.R_TIMES)
    prioritized = params[f.P_SAMPLER] == f.PRIORITIZED
    items = indices(segment, params, slot, begin, end)
    if prioritized or raw.shape[0] > 0:
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
        if prioritized:
            set_leaves(segment, params, items, values)
    for k in range(end - begin if times.shape[0] > 0 else 0):
        times[2 * items[k]] = 0
        times[2 * items[k] + 1] = 0
    if params[f.P_SAMPLER] == f.UNIFORM:
        units = np.empty(end - begin, np.int64)
        per_unit = 1 if params[f.P_ITEM] == f.WHOLE else params[f.P_ITEMS_PER_BLOCK]
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
    slots = int64s(segment, params, f.R_SLOTS)
    n = slots[slot * f.SLOT_FIELDS + f.ITEMS]
    if n == 0:
        return
    if params[f.P_SAMPLER] == f.PRIORITIZED:
        items = indices(segment, params, slot, 0, n)
        tree_update(
            float64s(segment, params, f.R_TREE),
            float64s(segment, params, f.R_MINS),
            int64s(segment, params, f.R_STARTS),
            items,
            np.zeros(n),
        )
    elif params[f.P_SAMPLER] == f.UNIFORM:
        if params[f.P_ITEM] == f.WHOLE:
            take_uniform(segment, params, slot, -1)
            return
        blocks = int32s(segment, params, f.R_BLOCKS)
        block = slots[slot * f.SLOT_FIELDS + f.FIRST]
        while block >= 0:
            take_uniform(segment, params, block, -1)
            block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])


@kernel
def add_to_remover(segment, params, slot):
    """A closed slot may be removed from now on."""
    counters = int64s(segment, params, f.R_COUNTERS)
    if params[f.P_REMOVER] == f.UNIFORM:
        counters[f.REMOVER_LIVE] = uniform.raise_count(
            int64s(segment, params, f.R_REMOVER_LIVE),
            int32s(segment, params, f.R_REMOVER_POSITION),
            counters[f.REMOVER_LIVE],
            slot,
            1,
        )
    elif params[f.P_REMOVER] == f.PRIORITIZED:
        weigh_for_remover(segment, params, slot)


@kernel
def weigh_for_remover(segment, params, slot):
    """A closed slot weighs what its largest item priority weighs."""
    slots = int64s(segment, params, f.R_SLOTS)
    floats = float64s(segment, params, f.R_FLOATS)
    raw = float32s(segment, params, f.R_RAW)
    items = indices(segment, params, slot, 0, slots[slot * f.SLOT_FIELDS + f.ITEMS])
    largest = 0.0
    for k in range(items.shape[0]):
        largest = max(largest, raw[items[k]])
    _set_remover_leaf(segment, params, slot, leaf(largest, floats[f.REMOVER_ALPHA], floats[f.REMOVER_EPS]))


@kernel
def _set_remover_leaf(segment, params, slot, value):
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
    if params[f.P_REMOVER] == f.UNIFORM:
        counters[f.REMOVER_LIVE] = uniform.lower_count(
            int64s(segment, params, f.R_REMOVER_LIVE),
            int32s(segment, params, f.R_REMOVER_POSITION),
            counters[f.REMOVER_LIVE],
            slot,
            1,
        )
    elif params[f.P_REMOVER] == f.PRIORITIZED:
        _set_remover_leaf(segment, params, slot, 0.0)

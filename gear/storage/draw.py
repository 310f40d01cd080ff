"""Draw: limiter credit reserved, items drawn, their slots pinned, in one compiled call per batch.

Says where the rows of each item lie, its id and the probability with which it was drawn. Single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.host import random_bits, tree_draw, tree_smallest, tree_total
from gear.selection import uniform
from gear.selection.limiter import samples_allowed
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.items import (
    first_item,
    indices,
    item_index,
    set_leaves,
    take_uniform,
)

TO_UNIT = 1.0 / 9007199254740992.0


@kernel
def _oldest_unused(segment, params, slot):
    """The oldest slot from `slot` on with an item left to hand out; its CURSOR is moved to that item."""
    slots = int64s(segment, params, f.R_SLOTS)
    times = int32s(segment, params, f.R_TIMES)
    while slot >= 0:
        at = slot * f.SLOT_FIELDS
        n, cursor = slots[at + f.ITEMS], slots[at + f.CURSOR]
        while cursor < n:
            item = indices(segment, params, slot, cursor, cursor + 1)[0]
            if times[2 * item] < params[f.P_MAX_TIMES]:
                break
            cursor += 1
        slots[at + f.CURSOR] = cursor
        if cursor < n:
            return slot
        slot = slots[at + f.NEWER]
    return np.int64(-1)


@kernel
def drawable(segment, params):
    """Whether any item can be drawn now."""
    counters = int64s(segment, params, f.R_COUNTERS)
    if params[f.P_SAMPLER] == f.UNIFORM:
        return counters[f.LIVE_ITEMS] > 0
    if params[f.P_SAMPLER] == f.PRIORITIZED:
        return tree_total(float64s(segment, params, f.R_TREE), int64s(segment, params, f.R_STARTS)) > 0.0
    if params[f.P_MAX_TIMES] == 0:
        return counters[f.ITEM_COUNT] > 0
    return _oldest_unused(segment, params, counters[f.OLDEST]) >= 0


@kernel
def reserve(segment, params, want):
    """Reserve limiter credit for up to `want` samples, none while nothing can be drawn; returns how many."""
    if not drawable(segment, params):
        return 0
    counters = int64s(segment, params, f.R_COUNTERS)
    floats = float64s(segment, params, f.R_FLOATS)
    given = samples_allowed(
        want,
        counters[f.INSERTED_ITEMS],
        counters[f.DELETED_ITEMS],
        counters[f.SAMPLED_ITEMS] + counters[f.RESERVED_ITEMS],
        params[f.P_RATIO] != 0,
        params[f.P_MIN_SIZE],
        floats[f.RATIO],
        floats[f.LOW],
    )
    counters[f.RESERVED_ITEMS] += given
    return given


@kernel
def _items_in_block(params, slots, blocks, block):
    """(number of the block's first item within its trajectory, how many items lie in the block)."""
    ordinal = np.int64(blocks[block * f.BLOCK_FIELDS + f.ORDINAL])
    slot = blocks[block * f.BLOCK_FIELDS + f.SLOT]
    begin = first_item(params, ordinal)
    end = min(first_item(params, ordinal + 1), slots[slot * f.SLOT_FIELDS + f.ITEMS])
    return begin, max(0, end - begin)


@kernel
def _use(segment, params, item):
    """Hand the item out once; when that was the last time allowed, it can not be drawn again."""
    times = int32s(segment, params, f.R_TIMES)
    times[2 * item] += 1
    if times[2 * item] >= params[f.P_MAX_TIMES]:
        if params[f.P_SAMPLER] == f.UNIFORM:
            per_unit = 1 if params[f.P_ITEM] == f.WHOLE else params[f.P_ITEMS_PER_BLOCK]
            take_uniform(segment, params, item // per_unit, 1)
        elif params[f.P_SAMPLER] == f.PRIORITIZED:
            one = np.empty(1, np.int64)
            one[0] = item
            set_leaves(segment, params, one, np.full(1, -1e300))  # no mass, whatever eps


@kernel
def _draw_items(segment, params, size, items, probabilities):
    """Draw item indices; fewer than `size` only where items are used up."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    seed, first = params[f.P_SEED], counters[f.DRAWS]
    limited = params[f.P_MAX_TIMES] > 0
    n = 0
    if params[f.P_SAMPLER] == f.UNIFORM:
        live = int32s(segment, params, f.R_LIVE)
        count = int32s(segment, params, f.R_COUNT)
        whole = params[f.P_ITEM] == f.WHOLE
        per_block, stride = params[f.P_ITEMS_PER_BLOCK], params[f.P_STRIDE]
        places = 1 if whole else (per_block if limited else counters[f.MOST_PER_UNIT])
        while n < size and counters[f.LIVE_ITEMS] > 0:
            bound, attempt = counters[f.LIVE_UNITS] * places, 0
            while True:
                number = uniform.below(seed, first + n, attempt, bound)
                attempt += 1
                chosen = number // places
                unit, place = np.int64(live[chosen]), number - chosen * places
                if whole:
                    item = unit
                    break
                if not limited:
                    if place >= count[unit]:
                        continue
                    item = unit * per_block + place
                    if stride > 1:  # the block's items are consecutive, but the first may not be at its first row
                        ordinal = np.int64(blocks[unit * f.BLOCK_FIELDS + f.ORDINAL])
                        item += item_index(params, 0, ordinal, first_item(params, ordinal))
                    break
                begin, inside = _items_in_block(params, slots, blocks, unit)
                if place >= inside:
                    continue
                item = item_index(params, unit, np.int64(blocks[unit * f.BLOCK_FIELDS + f.ORDINAL]), begin + place)
                if int32s(segment, params, f.R_TIMES)[2 * item] < params[f.P_MAX_TIMES]:
                    break
            probabilities[n] = 1.0 / counters[f.LIVE_ITEMS]
            items[n] = item
            n += 1
            if limited:
                _use(segment, params, item)
    elif params[f.P_SAMPLER] == f.PRIORITIZED:
        tree = float64s(segment, params, f.R_TREE)
        starts = int64s(segment, params, f.R_STARTS)
        step = 1 if limited else size
        while n < size:
            total = tree_total(tree, starts)
            if total <= 0.0:
                break
            masses = probabilities[n : n + step]
            for k in range(step):
                masses[k] = float(random_bits(seed, first + n + k, 0) >> np.uint64(11)) * TO_UNIT * total
            tree_draw(tree, starts, masses, items[n : n + step])
            for k in range(n, n + step):
                probabilities[k] = tree[items[k]] / total
            n += step
            if limited:
                _use(segment, params, items[n - 1])
    else:
        slot = counters[f.OLDEST]
        while n < size:
            if limited:
                slot = _oldest_unused(segment, params, slot)
            else:
                while slot >= 0 and slots[slot * f.SLOT_FIELDS + f.ITEMS] == 0:
                    slot = slots[slot * f.SLOT_FIELDS + f.NEWER]
            if slot < 0:
                break
            cursor = slots[slot * f.SLOT_FIELDS + f.CURSOR] if limited else 0
            items[n] = indices(segment, params, slot, cursor, cursor + 1)[0]
            probabilities[n] = 1.0
            n += 1
            if limited:
                _use(segment, params, items[n - 1])
    counters[f.DRAWS] += n
    return n


@kernel
def draw(segment, params, size, ids, starts, lengths, probabilities):
    """Draw and pin up to `size` items whose credit is reserved; returned credit for what is missing.

    ids, starts: int64[size]; lengths: int32[size]; probabilities: float64[size]. Returns (how many,
    smallest non-zero probability of any item at the draw).
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    smallest = 1.0
    if params[f.P_SAMPLER] == f.UNIFORM:
        smallest = 1.0 / max(1, counters[f.LIVE_ITEMS])
    elif params[f.P_SAMPLER] == f.PRIORITIZED:
        tree, levels = float64s(segment, params, f.R_TREE), int64s(segment, params, f.R_STARTS)
        total = tree_total(tree, levels)
        if total > 0.0:
            smallest = tree_smallest(tree, float64s(segment, params, f.R_MINS), levels) / total
    n = _draw_items(segment, params, size, starts, probabilities)
    counters[f.RESERVED_ITEMS] -= size - n
    steps, per_block, stride = params[f.P_BLOCK_STEPS], params[f.P_ITEMS_PER_BLOCK], params[f.P_STRIDE]
    prefix = params[f.P_TABLE] << f.ID_TABLE_SHIFT | params[f.P_SHARD] << f.ID_SHARD_SHIFT
    kind, window, head = params[f.P_ITEM], params[f.P_LENGTH], params[f.P_EDGE] == f.HEAD
    for k in range(n):
        if kind == f.WHOLE:
            slot = starts[k]
            block = slots[slot * f.SLOT_FIELDS + f.FIRST]
            drawn, row = block, block * steps
            starts[k] = row
            lengths[k] = slots[slot * f.SLOT_FIELDS + f.LENGTH]
        else:
            block = starts[k] // per_block
            drawn, record = block, block * f.BLOCK_FIELDS
            slot = np.int64(blocks[record + f.SLOT])
            base = np.int64(blocks[record + f.ORDINAL]) * steps
            # Undo the division by the stride: the position is the multiple of it that lies there.
            place = starts[k] - block * per_block
            t = base + place * stride
            if stride > 1:
                t += (stride - t % stride) % stride
            row = block * steps + t - base
            if kind == f.STEP:
                starts[k] = row
                lengths[k] = 1
            elif head:
                lengths[k] = min(window, t + 1)
                begin = t + 1 - lengths[k]
                while base > begin:
                    block = np.int64(blocks[block * f.BLOCK_FIELDS + f.PREVIOUS])
                    base -= steps
                starts[k] = block * steps + begin - base
            else:
                starts[k] = row
                lengths[k] = min(window, slots[slot * f.SLOT_FIELDS + f.LENGTH] - t)
        slots[slot * f.SLOT_FIELDS + f.PINS] += 1
        generation = np.int64(blocks[drawn * f.BLOCK_FIELDS + f.GENERATION])
        ids[k] = prefix | generation << params[f.P_ROW_BITS] | row
    return n, smallest

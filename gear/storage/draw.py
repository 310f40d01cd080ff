"""Draw: limiter credit reserved, items drawn, their slots pinned, in one compiled call per batch.

Says where the rows of each item lie, its id and the probability with which it was drawn. Single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel, prefetch
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
def _draw_uniform(segment, params, size, items, probabilities):
    """Every live item with the same probability; the items of a block are consecutive."""
    counters = int64s(segment, params, f.R_COUNTERS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    live = int64s(segment, params, f.R_LIVE)
    total, units, places = counters[f.LIVE_ITEMS], counters[f.LIVE_UNITS], np.uint64(counters[f.MOST_PER_UNIT])
    if total == 0:
        return 0
    seed, first, stride = params[f.P_SEED], counters[f.DRAWS], params[f.P_STRIDE]
    per_unit = 1 if params[f.P_ITEM] == f.WHOLE else params[f.P_ITEMS_PER_BLOCK]
    # A record is read again when the item is pinned: by then it has come. For slots this is a wasted hint.
    records, record_bytes = blocks.ctypes.data, 4 * f.BLOCK_FIELDS
    bound, probability = units * np.int64(places), 1.0 / total
    for n in range(size):
        attempt = 0
        while True:
            number = np.uint64(uniform.below(seed, first + n, attempt, bound))
            chosen = number // places
            entry, place = live[chosen], np.int64(number - chosen * places)
            unit = entry & uniform.UNIT
            if place < entry >> 32:
                break
            attempt += 1
        items[n] = unit * per_unit + place
        if stride > 1:  # the first item of a block may not be at its first row
            ordinal = np.int64(blocks[unit * f.BLOCK_FIELDS + f.ORDINAL])
            items[n] += item_index(params, 0, ordinal, first_item(params, ordinal))
        probabilities[n] = probability
        if unit < params[f.P_BLOCKS]:
            prefetch(records + unit * record_bytes)
    return size


@kernel
def _draw_uniform_limited(segment, params, size, items, probabilities):
    """The same where items are used up: a place in a live block may be spent, and is drawn again."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    live = int64s(segment, params, f.R_LIVE)
    times = int32s(segment, params, f.R_TIMES)
    whole = params[f.P_ITEM] == f.WHOLE
    places = 1 if whole else params[f.P_ITEMS_PER_BLOCK]
    n = 0
    while n < size and counters[f.LIVE_ITEMS] > 0:
        attempt = 0
        while True:
            number = uniform.below(params[f.P_SEED], counters[f.DRAWS] + n, attempt, counters[f.LIVE_UNITS] * places)
            attempt += 1
            unit, place = live[number // places] & uniform.UNIT, number % places
            item = unit
            if not whole:
                begin, inside = _items_in_block(params, slots, blocks, unit)
                if place >= inside:
                    continue
                item = item_index(params, unit, np.int64(blocks[unit * f.BLOCK_FIELDS + f.ORDINAL]), begin + place)
            if times[2 * item] < params[f.P_MAX_TIMES]:
                break
        probabilities[n] = 1.0 / counters[f.LIVE_ITEMS]
        items[n] = item
        n += 1
        _use(segment, params, item)
    return n


@kernel
def _draw_prioritized(segment, params, size, items, probabilities):
    """Items by their leaves; one at a time where they are used up."""
    counters = int64s(segment, params, f.R_COUNTERS)
    tree = float64s(segment, params, f.R_TREE)
    starts = int64s(segment, params, f.R_STARTS)
    limited = params[f.P_MAX_TIMES] > 0
    seed, first = params[f.P_SEED], counters[f.DRAWS]
    step = 1 if limited else size
    n = 0
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
    return n


@kernel
def _draw_fifo(segment, params, size, items, probabilities):
    """The oldest item, as often as it may be drawn, then the next."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    limited = params[f.P_MAX_TIMES] > 0
    slot = counters[f.OLDEST]
    n = 0
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
    return n


@kernel
def _smallest(segment, params):
    """Smallest non-zero probability of any item now."""
    if params[f.P_SAMPLER] == f.UNIFORM:
        return 1.0 / max(1, int64s(segment, params, f.R_COUNTERS)[f.LIVE_ITEMS])
    if params[f.P_SAMPLER] == f.PRIORITIZED:
        tree, levels = float64s(segment, params, f.R_TREE), int64s(segment, params, f.R_STARTS)
        total = tree_total(tree, levels)
        if total > 0.0:
            return tree_smallest(tree, float64s(segment, params, f.R_MINS), levels) / total
    return 1.0


@kernel
def select(segment, params, size, credit, pin, ids, starts, lengths, probabilities):
    """Reserve the credit still missing, then draw up to `size` items, all or none of the credit.

    pin: 1 pins the slot of each item, 0 leaves that to a caller that lets nothing else happen meanwhile.
    credit: samples reserved by earlier calls for this request. ids, starts: int64[size]; lengths:
    int32[size]; probabilities: float64[size]. Returns (items drawn, credit reserved, smallest non-zero
    probability of any item). With 0 items the credit stays reserved; of a short draw the rest returns.
    """
    credit += reserve(segment, params, size - credit)
    if credit < size or not drawable(segment, params):
        return 0, credit, 0.0
    counters = int64s(segment, params, f.R_COUNTERS)
    smallest = _smallest(segment, params)
    if params[f.P_SAMPLER] == f.PRIORITIZED:
        n = _draw_prioritized(segment, params, size, starts, probabilities)
    elif params[f.P_SAMPLER] == f.FIFO:
        n = _draw_fifo(segment, params, size, starts, probabilities)
    elif params[f.P_MAX_TIMES] > 0:
        n = _draw_uniform_limited(segment, params, size, starts, probabilities)
    else:
        n = _draw_uniform(segment, params, size, starts, probabilities)
    counters[f.DRAWS] += n
    counters[f.RESERVED_ITEMS] -= size - n
    if params[f.P_ITEM] == f.WHOLE:
        _locate_whole(segment, params, n, pin, ids, starts, lengths)
    elif params[f.P_ITEM] == f.STEP:
        _locate_steps(segment, params, n, pin, ids, starts, lengths)
    else:
        _locate_windows(segment, params, n, pin, ids, starts, lengths)
    return n, 0, smallest


@kernel
def _id_prefix(params):
    return params[f.P_TABLE] << f.ID_TABLE_SHIFT | params[f.P_SHARD] << f.ID_SHARD_SHIFT


@kernel
def _locate_whole(segment, params, n, pin, ids, starts, lengths):
    """Pin the first n slots in `starts`; say where their rows start, how many there are, and their ids."""
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    prefix, row_bits, steps = _id_prefix(params), params[f.P_ROW_BITS], params[f.P_BLOCK_STEPS]
    for k in range(n):
        at = starts[k] * f.SLOT_FIELDS
        block = slots[at + f.FIRST]
        starts[k] = block * steps
        lengths[k] = slots[at + f.LENGTH]
        slots[at + f.PINS] += pin
        ids[k] = prefix | np.int64(blocks[block * f.BLOCK_FIELDS + f.GENERATION]) << row_bits | starts[k]


@kernel
def _locate_steps(segment, params, n, pin, ids, starts, lengths):
    """The same for the first n item indices in `starts`, each a row."""
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    prefix, row_bits, steps = _id_prefix(params), params[f.P_ROW_BITS], np.uint64(params[f.P_BLOCK_STEPS])
    for k in range(n):
        record = np.int64(np.uint64(starts[k]) // steps) * f.BLOCK_FIELDS
        lengths[k] = 1
        if pin:
            slots[blocks[record + f.SLOT] * f.SLOT_FIELDS + f.PINS] += 1
        ids[k] = prefix | np.int64(blocks[record + f.GENERATION]) << row_bits | starts[k]


@kernel
def _locate_windows(segment, params, n, pin, ids, starts, lengths):
    """The same for the first n item indices in `starts`, each a window of rows of one trajectory."""
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    prefix, row_bits, steps = _id_prefix(params), params[f.P_ROW_BITS], params[f.P_BLOCK_STEPS]
    per_block, stride = params[f.P_ITEMS_PER_BLOCK], params[f.P_STRIDE]
    window, head = params[f.P_LENGTH], params[f.P_EDGE] == f.HEAD
    for k in range(n):
        block = starts[k] // per_block
        record = block * f.BLOCK_FIELDS
        at = np.int64(blocks[record + f.SLOT]) * f.SLOT_FIELDS
        base = np.int64(blocks[record + f.ORDINAL]) * steps
        # Undo the division by the stride: the position is the multiple of it that lies there.
        t = base + (starts[k] - block * per_block) * stride
        if stride > 1:
            t += (stride - t % stride) % stride
        row = block * steps + t - base
        starts[k] = row
        if head:
            lengths[k] = min(window, t + 1)
            begin = t + 1 - lengths[k]
            while base > begin:
                block = np.int64(blocks[block * f.BLOCK_FIELDS + f.PREVIOUS])
                base -= steps
            starts[k] = block * steps + begin - base
        else:
            lengths[k] = min(window, slots[at + f.LENGTH] - t)
        slots[at + f.PINS] += pin
        ids[k] = prefix | np.int64(blocks[record + f.GENERATION]) << row_bits | row

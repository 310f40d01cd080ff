"""Draw, release, update: a reader's side of a table, one compiled call per batch.

`draw` reserves limiter credit, draws items, pins their slots and says where their rows lie. `release`
ends the pins and spends or returns the credit. `update` sets priorities by id. Single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.host import random_bits, tree_draw, tree_smallest, tree_total
from gear.selection import uniform
from gear.selection.limiter import samples_allowed
from gear.selection.prioritized import refused
from gear.storage.directory import (
    DELETED_ITEMS,
    DRAWS,
    INSERTED_ITEMS,
    ITEM_COUNT,
    LIVE_ITEMS,
    LIVE_UNITS,
    LOW,
    MAX_PRIORITY,
    MOST_PER_UNIT,
    OLDEST,
    P_BLOCK_STEPS,
    P_BLOCKS,
    P_EDGE,
    P_ITEM,
    P_ITEMS_PER_BLOCK,
    P_LENGTH,
    P_MAX_TIMES,
    P_MIN_SIZE,
    P_RATIO,
    P_REMOVER,
    P_ROW_BITS,
    P_SAMPLER,
    P_SEED,
    P_SHARD,
    P_STRIDE,
    P_TABLE,
    R_BLOCKS,
    R_COUNT,
    R_COUNTERS,
    R_FLOATS,
    R_LIVE,
    R_MINS,
    R_RAW,
    R_SLOTS,
    R_STARTS,
    R_TIMES,
    R_TREE,
    RATIO,
    RESERVED_ITEMS,
    SAMPLED_ITEMS,
    STALE,
    UPDATED,
    float32s,
    float64s,
    int32s,
    int64s,
)
from gear.storage.evict import evict, unpin
from gear.storage.items import (
    add_uniform,
    first_item,
    indices,
    item_index,
    set_leaves,
    take_uniform,
    weigh_for_remover,
)
from gear.storage.layout import (
    BLOCK_FIELDS,
    CLOSED,
    CURSOR,
    EVICTED,
    FIRST,
    GENERATION,
    GONE,
    HEAD,
    ID_SHARD_SHIFT,
    ID_TABLE_SHIFT,
    ITEMS,
    LENGTH,
    NEWER,
    OPEN,
    ORDINAL,
    PINS,
    PREVIOUS,
    PRIORITIZED,
    SLOT,
    SLOT_FIELDS,
    STATE,
    STEP,
    UNIFORM,
    WHOLE,
)

TO_UNIT = 1.0 / 9007199254740992.0


@kernel
def _oldest_unused(segment, params, slot):
    """The oldest slot from `slot` on with an item left to hand out; its CURSOR is moved to that item."""
    slots = int64s(segment, params, R_SLOTS)
    times = int32s(segment, params, R_TIMES)
    while slot >= 0:
        at = slot * SLOT_FIELDS
        n, cursor = slots[at + ITEMS], slots[at + CURSOR]
        while cursor < n:
            item = indices(segment, params, slot, cursor, cursor + 1)[0]
            if times[2 * item] < params[P_MAX_TIMES]:
                break
            cursor += 1
        slots[at + CURSOR] = cursor
        if cursor < n:
            return slot
        slot = slots[at + NEWER]
    return np.int64(-1)


@kernel
def drawable(segment, params):
    """Whether any item can be drawn now."""
    counters = int64s(segment, params, R_COUNTERS)
    if params[P_SAMPLER] == UNIFORM:
        return counters[LIVE_ITEMS] > 0
    if params[P_SAMPLER] == PRIORITIZED:
        return tree_total(float64s(segment, params, R_TREE), int64s(segment, params, R_STARTS)) > 0.0
    if params[P_MAX_TIMES] == 0:
        return counters[ITEM_COUNT] > 0
    return _oldest_unused(segment, params, counters[OLDEST]) >= 0


@kernel
def reserve(segment, params, want):
    """Reserve limiter credit for up to `want` samples, none while nothing can be drawn; returns how many."""
    if not drawable(segment, params):
        return 0
    counters = int64s(segment, params, R_COUNTERS)
    floats = float64s(segment, params, R_FLOATS)
    given = samples_allowed(
        want,
        counters[INSERTED_ITEMS],
        counters[DELETED_ITEMS],
        counters[SAMPLED_ITEMS] + counters[RESERVED_ITEMS],
        params[P_RATIO] != 0,
        params[P_MIN_SIZE],
        floats[RATIO],
        floats[LOW],
    )
    counters[RESERVED_ITEMS] += given
    return given


@kernel
def _items_in_block(params, slots, blocks, block):
    """(number of the block's first item within its trajectory, how many items lie in the block)."""
    ordinal = np.int64(blocks[block * BLOCK_FIELDS + ORDINAL])
    slot = blocks[block * BLOCK_FIELDS + SLOT]
    begin = first_item(params, ordinal)
    end = min(first_item(params, ordinal + 1), slots[slot * SLOT_FIELDS + ITEMS])
    return begin, max(0, end - begin)


@kernel
def _use(segment, params, item):
    """Hand the item out once; when that was the last time allowed, it can not be drawn again."""
    times = int32s(segment, params, R_TIMES)
    times[2 * item] += 1
    if times[2 * item] >= params[P_MAX_TIMES]:
        if params[P_SAMPLER] == UNIFORM:
            per_unit = 1 if params[P_ITEM] == WHOLE else params[P_ITEMS_PER_BLOCK]
            take_uniform(segment, params, item // per_unit, 1)
        elif params[P_SAMPLER] == PRIORITIZED:
            one = np.empty(1, np.int64)
            one[0] = item
            set_leaves(segment, params, one, np.full(1, -1e300))  # no mass, whatever eps


@kernel
def _draw_items(segment, params, size, items, probabilities):
    """Draw item indices; fewer than `size` only where items are used up."""
    counters = int64s(segment, params, R_COUNTERS)
    slots = int64s(segment, params, R_SLOTS)
    blocks = int32s(segment, params, R_BLOCKS)
    seed, first = params[P_SEED], counters[DRAWS]
    limited = params[P_MAX_TIMES] > 0
    n = 0
    if params[P_SAMPLER] == UNIFORM:
        live = int32s(segment, params, R_LIVE)
        count = int32s(segment, params, R_COUNT)
        whole = params[P_ITEM] == WHOLE
        per_block, stride = params[P_ITEMS_PER_BLOCK], params[P_STRIDE]
        places = 1 if whole else (per_block if limited else counters[MOST_PER_UNIT])
        while n < size and counters[LIVE_ITEMS] > 0:
            bound, attempt = counters[LIVE_UNITS] * places, 0
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
                        ordinal = np.int64(blocks[unit * BLOCK_FIELDS + ORDINAL])
                        item += item_index(params, 0, ordinal, first_item(params, ordinal))
                    break
                begin, inside = _items_in_block(params, slots, blocks, unit)
                if place >= inside:
                    continue
                item = item_index(params, unit, np.int64(blocks[unit * BLOCK_FIELDS + ORDINAL]), begin + place)
                if int32s(segment, params, R_TIMES)[2 * item] < params[P_MAX_TIMES]:
                    break
            probabilities[n] = 1.0 / counters[LIVE_ITEMS]
            items[n] = item
            n += 1
            if limited:
                _use(segment, params, item)
    elif params[P_SAMPLER] == PRIORITIZED:
        tree = float64s(segment, params, R_TREE)
        starts = int64s(segment, params, R_STARTS)
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
        slot = counters[OLDEST]
        while n < size:
            if limited:
                slot = _oldest_unused(segment, params, slot)
            else:
                while slot >= 0 and slots[slot * SLOT_FIELDS + ITEMS] == 0:
                    slot = slots[slot * SLOT_FIELDS + NEWER]
            if slot < 0:
                break
            cursor = slots[slot * SLOT_FIELDS + CURSOR] if limited else 0
            items[n] = indices(segment, params, slot, cursor, cursor + 1)[0]
            probabilities[n] = 1.0
            n += 1
            if limited:
                _use(segment, params, items[n - 1])
    counters[DRAWS] += n
    return n


@kernel
def draw(segment, params, size, ids, starts, lengths, probabilities):
    """Draw and pin up to `size` items whose credit is reserved; returned credit for what is missing.

    ids, starts: int64[size]; lengths: int32[size]; probabilities: float64[size]. Returns (how many,
    smallest non-zero probability of any item at the draw).
    """
    counters = int64s(segment, params, R_COUNTERS)
    slots = int64s(segment, params, R_SLOTS)
    blocks = int32s(segment, params, R_BLOCKS)
    smallest = 1.0
    if params[P_SAMPLER] == UNIFORM:
        smallest = 1.0 / max(1, counters[LIVE_ITEMS])
    elif params[P_SAMPLER] == PRIORITIZED:
        tree, levels = float64s(segment, params, R_TREE), int64s(segment, params, R_STARTS)
        total = tree_total(tree, levels)
        if total > 0.0:
            smallest = tree_smallest(tree, float64s(segment, params, R_MINS), levels) / total
    n = _draw_items(segment, params, size, starts, probabilities)
    counters[RESERVED_ITEMS] -= size - n
    steps, per_block, stride = params[P_BLOCK_STEPS], params[P_ITEMS_PER_BLOCK], params[P_STRIDE]
    prefix = params[P_TABLE] << ID_TABLE_SHIFT | params[P_SHARD] << ID_SHARD_SHIFT
    kind, window, head = params[P_ITEM], params[P_LENGTH], params[P_EDGE] == HEAD
    for k in range(n):
        if kind == WHOLE:
            slot = starts[k]
            block = slots[slot * SLOT_FIELDS + FIRST]
            drawn, row = block, block * steps
            starts[k] = row
            lengths[k] = slots[slot * SLOT_FIELDS + LENGTH]
        else:
            block = starts[k] // per_block
            drawn, record = block, block * BLOCK_FIELDS
            slot = np.int64(blocks[record + SLOT])
            base = np.int64(blocks[record + ORDINAL]) * steps
            # Undo the division by the stride: the position is the multiple of it that lies there.
            place = starts[k] - block * per_block
            t = base + place * stride
            if stride > 1:
                t += (stride - t % stride) % stride
            row = block * steps + t - base
            if kind == STEP:
                starts[k] = row
                lengths[k] = 1
            elif head:
                lengths[k] = min(window, t + 1)
                begin = t + 1 - lengths[k]
                while base > begin:
                    block = np.int64(blocks[block * BLOCK_FIELDS + PREVIOUS])
                    base -= steps
                starts[k] = block * steps + begin - base
            else:
                starts[k] = row
                lengths[k] = min(window, slots[slot * SLOT_FIELDS + LENGTH] - t)
        slots[slot * SLOT_FIELDS + PINS] += 1
        generation = np.int64(blocks[drawn * BLOCK_FIELDS + GENERATION])
        ids[k] = prefix | generation << params[P_ROW_BITS] | row
    return n, smallest


@kernel
def _item_of(params, blocks, block, row):
    """Item index of a row of a block in use (its slot for whole trajectories)."""
    if params[P_ITEM] == WHOLE:
        return np.int64(blocks[block * BLOCK_FIELDS + SLOT])
    return block * params[P_ITEMS_PER_BLOCK] + (row - block * params[P_BLOCK_STEPS]) // params[P_STRIDE]


@kernel
def release(segment, params, ids, delivered, spend):
    """End the pins of a draw; `spend`: also settle its credit, delivered or returned."""
    blocks = int32s(segment, params, R_BLOCKS)
    slots = int64s(segment, params, R_SLOTS)
    if spend:
        settle(segment, params, ids, delivered)
    mask, steps = (np.int64(1) << params[P_ROW_BITS]) - 1, params[P_BLOCK_STEPS]
    for k in range(ids.shape[0]):
        slot = np.int64(blocks[(ids[k] & mask) // steps * BLOCK_FIELDS + SLOT])
        at = slot * SLOT_FIELDS
        if slots[at + PINS] == 1 and slots[at + STATE] == EVICTED:
            unpin(segment, params, slot)
        else:
            slots[at + PINS] -= 1


@kernel
def settle(segment, params, ids, delivered):
    """Spend the credit and uses of pinned items, or return both."""
    counters = int64s(segment, params, R_COUNTERS)
    counters[RESERVED_ITEMS] -= ids.shape[0]
    if delivered:
        counters[SAMPLED_ITEMS] += ids.shape[0]
    if params[P_MAX_TIMES] == 0:
        return
    slots = int64s(segment, params, R_SLOTS)
    blocks = int32s(segment, params, R_BLOCKS)
    times = int32s(segment, params, R_TIMES)
    mask = (np.int64(1) << params[P_ROW_BITS]) - 1
    for k in range(ids.shape[0]):
        row = ids[k] & mask
        block = row // params[P_BLOCK_STEPS]
        slot = np.int64(blocks[block * BLOCK_FIELDS + SLOT])
        at = slot * SLOT_FIELDS
        item = _item_of(params, blocks, block, row)
        stored = slots[at + STATE] == OPEN or slots[at + STATE] == CLOSED
        if not stored:
            continue
        if delivered:
            times[2 * item + 1] += 1
            if times[2 * item + 1] >= params[P_MAX_TIMES]:
                slots[at + GONE] += 1
                counters[ITEM_COUNT] -= 1
                counters[DELETED_ITEMS] += 1
                if slots[at + STATE] == CLOSED and slots[at + GONE] == slots[at + ITEMS]:
                    evict(segment, params, slot, True)
            continue
        times[2 * item] -= 1
        if times[2 * item] == params[P_MAX_TIMES] - 1:  # it was out of the draws and comes back
            if params[P_SAMPLER] == UNIFORM:
                per_unit = 1 if params[P_ITEM] == WHOLE else params[P_ITEMS_PER_BLOCK]
                unit, one = np.empty(1, np.int64), np.ones(1, np.int64)
                unit[0] = item // per_unit
                add_uniform(segment, params, unit, one)
            elif params[P_SAMPLER] == PRIORITIZED:
                which, value = np.empty(1, np.int64), np.empty(1)
                which[0], value[0] = item, float32s(segment, params, R_RAW)[item]
                set_leaves(segment, params, which, value)
        slots[at + CURSOR] = 0


@kernel
def update(segment, params, ids, priorities):
    """Set raw priorities by id, all or nothing; of duplicates the last wins.

    Returns (applied, -1) or (0, index of the first refused priority).
    """
    bad = refused(priorities)
    if bad >= 0:
        return 0, bad
    counters = int64s(segment, params, R_COUNTERS)
    floats = float64s(segment, params, R_FLOATS)
    slots = int64s(segment, params, R_SLOTS)
    blocks = int32s(segment, params, R_BLOCKS)
    raw = float32s(segment, params, R_RAW)
    times = int32s(segment, params, R_TIMES)
    row_mask = (np.int64(1) << params[P_ROW_BITS]) - 1
    generation_mask = (np.int64(1) << (ID_SHARD_SHIFT - params[P_ROW_BITS])) - 1
    prefix = params[P_TABLE] << (ID_TABLE_SHIFT - ID_SHARD_SHIFT) | params[P_SHARD]
    items = np.empty(ids.shape[0], np.int64)
    values = np.empty(ids.shape[0])
    n, applied = 0, 0
    for k in range(ids.shape[0]):
        row = ids[k] & row_mask
        block = row // params[P_BLOCK_STEPS]
        if ids[k] < 0 or ids[k] >> ID_SHARD_SHIFT != prefix or block >= params[P_BLOCKS]:
            continue
        record = block * BLOCK_FIELDS
        slot = np.int64(blocks[record + SLOT])
        if slot < 0 or blocks[record + GENERATION] != (ids[k] >> params[P_ROW_BITS]) & generation_mask:
            continue
        at = slot * SLOT_FIELDS
        if slots[at + STATE] != OPEN and slots[at + STATE] != CLOSED:
            continue
        t = np.int64(blocks[record + ORDINAL]) * params[P_BLOCK_STEPS] + row - block * params[P_BLOCK_STEPS]
        if params[P_ITEM] == WHOLE:
            if t != 0:
                continue
        elif t % params[P_STRIDE] != 0 or t // params[P_STRIDE] >= slots[at + ITEMS]:
            continue
        item = _item_of(params, blocks, block, row)
        applied += 1
        floats[MAX_PRIORITY] = max(floats[MAX_PRIORITY], priorities[k])
        if raw.shape[0] > 0:
            raw[item] = priorities[k]
        if times.shape[0] > 0 and times[2 * item] >= params[P_MAX_TIMES]:
            continue
        items[n], values[n] = item, priorities[k]
        n += 1
    if params[P_SAMPLER] == PRIORITIZED:
        set_leaves(segment, params, items[:n], values[:n])
    if params[P_REMOVER] == PRIORITIZED:
        for k in range(n):
            slot = items[k]
            if params[P_ITEM] != WHOLE:
                slot = np.int64(blocks[(items[k] // params[P_ITEMS_PER_BLOCK]) * BLOCK_FIELDS + SLOT])
            if slots[slot * SLOT_FIELDS + STATE] == CLOSED:
                weigh_for_remover(segment, params, slot)
    counters[UPDATED] += applied
    counters[STALE] += ids.shape[0] - applied
    return applied, -1

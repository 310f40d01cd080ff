"""Draws by chance: uniform over items or trajectories, by priority, shuffled in epochs.

Each draws from one set, whose head is ``line``; ``params`` are those of the table. It fills ``items``: int64[B] with
item indices and ``probabilities``: float64[B], and returns how many it drew. Where a batch holds no item
twice, the probability is that of being drawn first. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel, prefetch
from gear.kernels.host import random_bits, tree_draw, tree_total
from gear.selection import distinct, epochs, uniform
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.items import first_item, item_at
from gear.storage.sampler import write_leaves
from gear.storage.sets import items_in
from gear.storage.uses import use

TO_UNIT = 1.0 / 9007199254740992.0


@kernel
def draw_uniform(segment, line, size, items, probabilities):
    """Every live item with the same probability; the items of a block are consecutive, from its first index on."""
    counters = int64s(segment, line, f.R_COUNTERS)
    live = int64s(segment, line, f.R_LIVE)
    total, units, places = counters[f.LIVE_ITEMS], counters[f.LIVE_UNITS], np.uint64(counters[f.MOST_PER_UNIT])
    if total == 0:
        return 0
    seed, first = line[f.P_SEED], counters[f.DRAWS]
    per_unit = 1 if line[f.P_ITEM] == f.WHOLE else line[f.P_ITEMS_PER_BLOCK]
    # A record is read again when the item is pinned: by then it has come. For slots this is a wasted hint.
    records, record_bytes = int32s(segment, line, f.R_BLOCKS).ctypes.data, 4 * f.BLOCK_FIELDS
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
        probabilities[n] = probability
        if unit < line[f.P_BLOCKS]:
            prefetch(records + unit * record_bytes)
    return size


@kernel
def _items_in_block(segment, line, block):
    """How many items lie in a block of a stored trajectory, used up or not."""
    record = block * f.BLOCK_FIELDS
    blocks = int32s(segment, line, f.R_BLOCKS)
    ordinal = np.int64(blocks[record + f.ORDINAL])
    n = items_in(segment, line, np.int64(blocks[record + f.SLOT]))
    return min(first_item(line, ordinal + 1), n) - first_item(line, ordinal)


@kernel
def _any_item(segment, line, draw, attempt):
    """An item of those stored, uniformly, used up or not. Returns (item, probability, random numbers used)."""
    counters = int64s(segment, line, f.R_COUNTERS)
    live = int64s(segment, line, f.R_LIVE)
    whole = line[f.P_ITEM] == f.WHOLE
    places = 1 if whole else line[f.P_ITEMS_PER_BLOCK]
    while True:
        number = uniform.below(line[f.P_SEED], draw, attempt, counters[f.LIVE_UNITS] * places)
        attempt += 1
        unit, place = live[number // places] & uniform.UNIT, number % places
        if whole or place < _items_in_block(segment, line, unit):
            return unit * places + place, 1.0 / counters[f.LIVE_ITEMS], attempt


@kernel
def _any_of_a_trajectory(segment, line, draw, attempt):
    """The same over trajectories: one of them uniformly, then one of its items that are not used up, uniformly."""
    counters = int64s(segment, line, f.R_COUNTERS)
    times = int32s(segment, line, f.R_TIMES)
    entry = int64s(segment, line, f.R_LIVE)[uniform.below(line[f.P_SEED], draw, attempt, counters[f.LIVE_UNITS])]
    slot = entry & uniform.UNIT
    n = items_in(segment, line, slot)
    while True:
        attempt += 1
        item = item_at(segment, line, slot, uniform.below(line[f.P_SEED], draw, attempt, n))
        if line[f.P_MAX_TIMES] == 0 or times[2 * item] < line[f.P_MAX_TIMES]:
            return item, 1.0 / (counters[f.LIVE_UNITS] * (entry >> 32)), attempt + 1


@kernel
def draw_uniform_choosy(segment, params, line, size, items, probabilities):
    """Uniform draws where not every place holds an item that will do: used up, in the batch, or by trajectory.

    What will not do is drawn again, so that the others keep their shares.
    """
    counters = int64s(segment, line, f.R_COUNTERS)
    times = int32s(segment, params, f.R_TIMES)
    limited, no_item_twice = params[f.P_MAX_TIMES] > 0, params[f.P_DISTINCT] != 0
    seen = distinct.room(size if no_item_twice else 0)
    n = 0
    while n < size and counters[f.LIVE_ITEMS] > 0:
        attempt = 0
        while True:
            if params[f.P_OVER] != 0:
                item, probability, attempt = _any_of_a_trajectory(segment, line, counters[f.DRAWS] + n, attempt)
            else:
                item, probability, attempt = _any_item(segment, line, counters[f.DRAWS] + n, attempt)
            if limited and times[2 * item] >= params[f.P_MAX_TIMES]:
                continue
            if not no_item_twice or distinct.is_new(seen, item):
                break
        items[n], probabilities[n] = item, probability
        n += 1
        if limited and not no_item_twice:
            use(segment, params, items[n - 1 : n])
    if limited and no_item_twice:
        use(segment, params, items[:n])
    return n


@kernel
def draw_prioritized(segment, params, line, size, items, probabilities):
    """Items by their leaves; one at a time where they are used up or where a batch holds no item twice."""
    counters = int64s(segment, line, f.R_COUNTERS)
    tree = float64s(segment, line, f.R_TREE)
    starts = int64s(segment, line, f.R_STARTS)
    limited, no_item_twice = params[f.P_MAX_TIMES] > 0, params[f.P_DISTINCT] != 0
    seed, first = line[f.P_SEED], counters[f.DRAWS]
    step = 1 if limited or no_item_twice else size
    leaves = np.empty(size if no_item_twice else 0)
    before = tree_total(tree, starts)
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
            probabilities[k] = tree[items[k]] / (before if no_item_twice else total)
        n += step
        if no_item_twice:
            leaves[n - 1] = tree[items[n - 1]]
            write_leaves(segment, line, items[n - 1 : n], np.zeros(1))
        elif limited:
            use(segment, params, items[n - 1 : n])
    if no_item_twice:
        write_leaves(segment, line, items[:n], leaves[:n])
        if limited:
            use(segment, params, items[:n])
    return n


@kernel
def draw_epoch(segment, params, line, size, items, probabilities):
    """The next items of a shuffled pass; where it ends in mid-batch the next begins.

    The probability is that of the draw among what was left of the pass.
    """
    counters = int64s(segment, line, f.R_COUNTERS)
    order = int64s(segment, line, f.R_LIVE)
    place = int32s(segment, line, f.R_POSITION)
    seen = distinct.room(size if params[f.P_DISTINCT] != 0 else 0)
    n = 0
    while n < size and counters[f.LIVE_ITEMS] > 0:
        if counters[f.EPOCH_DRAWN] == counters[f.LIVE_ITEMS]:
            counters[f.EPOCH] += 1
            counters[f.EPOCH_DRAWN] = 0
        drawn, attempt = counters[f.EPOCH_DRAWN], 0
        left = counters[f.LIVE_ITEMS] - drawn
        while True:
            chosen = drawn + uniform.below(line[f.P_SEED], counters[f.DRAWS] + n, attempt, left)
            if params[f.P_DISTINCT] == 0 or distinct.is_new(seen, order[chosen]):
                break
            attempt += 1
        items[n], counters[f.EPOCH_DRAWN] = epochs.draw(order, place, drawn, chosen)
        probabilities[n] = 1.0 / left
        n += 1
        if params[f.P_MAX_TIMES] > 0:
            use(segment, params, items[n - 1 : n])
    return n

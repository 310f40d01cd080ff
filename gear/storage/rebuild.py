"""What is made anew from the directory after a crash: samplers, removers, uses; and the check of each entry.

Whatever can be computed from records, priorities and uses is computed, so that it does not matter at which
instruction the shard died. One call per table, before it serves. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.host import tree_build
from gear.selection import epochs, heap, uniform
from gear.selection.prioritized import leaf
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.items import indices
from gear.storage.journal import chained, checksum, stamp
from gear.storage.sampler import enter, listed
from gear.storage.sets import head, items_in


@kernel
def survey(segment, params, taken, blocks_of):
    """Check every stored or evicted slot and its chain; returns how many are damaged.

    taken: bool[blocks], filled with what sound chains hold; blocks_of: int64[slots], filled with the length of a slot's
    chain, -1 if it is damaged.
    """
    slots, blocks = int64s(segment, params, f.R_SLOTS), int32s(segment, params, f.R_BLOCKS)
    steps, damaged = params[f.P_BLOCK_STEPS], 0
    for slot in range(params[f.P_SLOTS]):
        at = slot * f.SLOT_FIELDS
        state = slots[at + f.STATE]
        blocks_of[slot] = 0
        if state == f.FREE or state == f.LEASED:
            continue
        if state == f.EVICTED and slots[at + f.PINS] == 0:  # its blocks were being freed: some may be already
            slots[at + f.STATE], slots[at + f.WRITER] = f.FREE, -1
            continue
        sound = (state == f.OPEN or state == f.CLOSED or state == f.EVICTED) and (
            slots[at + f.CHECK] == checksum(slots, slot)
        )
        n, chain, block, last = 0, np.int64(0), slots[at + f.FIRST], np.int64(-1)
        while sound and block >= 0:
            if block >= params[f.P_BLOCKS] or taken[block] or n >= params[f.P_BLOCKS]:
                sound = False
                break
            record = block * f.BLOCK_FIELDS
            if (
                blocks[record + f.SLOT] != slot or blocks[record + f.ORDINAL] != n
                or blocks[record + f.PREVIOUS] != last or blocks[record + f.OWNER] != -1
            ):  # fmt: skip
                sound = False
                break
            taken[block] = True
            chain += chained(block, np.int64(n), np.int64(blocks[record + f.GENERATION]))
            last = block
            block = np.int64(blocks[record + f.NEXT])
            n += 1
        final = 1 if slots[at + f.FLAGS] & f.HAS_FINAL else 0
        need = (slots[at + f.LENGTH] + final + steps - 1) // steps
        if sound and (n == 0 or n < need or chain != slots[at + f.CHAIN] or last != slots[at + f.LAST]):
            sound = False
        if sound:
            blocks_of[slot] = n
            continue
        damaged += 1
        blocks_of[slot] = -1
        block = slots[at + f.FIRST]
        while n > 0:  # what it had claimed
            taken[block] = False
            block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
            n -= 1
    return damaged


@kernel
def link_slots(segment, params, stored):
    """Make the chain of stored slots (int64[N], in order)."""
    counters, slots = int64s(segment, params, f.R_COUNTERS), int64s(segment, params, f.R_SLOTS)
    counters[f.OLDEST] = counters[f.NEWEST] = -1
    for k in range(stored.shape[0]):
        at = stored[k] * f.SLOT_FIELDS
        slots[at + f.OLDER] = slots[at + f.NEWER] = -1
        if k > 0:
            slots[at + f.OLDER] = stored[k - 1]
            slots[stored[k - 1] * f.SLOT_FIELDS + f.NEWER] = stored[k]
        else:
            counters[f.OLDEST] = stored[k]
        counters[f.NEWEST] = stored[k]


@kernel
def recount_uses(segment, params, stored):
    """What was handed out and not delivered was not handed out; used-up items are counted. Returns items left."""
    slots, times = int64s(segment, params, f.R_SLOTS), int32s(segment, params, f.R_TIMES)
    acks, full = int32s(segment, params, f.R_ACKS), (1 << params[f.P_CONSUMERS]) - 1
    left = 0
    for k in range(stored.shape[0]):
        at = stored[k] * f.SLOT_FIELDS
        gone = 0
        if params[f.P_MAX_TIMES] > 0 or params[f.P_LEAVING] != 0:
            items = indices(segment, params, stored[k], 0, slots[at + f.ITEMS])
            for i in items:
                if params[f.P_MAX_TIMES] > 0:
                    times[2 * i] = times[2 * i + 1]
                    gone += times[2 * i + 1] >= params[f.P_MAX_TIMES]
                elif acks[i] == full:
                    gone += 1
        slots[at + f.GONE] = gone
        lifo = params[f.P_SAMPLER] == f.LIFO
        slots[at + f.CURSOR] = slots[at + f.ITEMS] if lifo else 0
        slots[at + f.CURSOR_BLOCK] = slots[at + (f.LAST if lifo else f.FIRST)]
        left += slots[at + f.ITEMS] - gone
    return left


@kernel
def _unused(segment, params, items):
    """Those of the items that are not used up."""
    if params[f.P_MAX_TIMES] == 0:
        return items
    times, left, n = int32s(segment, params, f.R_TIMES), np.empty(items.shape[0], np.int64), 0
    for k in range(items.shape[0]):
        if times[2 * items[k]] < params[f.P_MAX_TIMES]:
            left[n] = items[k]
            n += 1
    return left[:n]


@kernel
def _weigh(segment, params, line, stored):
    """The sum tree of one set: leaves of items that can be drawn stay, all others are nothing."""
    tree, mins = float64s(segment, line, f.R_TREE), float64s(segment, line, f.R_MINS)
    first, raw = float64s(segment, params, f.R_TREE), float64s(segment, params, f.R_RAW)
    floats, starts = float64s(segment, params, f.R_FLOATS), int64s(segment, line, f.R_STARTS)
    size = starts[1] if starts.shape[0] > 1 else tree.shape[0]
    drawable = np.zeros(size, np.bool_)
    live = 0
    for k in range(stored.shape[0]):
        items = _unused(segment, params, indices(segment, params, stored[k], 0, items_in(segment, line, stored[k])))
        for item in items:
            value = first[item]
            if raw.shape[0] > 0:
                value = leaf(raw[item], floats[f.ALPHA], floats[f.EPS])
            if not (0.0 <= value < np.inf):
                value = 0.0
            tree[item] = value
            drawable[item] = True
            live += value > 0.0
    for item in range(size):
        if not drawable[item]:
            tree[item] = 0.0
    tree_build(tree, mins, starts)
    if params[f.P_DISTINCT] != 0:
        int64s(segment, line, f.R_COUNTERS)[f.LIVE_ITEMS] = live


@kernel
def _resume_epoch(segment, line, drawn):
    """Items that were drawn in the running epoch (int64[N], in order) stand first again."""
    counters = int64s(segment, line, f.R_COUNTERS)
    order, place = int64s(segment, line, f.R_LIVE), int32s(segment, line, f.R_POSITION)
    n = np.int64(0)
    for k in range(drawn.shape[0]):
        if 0 <= drawn[k] < place.shape[0] and listed(segment, line, drawn[k]) and place[drawn[k]] >= n:
            _, n = epochs.draw(order, place, n, np.int64(place[drawn[k]]))
    counters[f.EPOCH_DRAWN] = n


@kernel
def resample(segment, params, stored):
    """Make the samplers of all sets anew for the stored slots (int64[N], in order)."""
    acks, full = int32s(segment, params, f.R_ACKS), (1 << params[f.P_CONSUMERS]) - 1
    for s in range(params[f.P_SETS] - 1, -1, -1):  # set 0, whose leaves the others take, last
        line = head(params, s)
        counters = int64s(segment, line, f.R_COUNTERS)
        live, position = int64s(segment, line, f.R_LIVE), int32s(segment, line, f.R_POSITION)
        drawn = live[: max(0, min(counters[f.EPOCH_DRAWN], live.shape[0]))].copy()
        counters[f.LIVE_UNITS] = counters[f.LIVE_ITEMS] = counters[f.MOST_PER_UNIT] = 0
        counters[f.EPOCH_DRAWN] = 0
        position[:] = 0
        if params[f.P_SAMPLER] == f.PRIORITIZED:
            _weigh(segment, params, line, stored)
            continue
        for k in range(stored.shape[0]):
            items = indices(segment, params, stored[k], 0, items_in(segment, line, stored[k]))
            if params[f.P_CONSUMERS] > 0:  # their lines are made from the acknowledgements
                for item in items:
                    counters[f.LIVE_ITEMS] += params[f.P_LEAVING] == 0 or acks[item] != full
            else:
                enter(segment, line, stored[k], _unused(segment, params, items))
        if params[f.P_SAMPLER] == f.EPOCHS:
            _resume_epoch(segment, line, drawn)


@kernel
def reseat_remover(segment, params, stored):
    """Make the remover anew for those of the stored slots (int64[N], in order) that are closed."""
    counters, slots = int64s(segment, params, f.R_COUNTERS), int64s(segment, params, f.R_SLOTS)
    kind, raw = params[f.P_REMOVER], float64s(segment, params, f.R_RAW)
    live, place = int64s(segment, params, f.R_REMOVER_LIVE), int32s(segment, params, f.R_REMOVER_POSITION)
    keys, stamps = float64s(segment, params, f.R_REMOVER_KEYS), int64s(segment, params, f.R_REMOVER_STAMPS)
    tree, starts = float64s(segment, params, f.R_REMOVER_TREE), int64s(segment, params, f.R_REMOVER_STARTS)
    floats = float64s(segment, params, f.R_FLOATS)
    counters[f.REMOVER_LIVE] = 0
    place[:] = 0
    tree[: params[f.P_SLOTS] if tree.shape[0] > 0 else 0] = 0.0
    for k in range(stored.shape[0]):
        slot = stored[k]
        at = slot * f.SLOT_FIELDS
        if slots[at + f.STATE] != f.CLOSED:
            continue
        if kind == f.UNIFORM:
            counters[f.REMOVER_LIVE] = uniform.raise_count(live, place, counters[f.REMOVER_LIVE], slot, 1)
        elif kind == f.PRIORITIZED or kind == f.MAX_HEAP or kind == f.MIN_HEAP:
            largest = 0.0
            for item in indices(segment, params, slot, 0, slots[at + f.ITEMS]):
                largest = max(largest, raw[item])
            if kind == f.PRIORITIZED:
                tree[slot] = leaf(largest, floats[f.REMOVER_ALPHA], floats[f.REMOVER_EPS])
            else:
                keys[slot] = largest
                sign = 1.0 if kind == f.MAX_HEAP else -1.0
                size = counters[f.REMOVER_LIVE]
                counters[f.REMOVER_LIVE] = heap.push(live, place, keys, stamps, size, sign, slot)
    if kind == f.PRIORITIZED:
        tree_build(tree, float64s(segment, params, f.R_REMOVER_MINS), starts)


@kernel
def served_items(segment, params, stored):
    """The items of the stored slots (int64[N], in order): int64[M]."""
    slots = int64s(segment, params, f.R_SLOTS)
    n = 0
    for k in range(stored.shape[0]):
        n += slots[stored[k] * f.SLOT_FIELDS + f.ITEMS]
    out = np.empty(n, np.int64)
    n = 0
    for k in range(stored.shape[0]):
        for item in indices(segment, params, stored[k], 0, slots[stored[k] * f.SLOT_FIELDS + f.ITEMS]):
            out[n] = item
            n += 1
    return out


@kernel
def restamp(segment, params):
    """Checksums of all stored slots and their chains, of memory that was filled in another way than by commits."""
    slots, blocks = int64s(segment, params, f.R_SLOTS), int32s(segment, params, f.R_BLOCKS)
    for slot in range(params[f.P_SLOTS]):
        at = slot * f.SLOT_FIELDS
        if slots[at + f.STATE] != f.OPEN and slots[at + f.STATE] != f.CLOSED:
            continue
        chain, n, block = np.int64(0), np.int64(0), slots[at + f.FIRST]
        while block >= 0:
            record = block * f.BLOCK_FIELDS
            chain += chained(block, n, np.int64(blocks[record + f.GENERATION]))
            n += 1
            block = np.int64(blocks[record + f.NEXT])
        slots[at + f.CHAIN] = chain
        stamp(segment, params, slot)

"""Consumers' lines: for each consumer, in order, the items that wait to be served to it.

An item stands in a consumer's line from its publication until it is claimed or acknowledged; what comes back stands
where it stood, so before what was never served. Items that are served together (a group) are a unit: neighbours in
every line, claimed as one. Lines are doubly linked lists over item indices, in the order of their units' numbers: of
the publication, or of the moment at which all of a unit has got the late columns that the consumer needs. Compiled;
single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.program import LONGS
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.items import slot_of
from gear.storage.programs import DRAW
from gear.storage.regions import ABSENT


@kernel
def waits(segment, params, consumer, item):
    """Whether an item stands in the line of a consumer."""
    return int32s(segment, params, f.R_LINKS)[2 * (consumer * params[f.P_ITEMS] + item)] != ABSENT


@kernel
def numbers(segment, params, consumer):
    """By item, the number of its unit in a consumer's line, 0: it has not joined it; of consumer -1, at publication."""
    return int64s(segment, params, f.R_UNITS)[(1 + consumer) * params[f.P_ITEMS] : (2 + consumer) * params[f.P_ITEMS]]


@kernel
def _insert(segment, params, consumer, item, following):
    """An item joins a line before `following`, -1 for the end."""
    links, lines = int32s(segment, params, f.R_LINKS), int64s(segment, params, f.R_LINES)
    units = numbers(segment, params, consumer)
    line, base = consumer * f.LINE_FIELDS, consumer * params[f.P_ITEMS]
    previous = lines[line + f.LINE_TAIL] if following < 0 else np.int64(links[2 * (base + following) + 1])
    links[2 * (base + item)], links[2 * (base + item) + 1] = following, previous
    if previous >= 0:
        links[2 * (base + previous)] = item
    else:
        lines[line + f.LINE_HEAD] = item
    if following >= 0:
        links[2 * (base + following) + 1] = item
    else:
        lines[line + f.LINE_TAIL] = item
    begun = previous >= 0 and units[previous] == units[item]
    if not begun and (following < 0 or units[following] != units[item]):
        lines[line + f.LINE_UNITS] += 1
    lines[line + f.LINE_WAITING] += 1


@kernel
def leave(segment, params, consumer, item):
    """An item leaves a line."""
    links, lines = int32s(segment, params, f.R_LINKS), int64s(segment, params, f.R_LINES)
    units = numbers(segment, params, consumer)
    line, base = consumer * f.LINE_FIELDS, consumer * params[f.P_ITEMS]
    following, previous = links[2 * (base + item)], links[2 * (base + item) + 1]
    goes_on = previous >= 0 and units[previous] == units[item]
    if not goes_on and (following < 0 or units[following] != units[item]):
        lines[line + f.LINE_UNITS] -= 1
    if previous >= 0:
        links[2 * (base + previous)] = following
    else:
        lines[line + f.LINE_HEAD] = following
    if following >= 0:
        links[2 * (base + following) + 1] = previous
    else:
        lines[line + f.LINE_TAIL] = previous
    links[2 * (base + item)] = ABSENT
    lines[line + f.LINE_WAITING] -= 1


@DRAW.kernel(items=LONGS)
def enlist(segment, params, items):
    """New items (int64[N], indices) wait for every consumer that lacks nothing; those of a group are one unit."""
    counters, units = int64s(segment, params, f.R_COUNTERS), numbers(segment, params, -1)
    for k in range(items.shape[0]):
        if k == 0 or params[f.P_GROUPED] == 0:
            counters[f.STAMP] += 1
        units[items[k]] = counters[f.STAMP]
    for consumer in range(params[f.P_CONSUMERS]):
        whole = params[f.P_GROUPED] == 0 or _complete(segment, params, consumer, items)
        for k in range(items.shape[0]):
            numbers(segment, params, consumer)[items[k]] = 0
            if whole and _complete(segment, params, consumer, items[k : k + 1]):
                numbers(segment, params, consumer)[items[k]] = units[items[k]]
                _insert(segment, params, consumer, items[k], np.int64(-1))


@kernel
def _complete(segment, params, consumer, items):
    """Whether all of the items have the late columns that a consumer needs."""
    needs = int64s(segment, params, f.R_LINES)[consumer * f.LINE_FIELDS + f.LINE_NEEDS]
    if needs == 0:
        return True
    late = int64s(segment, params, f.R_LATE)
    for k in range(items.shape[0]):
        at = slot_of(segment, params, items[k]) * f.LATE_FIELDS + f.LATE_BITS
        if late[at] & needs != needs:
            return False
    return True


@kernel
def _unit(segment, params, items):
    """All items of the group that these, of one slot, belong to; else they themselves."""
    if params[f.P_GROUPED] == 0:
        return items
    mates, ring = int32s(segment, params, f.R_MATES), np.empty(params[f.P_GROUPED], np.int64)
    ring[0], n = items[0], 1
    while mates[ring[n - 1]] != items[0]:
        ring[n] = mates[ring[n - 1]]
        n += 1
    return np.sort(ring[:n])


@kernel
def completed(segment, params, items):
    """Late columns of these items, of one slot, have come: lines that waited for them get them, behind all others."""
    acks, counters = int32s(segment, params, f.R_ACKS), int64s(segment, params, f.R_COUNTERS)
    lines, published = int64s(segment, params, f.R_LINES), numbers(segment, params, -1)
    unit = items[:0]
    for consumer in range(params[f.P_CONSUMERS]):
        if lines[consumer * f.LINE_FIELDS + f.LINE_NEEDS] == 0:
            continue
        if unit.shape[0] == 0:
            unit = _unit(segment, params, items)
        order = numbers(segment, params, consumer)
        if unit.shape[0] == 0 or published[unit[0]] == 0 or order[unit[0]] != 0:
            continue
        if not _complete(segment, params, consumer, unit):
            continue
        for k in range(unit.shape[0]):
            if k == 0 or params[f.P_GROUPED] == 0:
                counters[f.STAMP] += 1
            order[unit[k]] = counters[f.STAMP]
            if not acks[unit[k]] >> consumer & 1:
                _insert(segment, params, consumer, unit[k], np.int64(-1))


@kernel
def delist(segment, params, items):
    """Items leave the table: what a consumer has not acknowledged of them is dropped for it."""
    claims, acks = int64s(segment, params, f.R_CLAIMS), int32s(segment, params, f.R_ACKS)
    counters, lines = int64s(segment, params, f.R_COUNTERS), int64s(segment, params, f.R_LINES)
    full = (1 << params[f.P_CONSUMERS]) - 1
    for k in range(items.shape[0]):
        item = items[k]
        for consumer in range(params[f.P_CONSUMERS]):
            if waits(segment, params, consumer, item):
                leave(segment, params, consumer, item)
            if not acks[item] >> consumer & 1:
                lines[consumer * f.LINE_FIELDS + f.LINE_DROPPED] += 1
            claims[consumer * params[f.P_ITEMS] + item] = 0
            numbers(segment, params, consumer)[item] = 0
        if params[f.P_LEAVING] == 0 or acks[item] != full:
            counters[f.LIVE_ITEMS] -= 1
        acks[item] = 0


@kernel
def claim(segment, params, consumer, units, number, items):
    """Claim the first `units` units that wait, under that number; their items in order. Returns how many items."""
    links, lines = int32s(segment, params, f.R_LINKS), int64s(segment, params, f.R_LINES)
    claims, unit_of = int64s(segment, params, f.R_CLAIMS), numbers(segment, params, consumer)
    line, base = consumer * f.LINE_FIELDS, consumer * params[f.P_ITEMS]
    n, taken, unit = 0, 0, np.int64(-1)
    item = lines[line + f.LINE_HEAD]
    while item >= 0:
        if unit_of[item] != unit:
            if taken == units:
                break
            taken += 1
            unit = unit_of[item]
        following = np.int64(links[2 * (base + item)])
        leave(segment, params, consumer, item)
        claims[base + item] = number
        items[n] = item
        n += 1
        item = following
    lines[line + f.LINE_SERVED] += n
    return n


@DRAW.kernel(items=LONGS)
def give_back(segment, params, consumer, number, items):
    """What of these items (int64[N], in the order of their claim) is still claimed under that number waits again.

    It stands where it stood, before everything published later. Returns how many.
    """
    claims, links = int64s(segment, params, f.R_CLAIMS), int32s(segment, params, f.R_LINKS)
    units = numbers(segment, params, consumer)
    base = consumer * params[f.P_ITEMS]
    following = int64s(segment, params, f.R_LINES)[consumer * f.LINE_FIELDS + f.LINE_HEAD]
    n = 0
    for k in range(items.shape[0]):
        item = items[k]
        if claims[base + item] != number:
            continue
        claims[base + item] = 0
        while following >= 0 and units[following] < units[item]:
            following = np.int64(links[2 * (base + following)])
        _insert(segment, params, consumer, item, following)
        n += 1
    return n


@DRAW.kernel(items=LONGS)
def relist(segment, params, items):
    """What of these items (int64[N], in the order of publication) a consumer has not acknowledged waits for it.

    For lines that are empty, and claims whose holders are gone: after the shard's death.
    """
    acks, published = int32s(segment, params, f.R_ACKS), numbers(segment, params, -1)
    for k in range(items.shape[0]):
        for consumer in range(params[f.P_CONSUMERS]):
            int64s(segment, params, f.R_CLAIMS)[consumer * params[f.P_ITEMS] + items[k]] = 0
            there = _complete(segment, params, consumer, _unit(segment, params, items[k : k + 1]))
            numbers(segment, params, consumer)[items[k]] = published[items[k]] if there else 0
            if there and not acks[items[k]] >> consumer & 1:
                _insert(segment, params, consumer, items[k], np.int64(-1))

"""Consumers' lines: for each consumer, in order, the items that wait to be served to it.

An item stands in a consumer's line from its publication until it is claimed or acknowledged; what comes back stands
where it stood, so before what was never served. Items that are served together (a group) are a unit: neighbours in
every line, claimed as one. Lines are doubly linked lists over item indices, in the order of their units' numbers.
Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.program import LONGS
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.programs import DRAW
from gear.storage.regions import ABSENT


@kernel
def waits(segment, params, consumer, item):
    """Whether an item stands in the line of a consumer."""
    return int32s(segment, params, f.R_LINKS)[2 * (consumer * params[f.P_ITEMS] + item)] != ABSENT


@kernel
def _insert(segment, params, consumer, item, following):
    """An item joins a line before `following`, -1 for the end."""
    links, lines = int32s(segment, params, f.R_LINKS), int64s(segment, params, f.R_LINES)
    units = int64s(segment, params, f.R_UNITS)
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
    units = int64s(segment, params, f.R_UNITS)
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
    """New items (int64[N], indices) wait for every consumer; those of a group are one unit."""
    counters, units = int64s(segment, params, f.R_COUNTERS), int64s(segment, params, f.R_UNITS)
    for k in range(items.shape[0]):
        if k == 0 or params[f.P_GROUPED] == 0:
            counters[f.STAMP] += 1
        units[items[k]] = counters[f.STAMP]
        for consumer in range(params[f.P_CONSUMERS]):
            _insert(segment, params, consumer, items[k], np.int64(-1))


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
        if params[f.P_LEAVING] == 0 or acks[item] != full:
            counters[f.LIVE_ITEMS] -= 1
        acks[item] = 0


@kernel
def claim(segment, params, consumer, units, number, items):
    """Claim the first `units` units that wait, under that number; their items in order. Returns how many items."""
    links, lines = int32s(segment, params, f.R_LINKS), int64s(segment, params, f.R_LINES)
    claims, unit_of = int64s(segment, params, f.R_CLAIMS), int64s(segment, params, f.R_UNITS)
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
    units = int64s(segment, params, f.R_UNITS)
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
    acks = int32s(segment, params, f.R_ACKS)
    for k in range(items.shape[0]):
        for consumer in range(params[f.P_CONSUMERS]):
            int64s(segment, params, f.R_CLAIMS)[consumer * params[f.P_ITEMS] + items[k]] = 0
            if not acks[items[k]] >> consumer & 1:
                _insert(segment, params, consumer, items[k], np.int64(-1))

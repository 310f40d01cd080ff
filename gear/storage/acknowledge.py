"""Acknowledgements: what a consumer is done with is never served to it again; a queue's item leaves with the last one.

The bits stand in the segment. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.program import LONGS, SIGNS
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.evict import evict
from gear.storage.items import item_of
from gear.storage.lines import leave, waits
from gear.storage.programs import COMMIT, DRAW

STALE, APPLIED, AGAIN, REPEATED = range(4)
"""Outcomes: evicted since; acknowledged; claimed by somebody else since; acknowledged before."""


@kernel
def stored_item(segment, params, number):
    """(slot, index) of the item with an id, (-1, -1) if it is not stored any more, or is no item's id."""
    nothing = np.int64(-1), np.int64(-1)
    slots, blocks = int64s(segment, params, f.R_SLOTS), int32s(segment, params, f.R_BLOCKS)
    generation_mask = (np.int64(1) << (f.ID_SHARD_SHIFT - params[f.P_ROW_BITS])) - 1
    row = number & ((np.int64(1) << params[f.P_ROW_BITS]) - 1)
    block = row // params[f.P_BLOCK_STEPS]
    prefix = params[f.P_TABLE] << (f.ID_TABLE_SHIFT - f.ID_SHARD_SHIFT) | params[f.P_SHARD]
    if number < 0 or number >> f.ID_SHARD_SHIFT != prefix or block >= params[f.P_BLOCKS]:
        return nothing
    record = block * f.BLOCK_FIELDS
    slot = np.int64(blocks[record + f.SLOT])
    if slot < 0 or blocks[record + f.GENERATION] != (number >> params[f.P_ROW_BITS]) & generation_mask:
        return nothing
    at = slot * f.SLOT_FIELDS
    if slots[at + f.STATE] != f.OPEN and slots[at + f.STATE] != f.CLOSED:
        return nothing
    t = np.int64(blocks[record + f.ORDINAL]) * params[f.P_BLOCK_STEPS] + row - block * params[f.P_BLOCK_STEPS]
    if params[f.P_ITEM] == f.WHOLE:
        if t != 0:
            return nothing
    elif t % params[f.P_STRIDE] != 0 or t // params[f.P_STRIDE] >= slots[at + f.ITEMS]:
        return nothing
    return slot, item_of(params, blocks, block, row)


@DRAW.kernel(ids=LONGS, items=LONGS)
def items_of_ids(segment, params, ids, items):
    """The indices of those ids' items that are stored, in `items`: int64[N]; returns how many."""
    n = 0
    for k in range(ids.shape[0]):
        _, item = stored_item(segment, params, ids[k])
        if item >= 0:
            items[n] = item
            n += 1
    return n


@COMMIT.kernel(ids=LONGS, outcomes=SIGNS)
def acknowledge(segment, params, consumer, client, ids, outcomes):
    """Acknowledge items by id for a consumer; `outcomes`: int8[N] gets what became of each.

    client: who says so; what another one has claimed is its to acknowledge.
    """
    counters, slots = int64s(segment, params, f.R_COUNTERS), int64s(segment, params, f.R_SLOTS)
    lines, claims = int64s(segment, params, f.R_LINES), int64s(segment, params, f.R_CLAIMS)
    acks = int32s(segment, params, f.R_ACKS)
    full = (1 << params[f.P_CONSUMERS]) - 1
    for k in range(ids.shape[0]):
        slot, item = stored_item(segment, params, ids[k])
        if item < 0:
            outcomes[k] = STALE
            continue
        at = consumer * params[f.P_ITEMS] + item
        if acks[item] >> consumer & 1:
            outcomes[k] = REPEATED
            continue
        if claims[at] != 0 and claims[at] & ((1 << f.CLAIM_CLIENT_BITS) - 1) != client:
            outcomes[k] = AGAIN
            continue
        if waits(segment, params, consumer, item):
            leave(segment, params, consumer, item)
        claims[at] = 0
        acks[item] |= 1 << consumer
        lines[consumer * f.LINE_FIELDS + f.LINE_ACKNOWLEDGED] += 1
        outcomes[k] = APPLIED
        if acks[item] != full:
            continue
        counters[f.SAMPLED_ITEMS] += 1
        if params[f.P_LEAVING] == 0:
            continue
        counters[f.LIVE_ITEMS] -= 1
        counters[f.ITEM_COUNT] -= 1
        counters[f.DELETED_ITEMS] += 1
        slots[slot * f.SLOT_FIELDS + f.GONE] += 1
        if (
            slots[slot * f.SLOT_FIELDS + f.STATE] == f.CLOSED
            and slots[slot * f.SLOT_FIELDS + f.GONE] == slots[slot * f.SLOT_FIELDS + f.ITEMS]
        ):
            evict(segment, params, slot, True)


@COMMIT.kernel(items=LONGS)
def reclaim(segment, params, consumer, number, items):
    """Claim anew, under an old number, those of the items (int64[N]) that wait; returns how many."""
    claims, n = int64s(segment, params, f.R_CLAIMS), 0
    for k in range(items.shape[0]):
        if waits(segment, params, consumer, items[k]):
            leave(segment, params, consumer, items[k])
            claims[consumer * params[f.P_ITEMS] + items[k]] = number
            n += 1
    return n

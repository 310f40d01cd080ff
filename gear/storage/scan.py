"""Scan: list the items of a table page by page, one compiled call each.

A listing goes through the slots in their order and through the items of each. A trajectory keeps its slot as
long as it is stored, so an item that is stored all the time is met exactly once, whatever comes and goes
meanwhile; the number of the trajectory beside the slot tells when another one has taken its place. A call
looks at a bounded number of slots and items. Compiled; reads only.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.program import FLOATS, LONGS, SHORTS
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.items import item_index
from gear.storage.programs import DRAW

MOST_LOOKS = 1 << 18
"""Slots and items that one call looks at, listed or not: about a millisecond."""


@DRAW.kernel()
def keeps_priorities(segment, params):
    """Whether items of the table have priorities."""
    return float64s(segment, params, f.R_RAW).shape[0] > 0 or params[f.P_SAMPLER] == f.PRIORITIZED


@DRAW.kernel(ids=LONGS, trajectories=LONGS, positions=LONGS, lengths=SHORTS, priorities=FLOATS)
def scan(segment, params, slot, order, item, ids, trajectories, positions, lengths, priorities):
    """List items from number `item` of the trajectory `order` in `slot` on, or from all of what is there by now.

    ids, trajectories, positions: int64[N]; lengths: int32[N]; priorities: float64[N], or [0] where there are
    none. Returns (items listed, next slot, next order, next item); the slot is `P_SLOTS` at the end.
    """
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    times, acks = int32s(segment, params, f.R_TIMES), int32s(segment, params, f.R_ACKS)
    full = (1 << params[f.P_CONSUMERS]) - 1
    steps, stride, window = params[f.P_BLOCK_STEPS], params[f.P_STRIDE], params[f.P_LENGTH]
    kind, head = params[f.P_ITEM], params[f.P_ITEM] == f.WINDOW and params[f.P_EDGE] == f.HEAD
    prefix = params[f.P_TABLE] << f.ID_TABLE_SHIFT | params[f.P_SHARD] << f.ID_SHARD_SHIFT
    raw = float64s(segment, params, f.R_RAW)
    tree = float64s(segment, params, f.R_TREE)
    floats = float64s(segment, params, f.R_FLOATS)
    stored_raw, kept = raw.shape[0] > 0, priorities.shape[0] > 0
    exponent = 1.0 if stored_raw or not kept else 1.0 / floats[f.ALPHA]
    n, looks, most = 0, 0, ids.shape[0]
    while slot < params[f.P_SLOTS] and n < most and looks < MOST_LOOKS:
        at = slot * f.SLOT_FIELDS
        looks += 1
        if slots[at + f.STATE] != f.OPEN and slots[at + f.STATE] != f.CLOSED:
            slot += 1
            continue
        if slots[at + f.ORDER] != order:
            order = slots[at + f.ORDER]
            item = np.int64(0)
        block, total = slots[at + f.FIRST], slots[at + f.ITEMS]
        while item < total and n < most and looks < MOST_LOOKS:
            looks += 1
            t = item * stride if kind != f.WHOLE else 0
            while np.int64(blocks[block * f.BLOCK_FIELDS + f.ORDINAL]) < t // steps:
                block = np.int64(blocks[block * f.BLOCK_FIELDS + f.NEXT])
            index = slot if kind == f.WHOLE else item_index(params, block, t // steps, item)
            item += 1
            if times.shape[0] > 0 and times[2 * index + 1] >= params[f.P_MAX_TIMES]:  # used up
                continue
            if params[f.P_LEAVING] != 0 and acks[index] == full:  # consumed
                continue
            row = block * steps + t % steps
            ids[n] = prefix | np.int64(blocks[block * f.BLOCK_FIELDS + f.GENERATION]) << params[f.P_ROW_BITS] | row
            trajectories[n] = order
            if kind == f.WHOLE:
                lengths[n] = slots[at + f.LENGTH]
            elif kind == f.STEP:
                lengths[n] = 1
            elif head:
                lengths[n] = min(window, t + 1)
                t -= lengths[n] - 1
            else:
                lengths[n] = min(window, slots[at + f.LENGTH] - t)
            positions[n] = t
            if stored_raw and kept:
                priorities[n] = raw[index]
            elif kept:  # computed back from its leaf
                leaf = tree[index]
                priorities[n] = max(0.0, leaf**exponent - floats[f.EPS]) if leaf > 0.0 else 0.0
            n += 1
        if item >= total:
            slot += 1
            item = np.int64(0)
            order = np.int64(-1)
    return n, slot, order, item

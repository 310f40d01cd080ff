"""Pick: items by their ids instead of a draw. Compiled; single writer."""

from __future__ import annotations

import numpy as np

from gear.kernels.program import LONGS, SHORTS
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.items import item_of
from gear.storage.locate import locate
from gear.storage.programs import DRAW


@DRAW.kernel(ids=LONGS, starts=LONGS, lengths=SHORTS)
def pick(segment, params, ids, starts, lengths):
    """Say where the rows of items lie and pin their slots, all or none.

    ids, starts: int64[B]; lengths: int32[B]. Returns how many ids name no item that is stored now; with any, nothing
    is pinned and `starts` is -1 where they are.
    """
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    row_mask = (np.int64(1) << params[f.P_ROW_BITS]) - 1
    generation_mask = (np.int64(1) << (f.ID_SHARD_SHIFT - params[f.P_ROW_BITS])) - 1
    prefix = params[f.P_TABLE] << (f.ID_TABLE_SHIFT - f.ID_SHARD_SHIFT) | params[f.P_SHARD]
    steps, stale = params[f.P_BLOCK_STEPS], 0
    for k in range(ids.shape[0]):
        row = ids[k] & row_mask
        block = row // steps
        starts[k] = -1
        stale += 1
        if ids[k] < 0 or ids[k] >> f.ID_SHARD_SHIFT != prefix or block >= params[f.P_BLOCKS]:
            continue
        record = block * f.BLOCK_FIELDS
        slot = np.int64(blocks[record + f.SLOT])
        if slot < 0 or blocks[record + f.GENERATION] != (ids[k] >> params[f.P_ROW_BITS]) & generation_mask:
            continue
        at = slot * f.SLOT_FIELDS
        if slots[at + f.STATE] != f.OPEN and slots[at + f.STATE] != f.CLOSED:
            continue
        t = np.int64(blocks[record + f.ORDINAL]) * steps + row - block * steps
        if params[f.P_ITEM] == f.WHOLE:
            if t != 0 or slots[at + f.ITEMS] == 0:
                continue
        elif t % params[f.P_STRIDE] != 0 or t // params[f.P_STRIDE] >= slots[at + f.ITEMS]:
            continue
        starts[k] = item_of(params, blocks, block, row)
        stale -= 1
    if stale == 0:
        same = np.empty_like(ids)
        locate(segment, params, ids.shape[0], 1, same, starts, lengths)
    return stale

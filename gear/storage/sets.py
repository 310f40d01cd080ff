"""Sets of items: each has a sampler structure of its own, so that a draw from it needs no rejection and no scan.

Set 0 holds every item. Each declared requirement has one with the items whose late columns are all there, and a table
with `include_open` one that holds the rows of its open trajectories too. ``params`` holds a head for each set; a
head (``line``) is what the sampler's functions take. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.storage import fields as f
from gear.storage.directory import int64s
from gear.storage.items import item_count


@kernel
def head(params, k):
    """The parameters of set number `k`."""
    width = params.shape[0] // params[f.P_SETS]
    return params[k * width : (k + 1) * width]


@kernel
def items_in(segment, line, slot):
    """How many items of a stored slot belong to the set, used up or not: its first ones."""
    slots = int64s(segment, line, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    if slots[at + f.STATE] == f.OPEN and slots[at + f.WRITER] == f.TABLE:
        if line[f.P_WITH_OPEN] == 0 or slots[at + f.LENGTH] == 0:
            return np.int64(0)
        return np.int64(1) if line[f.P_ITEM] == f.WHOLE else item_count(line, slots[at + f.LENGTH], False)
    needs = line[f.P_NEEDS]
    if needs != 0:
        if slots[at + f.STATE] != f.CLOSED:
            return np.int64(0)
        if int64s(segment, line, f.R_LATE)[slot * f.LATE_FIELDS + f.LATE_BITS] & needs != needs:
            return np.int64(0)
    return slots[at + f.ITEMS]

"""Draws for consumers: the first units of a consumer's line are claimed, pinned and located in one compiled call."""

from __future__ import annotations

from gear.kernels.program import LONGS, SHORTS
from gear.storage import fields as f
from gear.storage.directory import int64s
from gear.storage.lines import claim
from gear.storage.locate import locate
from gear.storage.programs import DRAW


@DRAW.kernel(ids=LONGS, starts=LONGS, lengths=SHORTS)
def select_claimed(segment, params, consumer, units, number, ids, starts, lengths):
    """Claim `units` units under that number and pin their slots.

    ids, starts: int64[B]; lengths: int32[B], with room for the items of so many units. Returns how many items.
    """
    n = claim(segment, params, consumer, units, number, starts)
    locate(segment, params, n, 1, ids, starts, lengths)
    counters = int64s(segment, params, f.R_COUNTERS)
    counters[f.DRAWS] += n
    counters[f.DRAWN_STEPS] += lengths[:n].sum()
    return n

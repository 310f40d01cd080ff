"""Versions: which trajectories are too old, and what their leaving does.

The policy version of a trajectory stands in its slot's entry of the region ``versions``, the table's current one in a
counter. A closed trajectory whose version is more than `max_staleness` behind leaves at once; the limiter forgets what
nobody has sampled of it, so that producers get their credit back. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.evict import evict
from gear.storage.items import indices
from gear.storage.passing import forgive
from gear.storage.programs import COMMIT


@COMMIT.kernel()
def untouched(segment, params, slot):
    """Items of a slot that were never handed out, as far as that is counted; that some consumer still waits for."""
    n = int64s(segment, params, f.R_SLOTS)[slot * f.SLOT_FIELDS + f.ITEMS]
    if params[f.P_MAX_TIMES] == 0 and params[f.P_CONSUMERS] == 0:
        return n
    items, left = indices(segment, params, slot, 0, n), 0
    if params[f.P_CONSUMERS] > 0:
        acks, full = int32s(segment, params, f.R_ACKS), (1 << params[f.P_CONSUMERS]) - 1
        for k in range(n):
            if acks[items[k]] != full:
                left += 1
        return left
    times = int32s(segment, params, f.R_TIMES)
    for k in range(n):
        if times[2 * items[k]] == 0:
            left += 1
    return left


@kernel
def _expire(segment, params, slot):
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    left = untouched(segment, params, slot)
    counters[f.EXPIRED] += 1
    counters[f.EXPIRED_STEPS] += slots[at + f.LENGTH]
    slots[at + f.FLAGS] |= f.STALE_NOW
    evict(segment, params, slot, False)
    forgive(segment, params, left)


@kernel
def expire_if_stale(segment, params, slot):
    """A closed trajectory leaves if it is too old, and with it the others of its group; whether it does."""
    if params[f.P_MAX_STALENESS] < 0:
        return False
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    version = int64s(segment, params, f.R_VERSIONS)[slot]
    if slots[at + f.STATE] != f.CLOSED or version >= counters[f.VERSION] - params[f.P_MAX_STALENESS]:
        return False
    if params[f.P_GROUPED] > 0:
        mates = int32s(segment, params, f.R_MATES)
        while mates[slot] != slot:
            _expire(segment, params, np.int64(mates[slot]))
    _expire(segment, params, slot)
    return True


@COMMIT.kernel()
def set_version(segment, params, version):
    """Raise the table's version; too old trajectories leave. Returns the version: it never falls."""
    counters = int64s(segment, params, f.R_COUNTERS)
    if version <= counters[f.VERSION]:
        return counters[f.VERSION]
    counters[f.VERSION] = version
    if params[f.P_MAX_STALENESS] >= 0:
        slots = int64s(segment, params, f.R_SLOTS)
        slot = counters[f.OLDEST]
        while slot >= 0:
            newer = slots[slot * f.SLOT_FIELDS + f.NEWER]
            if expire_if_stale(segment, params, slot) and params[f.P_GROUPED] > 0:
                newer = counters[f.OLDEST]  # the next one may have gone with its group
            slot = newer
    return version

"""Uniform draws over units that hold a few items each: a dense list of live units, and rejection.

A unit is a block (or a slot, for whole trajectories) with a number of items. A draw picks a live unit and a
place in it at once and accepts when the unit has that many items: exactly uniform over items, no scan,
no cost that grows with what is stored. An entry of the list holds unit and number of items together
(one cache miss for both): ``items << 32 | unit``; `position` says where a unit stands. 12 bytes a unit.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.host import random_bits

UNIT = 0xFFFFFFFF
"""Mask of the unit within an entry."""


@kernel
def count(live, position, size, unit):
    """Items of `unit`, 0 if it is not among the first `size` entries of `live` (int64[N])."""
    place = position[unit]
    if place < size and live[place] & UNIT == unit:
        return live[place] >> 32
    return np.int64(0)


@kernel
def raise_count(live, position, size, unit, amount):
    """Give `unit` that many more items; returns the new size of the list."""
    if count(live, position, size, unit) > 0:
        live[position[unit]] += amount << 32
        return size
    live[size] = amount << 32 | unit
    position[unit] = size
    return size + 1


@kernel
def lower_count(live, position, size, unit, amount):
    """Take that many items from `unit`; the last entry fills an empty one's place. Returns the new size."""
    place = position[unit]
    live[place] -= amount << 32
    if live[place] >> 32 > 0:
        return size
    last = live[size - 1]
    live[place] = last
    position[last & UNIT] = place
    return size - 1


@kernel
def below(seed, draw, attempt, bound):
    """A number in 0..bound-1 for one numbered draw; bias below bound / 2**53."""
    return int(float(random_bits(seed, draw, attempt) >> np.uint64(11)) * (1.0 / 9007199254740992.0) * bound)

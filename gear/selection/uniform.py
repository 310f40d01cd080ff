"""Uniform draws over units that hold a few items each: a dense list of live units, and rejection.

A unit is a block (or a slot for whole trajectories) with ``count`` items. A draw picks a live unit and a
place in it at once and accepts when the unit has that many items: exactly uniform over items, no scan,
no cost that grows with what is stored, 12 bytes per unit. Compiled; the caller owns the arrays.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.host import random_bits


@kernel
def add(live, position, size, unit):
    """Put `unit` on the list of `size` live units; returns the new size."""
    live[size] = unit
    position[unit] = size
    return size + 1


@kernel
def remove(live, position, size, unit):
    """Take `unit` off the list; the last one fills its place. Returns the new size."""
    last = live[size - 1]
    place = position[unit]
    live[place] = last
    position[last] = place
    return size - 1


@kernel
def below(seed, draw, attempt, bound):
    """A number in 0..bound-1 for one numbered draw; bias below bound / 2**53."""
    return int(float(random_bits(seed, draw, attempt) >> np.uint64(11)) * (1.0 / 9007199254740992.0) * bound)

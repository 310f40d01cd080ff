"""Discounted sums on a GPU: n-step returns, and returns to go to the end of a trajectory.

Sums are added in the order of the reference, product and sum rounded one after the other, so they are the same to the
bit. An n-step return is a thread's own. Returns to go are made by all threads of a block together, one per element of
a row: they load a stretch of rewards into shared memory, and each sums up its own.
"""

from __future__ import annotations

from gear.kernels.cuda_cast import as_bits, as_float, item_size, load, store
from gear.kernels.cuda_seam import bits_of_single, device, number_of, quotient, store_4, times
from gear.kernels.cuda_show import END as TRAJECTORY_END
from gear.kernels.cuda_show import ENDED, FIRST_RUN, NUMBER, OWN_SLOT, address, find
from gear.kernels.cuda_trace import base_of
from gear.kernels.host_trace import RUN
from gear.kernels.records import (
    BLOCK_STEPS,
    DEPTH,
    ELEMENTS,
    GAMMA,
    RESULT,
    SOURCE,
)

STRETCH = 512
"""Values that a block of threads has in its shared memory."""


@device
def value_at(segment, plan, c, notes, position, element):
    """A column's value at a position as float64."""
    i, size = find(notes, plan[0, BLOCK_STEPS], position), item_size(plan[c, SOURCE])
    return as_float(load(address(segment, plan, c, notes, i, position) + element * size, size), plan[c, SOURCE])


@device
def write_returns(segment, plan, c, target, discounts, counts, notes, begin, end, gap, shown, position, lane, lanes):
    """Rows begin..end of an n-step view: sums, discounts (float32) and numbers of steps (int32), zeros where padded."""
    elements, size, gamma = plan[c, ELEMENTS], item_size(plan[c, RESULT]), number_of(plan[c, GAMMA])
    row = begin + quotient(lane, max(1, elements))
    element = lane - (row - begin) * elements
    while row < end and elements > 0:
        taken, total, discount = 0, 0.0, 1.0
        if gap <= row < gap + shown:
            first = position + row - gap
            taken = min(plan[c, DEPTH], notes[TRAJECTORY_END] - first)
            for i in range(taken):
                total = total + times(discount, value_at(segment, plan, c, notes, first + i, element))
                discount = times(discount, gamma)
            if notes[ENDED] and first + taken == notes[TRAJECTORY_END]:
                discount = 0.0
            store(target + (row * elements + element) * size, size, as_bits(total, plan[c, RESULT]))
        else:
            discount = 0.0
        if element == 0:
            store_4(discounts + 4 * row, bits_of_single(discount))
            store_4(counts + 4 * row, taken)
        element += lanes
        while element >= elements:
            row, element = row + 1, element - elements


@device
def write_timesteps(segment, plan, c, target, notes, begin, end, gap, shown, position, lane, lanes):
    """Rows begin..end of a view of the steps since the trajectory began."""
    size = item_size(plan[c, RESULT])
    first = base_of(segment, plan, notes[OWN_SLOT]) + notes[NUMBER] + position - gap
    for row in range(max(begin, gap) + lane, min(end, gap + shown), lanes):
        store(target + row * size, size, as_bits(float(first + row), plan[c, RESULT]))


@device
def last_row(plan, notes, position):
    """The row number of a position that a run holds."""
    at = FIRST_RUN + RUN * find(notes, plan[0, BLOCK_STEPS], position)
    return notes[at + 1] * plan[0, BLOCK_STEPS] + notes[at + 2] + position - notes[at]

"""Where the rows around an item lie, on the host: along the chain of blocks, over the seams of a split trajectory.

Compiled into `host.gather_views`. Positions are relative to the item's first row. Records are read while their owner
may write them: each is read once, and checked, so that a walk stays in the segment and ends whatever they hold.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import fence, helper, read_int32, read_int64
from gear.kernels.records import (
    BASE,
    BLOCK_COUNT,
    BLOCK_FIELDS,
    BLOCK_STEPS,
    BLOCKS,
    CONTINUED,
    FIRST,
    FLAGS,
    HAS_FINAL,
    LAST,
    LENGTH,
    NEXT,
    ORDINAL,
    PREDECESSOR,
    PREVIOUS,
    SLOT,
    SLOT_COUNT,
    SLOT_FIELDS,
    SLOTS,
    SUCCESSOR,
    TERMINATED,
)

# A place in a trajectory, int64[PLACE]: position; block and step in it; slot and rows left of it; whether the
# trajectory is OVER, whether its final row stands here, whether it ended in a terminal state; the slot's rows as read;
# the slot of the item, which may always be read.
PLACE = 10
AT, BLOCK, STEP, OF, LEFT, OVER, FINAL, TERMINAL, KNOWN, HOME = range(PLACE)

RUN = 3
"""Fields of a run of rows in one block: the position of its first row, the block, and the step in it."""

Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]


@helper
def _block(base: int, plan: Integers, block: int, field: int) -> int:
    return read_int32(base + plan[0, BLOCKS] + 4 * (block * BLOCK_FIELDS + field))


@helper
def slot_field(base: int, plan: Integers, slot: int, field: int) -> int:
    """A field of a slot record."""
    return read_int64(base + plan[0, SLOTS] + 8 * (slot * SLOT_FIELDS + field))


@helper
def _held(neighbours: Shorts, plan: Integers, place: Integers, slot: int) -> bool:
    """Whether a neighbouring piece may be read; neighbours: in rising order."""
    if slot == place[HOME]:
        return slot >= 0
    low, high = 0, neighbours.shape[0]
    while low < high:
        middle = (low + high) // 2
        if neighbours[middle] < slot:
            low = middle + 1
        else:
            high = middle
    return 0 <= slot < plan[0, SLOT_COUNT] and low < neighbours.shape[0] and neighbours[low] == slot


@helper
def stand(base: int, plan: Integers, row: int, place: Integers) -> int:
    """Stand on a row of the arena; returns its number in its piece, -1 if it is none."""
    steps, block = plan[0, BLOCK_STEPS], row // plan[0, BLOCK_STEPS]
    place[OVER] = 1
    place[FINAL] = place[TERMINAL] = place[AT] = place[LEFT] = 0
    if row < 0 or block >= plan[0, BLOCK_COUNT]:
        return np.int64(-1)
    slot, ordinal = _block(base, plan, block, SLOT), _block(base, plan, block, ORDINAL)
    if slot < 0 or slot >= plan[0, SLOT_COUNT] or ordinal < 0:
        return np.int64(-1)
    place[BLOCK], place[STEP], place[OF] = block, row - block * steps, slot
    number = ordinal * steps + place[STEP]
    place[KNOWN], place[OVER] = slot_field(base, plan, slot, LENGTH), 0
    place[LEFT] = place[KNOWN] - number
    return number


@helper
def go_back(base: int, plan: Integers, neighbours: Shorts, place: Integers, rows: int) -> None:
    """Move up to `rows` rows back."""
    steps, count = plan[0, BLOCK_STEPS], plan[0, BLOCK_COUNT]
    while rows > 0:
        if place[STEP] > 0:
            back = min(place[STEP], rows)
            place[STEP] -= back
            place[AT] -= back
            place[LEFT] += back
            rows -= back
            continue
        ordinal = _block(base, plan, place[BLOCK], ORDINAL)
        if ordinal > 0:
            block = _block(base, plan, place[BLOCK], PREVIOUS)
            if block < 0 or block >= count:
                return
            place[BLOCK], place[STEP] = block, steps
            continue
        slot = slot_field(base, plan, place[OF], PREDECESSOR)
        if not _held(neighbours, plan, place, slot):
            return
        block, length = slot_field(base, plan, slot, LAST), slot_field(base, plan, slot, LENGTH)
        if block < 0 or block >= count:
            return
        step = length - _block(base, plan, block, ORDINAL) * steps
        if step < 1 or step > steps:
            return
        place[BLOCK], place[STEP], place[OF], place[LEFT], place[KNOWN] = block, step, slot, 0, length


@helper
def _pass_end(base: int, plan: Integers, neighbours: Shorts, place: Integers) -> bool:
    """At the end of a piece: go on in the next one (True), or note how the trajectory ended."""
    slot, steps = place[OF], plan[0, BLOCK_STEPS]
    flags = slot_field(base, plan, slot, FLAGS)
    fence()
    length = slot_field(base, plan, slot, LENGTH)
    if length > place[KNOWN]:  # it has grown meanwhile: what `flags` say may be about the longer one
        place[LEFT], place[KNOWN] = length - place[KNOWN], length
        return True
    place[OVER] = 1
    if flags & CONTINUED:
        slot = slot_field(base, plan, slot, SUCCESSOR)
        if not _held(neighbours, plan, place, slot):
            return False
        block, length = slot_field(base, plan, slot, FIRST), slot_field(base, plan, slot, LENGTH)
        if block < 0 or block >= plan[0, BLOCK_COUNT] or length < 1:
            return False
        place[BLOCK], place[STEP], place[OF], place[LEFT], place[KNOWN] = block, 0, slot, length, length
        place[OVER] = 0
        return True
    place[TERMINAL] = 1 if flags & TERMINATED else 0
    if flags & HAS_FINAL:
        if place[STEP] == steps:
            block = _block(base, plan, place[BLOCK], NEXT)
            if block < 0 or block >= plan[0, BLOCK_COUNT]:
                return False
            place[BLOCK], place[STEP] = block, 0
        place[FINAL] = 1
    return False


@helper
def run(base: int, plan: Integers, neighbours: Shorts, place: Integers, want: int) -> int:
    """How many of `want` rows lie side by side from the place on, which is moved to where they are; 0 at the end."""
    steps = plan[0, BLOCK_STEPS]
    while place[OVER] == 0:
        if place[LEFT] <= 0:
            if not _pass_end(base, plan, neighbours, place):
                return np.int64(0)
            continue
        if place[STEP] == steps:
            block = _block(base, plan, place[BLOCK], NEXT)
            if block < 0 or block >= plan[0, BLOCK_COUNT]:
                place[OVER] = 1
                return np.int64(0)
            place[BLOCK], place[STEP] = block, 0
        return min(min(steps - place[STEP], place[LEFT]), want)
    return np.int64(0)


@helper
def move(place: Integers, rows: int) -> None:
    """Move on by rows that `run` found."""
    place[AT] += rows
    place[STEP] += rows
    place[LEFT] -= rows


@helper
def trace(base: int, plan: Integers, neighbours: Shorts, place: Integers, until: int, runs: Integers) -> int:
    """Note the runs of rows from the place on up to position `until`, and the final row if it comes at or before it.

    runs: int64[N, RUN]. Returns how many; the place stands behind them. What does not fit is left out.
    """
    n = 0
    while n < runs.shape[0]:
        rows = run(base, plan, neighbours, place, until - place[AT])
        if rows <= 0:
            if place[OVER] and place[FINAL]:
                runs[n, 0], runs[n, 1], runs[n, 2] = place[AT], place[BLOCK], place[STEP]
                n += 1
            return n
        runs[n, 0], runs[n, 1], runs[n, 2] = place[AT], place[BLOCK], place[STEP]
        n += 1
        move(place, rows)
    return n


@helper
def base_of(base: int, plan: Integers, slot: int) -> int:
    """Steps of the trajectory before a piece."""
    return slot_field(base, plan, slot, BASE)

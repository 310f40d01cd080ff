"""Where the rows around an item lie, on a GPU: along the chain of blocks, over the seams of a split trajectory.

What `host_trace` does, by one thread for its block of threads. Positions are relative to the item's first row. Records
are read while their owner may write them: each is read once, and checked, so that a walk stays in the segment and ends.
"""

from __future__ import annotations

from gear.kernels.cuda_seam import device, fence, peek_4, peek_8
from gear.kernels.host_trace import AT, BLOCK, FINAL, HOME, KNOWN, LEFT, OF, OVER, PLACE, RUN, STEP, TERMINAL
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

# A place is that of `host_trace`, and behind it where the numbers of the slots lie that may be read, and how many.
NEIGHBOURS, HELD = PLACE, PLACE + 1
PLACE_ON = PLACE + 2
"""int64s of a place here."""


@device
def _block(segment, plan, block, field):
    return peek_4(segment + plan[0, BLOCKS] + 4 * (block * BLOCK_FIELDS + field))


@device
def slot_field(segment, plan, slot, field):
    """A field of a slot record."""
    return peek_8(segment + plan[0, SLOTS] + 8 * (slot * SLOT_FIELDS + field))


@device
def _held(plan, place, slot):
    """Whether a neighbouring piece may be read."""
    if slot == place[HOME]:
        return slot >= 0
    low, high = 0, place[HELD]
    while low < high:
        middle = (low + high) // 2
        if peek_4(place[NEIGHBOURS] + 4 * middle) < slot:
            low = middle + 1
        else:
            high = middle
    if slot < 0 or slot >= plan[0, SLOT_COUNT] or low >= place[HELD]:
        return False
    return peek_4(place[NEIGHBOURS] + 4 * low) == slot


@device
def stand(segment, plan, row, place):
    """Stand on a row of the arena; returns its number in its piece, -1 if it is none."""
    steps, block = plan[0, BLOCK_STEPS], row // plan[0, BLOCK_STEPS]
    place[OVER] = 1
    place[FINAL], place[TERMINAL], place[AT], place[LEFT] = 0, 0, 0, 0
    if row < 0 or block >= plan[0, BLOCK_COUNT]:
        return -1
    slot, ordinal = _block(segment, plan, block, SLOT), _block(segment, plan, block, ORDINAL)
    if slot < 0 or slot >= plan[0, SLOT_COUNT] or ordinal < 0:
        return -1
    place[BLOCK], place[STEP], place[OF] = block, row - block * steps, slot
    number = ordinal * steps + place[STEP]
    place[KNOWN], place[OVER] = slot_field(segment, plan, slot, LENGTH), 0
    place[LEFT] = place[KNOWN] - number
    return number


@device
def go_back(segment, plan, place, rows):
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
        ordinal = _block(segment, plan, place[BLOCK], ORDINAL)
        if ordinal > 0:
            block = _block(segment, plan, place[BLOCK], PREVIOUS)
            if block < 0 or block >= count:
                return
            place[BLOCK], place[STEP] = block, steps
            continue
        slot = slot_field(segment, plan, place[OF], PREDECESSOR)
        if not _held(plan, place, slot):
            return
        block, length = slot_field(segment, plan, slot, LAST), slot_field(segment, plan, slot, LENGTH)
        if block < 0 or block >= count:
            return
        step = length - _block(segment, plan, block, ORDINAL) * steps
        if step < 1 or step > steps:
            return
        place[BLOCK], place[STEP], place[OF], place[LEFT], place[KNOWN] = block, step, slot, 0, length


@device
def _pass_end(segment, plan, place):
    """At the end of a piece: go on in the next one (True), or note how the trajectory ended."""
    slot, steps = place[OF], plan[0, BLOCK_STEPS]
    flags = slot_field(segment, plan, slot, FLAGS)
    fence()
    length = slot_field(segment, plan, slot, LENGTH)
    if length > place[KNOWN]:  # it has grown meanwhile: what `flags` say may be about the longer one
        place[LEFT], place[KNOWN] = length - place[KNOWN], length
        return True
    place[OVER] = 1
    if flags & CONTINUED:
        slot = slot_field(segment, plan, slot, SUCCESSOR)
        if not _held(plan, place, slot):
            return False
        block, length = slot_field(segment, plan, slot, FIRST), slot_field(segment, plan, slot, LENGTH)
        if block < 0 or block >= plan[0, BLOCK_COUNT] or length < 1:
            return False
        place[BLOCK], place[STEP], place[OF], place[LEFT], place[KNOWN] = block, 0, slot, length, length
        place[OVER] = 0
        return True
    place[TERMINAL] = 1 if flags & TERMINATED else 0
    if flags & HAS_FINAL:
        if place[STEP] == steps:
            block = _block(segment, plan, place[BLOCK], NEXT)
            if block < 0 or block >= plan[0, BLOCK_COUNT]:
                return False
            place[BLOCK], place[STEP] = block, 0
        place[FINAL] = 1
    return False


@device
def run(segment, plan, place, want):
    """How many of `want` rows lie side by side from the place on, which is moved to where they are; 0 at the end."""
    steps = plan[0, BLOCK_STEPS]
    while place[OVER] == 0:
        if place[LEFT] <= 0:
            if not _pass_end(segment, plan, place):
                return 0
            continue
        if place[STEP] == steps:
            block = _block(segment, plan, place[BLOCK], NEXT)
            if block < 0 or block >= plan[0, BLOCK_COUNT]:
                place[OVER] = 1
                return 0
            place[BLOCK], place[STEP] = block, 0
        return min(min(steps - place[STEP], place[LEFT]), want)
    return 0


@device
def move(place, rows):
    """Move on by rows that `run` found."""
    place[AT] += rows
    place[STEP] += rows
    place[LEFT] -= rows


@device
def trace(segment, plan, place, until, runs, most):
    """Note the runs of rows from the place on up to position `until`, and the final row if it comes at or before it.

    runs: int64[RUN * most or more]. Returns how many; the place stands behind them. What does not fit is left out.
    """
    n = 0
    while n < most:
        rows = run(segment, plan, place, until - place[AT])
        if rows <= 0 and not (place[OVER] and place[FINAL]):
            return n
        runs[RUN * n], runs[RUN * n + 1], runs[RUN * n + 2] = place[AT], place[BLOCK], place[STEP]
        n += 1
        if rows <= 0:
            return n
        move(place, rows)
    return n


@device
def base_of(segment, plan, slot):
    """Steps of the trajectory before a piece."""
    return slot_field(segment, plan, slot, BASE)

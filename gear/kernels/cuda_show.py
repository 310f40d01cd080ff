"""What a view shows of an item on a GPU: tiles of copied, stacked, converted and padded rows, made by a warp.

One thread has noted the runs of rows around the item (`cuda_views`); a warp makes rows begin..end of a view's result.
Notes are int64s of the block of threads: fields as named here, then the runs, `RUN` numbers each.
"""

from __future__ import annotations

from gear.kernels.cuda_cast import converted, item_size, load, octets_to_singles, store
from gear.kernels.cuda_copy import copy_rows, fill
from gear.kernels.cuda_seam import device, number_of, quotient
from gear.kernels.cuda_trace import PLACE_ON
from gear.kernels.host_trace import RUN
from gear.kernels.records import (
    ARENA,
    BLOCK_BYTES,
    BLOCK_STEPS,
    BYTES,
    DEPTH,
    ELEMENTS,
    FLOAT32,
    OFFSET,
    OP,
    PAD,
    REPEAT,
    RESULT,
    SCALE,
    SOURCE,
    STACK,
    STRIDE,
    UINT8,
    WIDTH,
)

# Notes: a place, another one; the item's rows and slot; position of its first place, how many places; runs; positions
# of the first row, behind the last one, and of the last that may be shown; whether the end is a terminal state; number
# of the first row in its piece; and what threads tell each other when they sum up to the end: rows, and where they lie.
OTHER = PLACE_ON
HAVE, OWN_SLOT, START, PLACES, RUNS, LOW, END, LATEST, ENDED, NUMBER, ROWS, WHERE = range(
    2 * PLACE_ON, 2 * PLACE_ON + 12
)
FIRST_RUN = 2 * PLACE_ON + 12


@device
def find(notes, steps, position):
    """Which run holds a position between the first one and the last one's end."""
    last = notes[RUNS] - 1
    guess = quotient(max(0, position - notes[FIRST_RUN] + notes[FIRST_RUN + 2]), steps)
    i = min(guess, last)
    while i > 0 and notes[FIRST_RUN + RUN * i] > position:
        i -= 1
    while i < last and notes[FIRST_RUN + RUN * (i + 1)] <= position:
        i += 1
    return i


@device
def address(segment, plan, c, notes, i, position):
    """Where the row of column c at a position of run i lies."""
    at = FIRST_RUN + RUN * i
    block = segment + plan[0, ARENA] + notes[at + 1] * plan[0, BLOCK_BYTES]
    return block + plan[c, OFFSET] + (notes[at + 2] + position - notes[at]) * plan[c, STRIDE]


@device
def rows_of_run(notes, i, position, stop):
    """Rows of run i from a position on, none at `stop` or behind it; the last run goes on."""
    if i + 1 < notes[RUNS]:
        stop = min(stop, notes[FIRST_RUN + RUN * (i + 1)])
    return stop - position


@device
def fours(target, source, count, together):
    """Whether values that lie together can be converted to float32 four at a time."""
    return together and (source | count) & 3 == 0 and target & 7 == 0


@device
def emit(plan, c, target, source, stride, width, rows, raw, lane, lanes):
    """Write rows that lie `stride` apart without gaps: `width` bytes each as they are, or the column's converted."""
    kind, result, scale = plan[c, SOURCE], plan[c, RESULT], number_of(plan[c, SCALE])
    if raw or (kind == result and scale == 1.0):
        copy_rows(target, width, source, stride, width, rows, lane, lanes)
        return
    elements, wide, narrow = plan[c, ELEMENTS], item_size(kind), item_size(result)
    if kind == UINT8 and result == FLOAT32 and fours(target, source, rows * elements, rows == 1 or stride == elements):
        octets_to_singles(target, source, (rows * elements) >> 2, scale, lane, lanes)
        return
    row = quotient(lane, max(1, elements))
    at = lane - row * elements
    while row < rows and elements > 0:
        bits = load(source + row * stride + at * wide, wide)
        store(target + (row * elements + at) * narrow, narrow, converted(bits, kind, result, scale))
        at += lanes
        while at >= elements:
            row, at = row + 1, at - elements


@device
def show_slot(segment, size, plan, c, pads, target, slot, lane, lanes):
    """A per-trajectory column's row of the slot, or padding if there is none."""
    source, raw = segment + plan[c, OFFSET] + slot * plan[c, STRIDE], False
    if slot < 0 or source + plan[c, WIDTH] > segment + size:
        if plan[c, PAD] < 0:
            fill(target, plan[c, BYTES], 0, lane, lanes)
            return
        source, raw = pads + plan[c, PAD], True
    emit(plan, c, target, source, plan[c, STRIDE], plan[c, BYTES], 1, raw, lane, lanes)


@device
def show_tile(segment, plan, c, pads, target, notes, begin, end, gap, shown, position, lane, lanes):
    """Rows begin..end of a view: those before row `gap` and from gap + shown on are padding.

    position : that of the row shown at `gap`, moved by the view's shift. A row has DEPTH frames if the view stacks
    them, else it is one; what lies side by side is written at once. What is summed up is written elsewhere.
    """
    op, bytes_of_row, steps = plan[c, OP], plan[c, BYTES], plan[0, BLOCK_STEPS]
    depth = plan[c, DEPTH] if op == STACK else 1
    width, low, last = quotient(bytes_of_row, depth), notes[LOW], notes[LATEST]
    row, frame = begin, 0
    while row < end:
        to = target + row * bytes_of_row + frame * width
        if row < gap or row >= gap + shown:
            frames = (min(gap, end) if row < gap else end) - row
            source, apart, wide, raw = pads + plan[c, PAD], 0, bytes_of_row, True
            zeros, row = plan[c, PAD] < 0, row + frames
        elif op > STACK:
            row = min(gap + shown, end)
            continue
        else:
            first = position + row - gap
            if op == STACK:
                first = min(first, last) - depth + 1 + frame
            here = min(max(first, low), last)
            i = find(notes, steps, here)
            frames = depth - frame if op == STACK else min(gap + shown, end) - row
            zeros = first < low and not plan[c, REPEAT] and op == STACK
            if zeros:
                frames = min(frames, low - first)
            elif first < low or first >= last:
                frames = 1
            else:
                frames = rows_of_run(notes, i, first, min(first + frames, last))
            source, apart, wide, raw = address(segment, plan, c, notes, i, here), plan[c, STRIDE], width, False
            if op == STACK:
                frame += frames
                if frame == depth:
                    row, frame = row + 1, 0
            else:
                row += frames
        if zeros:
            fill(to, frames * wide, 0, lane, lanes)
        else:
            emit(plan, c, to, source, apart, wide, frames, raw, lane, lanes)

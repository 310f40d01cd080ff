"""What a view makes of rows on the host: copies, stacks, conversions, discounted sums.

Compiled into `host_views.gather_views`. The rows around an item have been looked up (`host_trace`); all that is shown
here lies in those runs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import helper, read_float64
from gear.kernels.host_cast import TILE, convert, item_size, to_floats
from gear.kernels.host_copy import fill
from gear.kernels.host_trace import (
    BLOCK,
    STEP,
    move,
    run,
    stand,
)
from gear.kernels.host_windows import copy_rows
from gear.kernels.records import (
    ARENA,
    BEGIN_AT,
    BLOCK_BYTES,
    BLOCK_COUNT,
    BLOCK_STEPS,
    BYTES,
    COUNT,
    DEPTH,
    ELEMENTS,
    GAMMA,
    ITEM_LENGTH,
    KIND,
    N_STEP,
    OFFSET,
    OP,
    PAD,
    PER_STEP,
    RESULT,
    SCALE,
    SHIFT,
    SOURCE,
    STACK,
    STRIDE,
    WIDTH,
)

ENDLESS = np.int64(1) << 40
"""A position behind every end: the trajectory goes on beyond what was looked up."""

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]


@helper
def real(plan: Integers, view: int, field: int) -> float:
    """A float64 whose bits the plan holds."""
    return read_float64(plan.ctypes.data + 8 * (view * plan.shape[1] + field))


@helper
def window_of(plan: Integers, view: int, item: int) -> tuple[int, int]:
    """(first row, rows) of a view of an item that has `item` places."""
    return plan[view, BEGIN_AT], plan[view, COUNT] if plan[view, COUNT] > 0 else item


@helper
def reach(plan: Integers) -> tuple[int, int]:
    """Rows before and behind items that the views show, beside what they sum up to the end."""
    before, after, length = np.int64(0), np.int64(0), plan[0, ITEM_LENGTH]
    for c in range(1, plan.shape[0]):
        if plan[c, KIND] == PER_STEP:
            first, count = window_of(plan, c, length)
            back = plan[c, DEPTH] - 1 if plan[c, OP] == STACK else 0
            ahead = plan[c, DEPTH] if plan[c, OP] == N_STEP else plan[c, SHIFT]
            before = max(before, back - min(first, 0))
            after = max(after, ahead + max(0, first + count - length))
    return before, after


@helper
def _find(runs: Integers, n: int, steps: int, position: int) -> int:
    """Which run holds a position between the first one and the last one's end."""
    i = max(0, min((position - runs[0, 0] + runs[0, 2]) // steps, n - 1))
    while i > 0 and runs[i, 0] > position:
        i -= 1
    while i + 1 < n and runs[i + 1, 0] <= position:
        i += 1
    return i


@helper
def _address(base: int, plan: Integers, view: int, runs: Integers, i: int, position: int) -> int:
    """Where the row at a position of run i lies."""
    step = runs[i, 2] + position - runs[i, 0]
    block = base + plan[0, ARENA] + runs[i, 1] * plan[0, BLOCK_BYTES]
    return block + plan[view, OFFSET] + step * plan[view, STRIDE]


@helper
def emit(plan: Integers, view: int, source: int, target: int, rows: int, floats: Floats, integers: Integers) -> None:
    """Write rows that lie `STRIDE` apart, converted, without gaps."""
    stride, width = plan[view, STRIDE], plan[view, WIDTH]
    kind, result, scale = plan[view, SOURCE], plan[view, RESULT], real(plan, view, SCALE)
    if kind == result and scale == 1.0:
        copy_rows(target, source, stride, width, rows)
        return
    elements, each = plan[view, ELEMENTS], np.int64(1)
    if stride == width:
        elements, each, rows = rows * elements, rows, np.int64(1)
    for i in range(rows):
        to = target + i * elements * item_size(result)
        convert(source + i * stride * each, to, elements, kind, result, scale, floats, integers)


@helper
def emit_rows(
    base: int, plan: Integers, view: int, runs: Integers, n: int, first: int, count: int, low: int, last: int,
    target: int, width: int, floats: Floats, integers: Integers,
) -> None:  # fmt: skip
    """Write the rows at positions first, first + 1, ..., but row `low` for those before it, `last` for those behind.

    width: bytes of a row of the result.
    """
    end = first + count
    while first < end:
        position = min(max(first, low), last)
        i = _find(runs, n, plan[0, BLOCK_STEPS], position)
        rows = np.int64(1)
        if first >= low and first < last:
            stop = min(end, last)
            rows = (stop if i + 1 >= n else min(stop, runs[i + 1, 0])) - first
        emit(plan, view, _address(base, plan, view, runs, i, position), target, rows, floats, integers)
        first, target = first + rows, target + rows * width


@helper
def _values(base: int, plan: Integers, view: int, runs: Integers, n: int, first: int, end: int, out: Floats) -> None:
    """The column's values at positions first..end as float64."""
    elements, at = plan[view, ELEMENTS], 0
    i = _find(runs, n, plan[0, BLOCK_STEPS], first)
    while first < end:
        stop = end if i + 1 >= n else min(end, runs[i + 1, 0])
        _floats(plan, view, _address(base, plan, view, runs, i, first), stop - first, out[at:])
        at, first, i = at + (stop - first) * elements, stop, i + 1


@helper
def _floats(plan: Integers, view: int, source: int, rows: int, out: Floats) -> None:
    """Rows that lie `STRIDE` apart as float64, without gaps."""
    stride, elements = plan[view, STRIDE], plan[view, ELEMENTS]
    if stride == plan[view, WIDTH]:
        rows, elements = np.int64(1), rows * elements
    for i in range(rows):
        to_floats(plan[view, SOURCE], source + i * stride, out[i * elements :], elements)


@helper
def returns(
    base: int, plan: Integers, view: int, runs: Integers, n: int, first: int, count: int, end: int, terminal: bool,
    out: Floats, discounts: npt.NDArray[np.float32], taken: Shorts,
) -> None:  # fmt: skip
    """Discounted sums of up to DEPTH rewards from each of `count` positions on; `end`: where the trajectory ends."""
    steps, elements, gamma = plan[view, DEPTH], plan[view, ELEMENTS], real(plan, view, GAMMA)
    stop = min(first + count - 1 + steps, end)
    rewards = np.empty((stop - first) * elements)
    _values(base, plan, view, runs, n, first, stop, rewards)
    for j in range(count):
        k, discount = min(steps, end - first - j), 1.0
        total = out[j * elements : (j + 1) * elements]
        total[:] = 0.0
        for i in range(k):
            for e in range(elements):
                total[e] += discount * rewards[(j + i) * elements + e]
            discount *= gamma
        if terminal and first + j + k == end:
            discount = 0.0
        discounts[j], taken[j] = discount, k


@helper
def _behind(
    base: int, plan: Integers, view: int, neighbours: Shorts, row: int, place: Integers, floats: Floats, total: Floats
) -> None:
    """The discounted sum of all rewards behind a row of the arena, to the trajectory's end."""
    elements, gamma, discount = plan[view, ELEMENTS], real(plan, view, GAMMA), 1.0
    most = max(1, TILE // elements)
    total[:] = 0.0
    if stand(base, plan, row, place) < 0:
        return
    skip = np.int64(1)
    for _ in range(plan[0, BLOCK_COUNT] * plan[0, BLOCK_STEPS] + 1):  # ends whatever the records hold
        rows = run(base, plan, neighbours, place, most)
        if rows <= 0:
            return
        block = base + plan[0, ARENA] + place[BLOCK] * plan[0, BLOCK_BYTES]
        source = block + plan[view, OFFSET] + place[STEP] * plan[view, STRIDE]
        _floats(plan, view, source, rows, floats)
        for i in range(skip, rows):
            for e in range(elements):
                total[e] += discount * floats[i * elements + e]
            discount *= gamma
        move(place, rows)
        skip = np.int64(0)


@helper
def to_go(
    base: int, plan: Integers, view: int, neighbours: Shorts, runs: Integers, n: int, first: int, count: int,
    out: Floats, place: Integers,
) -> None:  # fmt: skip
    """Sums of all rewards from each of `count` positions on."""
    elements, gamma, steps = plan[view, ELEMENTS], real(plan, view, GAMMA), plan[0, BLOCK_STEPS]
    total = np.empty(elements)
    _values(base, plan, view, runs, n, first, first + count, out)
    i = _find(runs, n, steps, first + count - 1)
    row = runs[i, 1] * steps + runs[i, 2] + first + count - 1 - runs[i, 0]
    _behind(base, plan, view, neighbours, row, place, np.empty(max(TILE, elements)), total)
    for j in range(count - 1, -1, -1):
        for e in range(elements):
            total[e] = out[j * elements + e] + gamma * total[e]
            out[j * elements + e] = total[e]


@helper
def per_trajectory(
    segment: Bytes, plan: Integers, view: int, pads: int, slot: int, target: int, floats: Floats, integers: Integers
) -> None:
    """The row of a slot, or padding if it is none."""
    at = plan[view, OFFSET] + slot * plan[view, STRIDE]
    if slot >= 0 and at + plan[view, WIDTH] <= segment.shape[0]:
        emit(plan, view, segment.ctypes.data + at, target, np.int64(1), floats, integers)
    else:
        fill(target, pads, plan[view, PAD], plan[view, BYTES], 1)

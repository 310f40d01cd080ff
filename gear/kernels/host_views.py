"""Gathering views on the host: shifted, stacked, converted, summed up, padded or packed, in one pass over the items.

Compiled into `host.gather_views`; the plan's fields are those of `records`. Per item the runs of rows around it are
looked up once (`host_trace`), then each view copies or computes from them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray

from gear.kernels.compile import compile_lock, helper, kernel, memset
from gear.kernels.host_cast import TILE, from_floats, is_floating, item_size, pointer
from gear.kernels.host_copy import check_places, fill
from gear.kernels.host_show import (
    ENDLESS,
    emit_rows,
    per_trajectory,
    reach,
    returns,
    to_go,
    window_of,
)
from gear.kernels.host_trace import (
    AT,
    FINAL,
    HOME,
    LEFT,
    OF,
    OVER,
    PLACE,
    RUN,
    TERMINAL,
    base_of,
    go_back,
    stand,
    trace,
)
from gear.kernels.records import (
    AT_HEAD,
    AT_TAIL,
    BEGIN_AT,
    BLOCK_STEPS,
    BYTES,
    COPY,
    COUNT,
    DEPTH,
    DISCOUNT,
    ELEMENTS,
    ITEM_LENGTH,
    KIND,
    MASK,
    N_STEP,
    OP,
    PACKED,
    PAD,
    PAD_HEAD,
    PER_STEP,
    PRESENT,
    REPEAT,
    RESULT,
    SHIFT,
    SIDE,
    SLOT_COUNT,
    SLOT_FIELDS,
    SLOTS,
    SOURCE,
    STACK,
    TAKEN,
    TARGET,
    TIMESTEP,
    VIEW_FIELDS,
    WIDTH,
)

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]


@helper
def gather_items(
    segment: Bytes, plan: Integers, pads: int, starts: Integers, lengths: Shorts, neighbours: Shorts, out: int
) -> None:
    """Every view of every item; the caller has checked the plan."""
    base, steps, longest, packed = segment.ctypes.data, plan[0, BLOCK_STEPS], plan[0, ITEM_LENGTH], plan[0, PACKED] != 0
    before, after = reach(plan)
    rows = longest + before + after
    runs = np.empty((rows + 3 if neighbours.shape[0] else rows // steps + 4, RUN), np.int64)
    place, other = np.empty(PLACE, np.int64), np.empty(PLACE, np.int64)
    floats, integers = np.empty(TILE), np.empty(TILE, np.int64)
    at = np.int64(0)
    for k in range(starts.shape[0]):
        want = min(np.int64(lengths[k]), longest)
        number = stand(base, plan, starts[k], place) if want > 0 else np.int64(-1)
        have = max(np.int64(0), min(want, place[LEFT])) if number >= 0 else np.int64(0)
        slot = place[OF] if number >= 0 and have > 0 else np.int64(-1)
        place[HOME] = other[HOME] = slot
        places = max(np.int64(0), want) if packed else longest
        start = have - longest if plan[0, PAD_HEAD] and not packed else np.int64(0)
        n, low, end, last, terminal = 0, np.int64(0), np.int64(0), np.int64(-1), False
        if have > 0:
            go_back(base, plan, neighbours, place, before - start)
            until = start + places + after
            n = trace(base, plan, neighbours, place, until, runs)
            if n > 0:  # garbled records lead nowhere, or to so many runs that they did not fit
                low, terminal = runs[0, 0], place[TERMINAL] != 0
                end = place[AT] if place[OVER] or place[AT] < until else ENDLESS
                last = end - 1 + place[FINAL]
        if plan[0, MASK] >= 0:
            mask = out + plan[0, MASK] + k * longest
            memset(mask, 0, longest)
            memset(mask - start, 1, have)
        for c in range(1, plan.shape[0]):
            size, target = plan[c, BYTES], out + plan[c, TARGET]
            if plan[c, KIND] != PER_STEP:
                per_trajectory(segment, plan, c, pads, slot, target + k * size, floats, integers)
                continue
            first, count = window_of(plan, c, places)
            row = at if plan[c, COUNT] == 0 else k * count
            first += start
            if plan[c, BEGIN_AT] == 0 and plan[c, COUNT] == 0:
                begin, stop = max(first, np.int64(0)), min(first + count, min(have, end))  # have: what a record says
            else:
                begin, stop = max(first, low), min(first + count, end)
            shown = max(np.int64(0), stop - begin)
            side = plan[c, SIDE]
            gap = count - shown if side == AT_HEAD else np.int64(0) if side == AT_TAIL or shown == 0 else begin - first
            shift = plan[c, SHIFT]
            if shift > 0 and last < end:  # nothing comes behind the last row
                shown = max(np.int64(0), min(shown, end - shift - begin))
            target += row * size
            fill(target, pads, plan[c, PAD], size, gap)
            fill(target + (gap + shown) * size, pads, plan[c, PAD], size, count - gap - shown)
            if plan[c, PRESENT] >= 0:
                mask = out + plan[c, PRESENT] + row
                memset(mask, 0, count)
                memset(mask + gap, 1, shown)
            target += gap * size
            if plan[c, OP] == N_STEP:
                discounts = carray(pointer(out + plan[c, DISCOUNT] + 4 * row), (count,), np.float32)
                taken = carray(pointer(out + plan[c, TAKEN] + 4 * row), (count,), np.int32)
                discounts[:] = 0.0
                taken[:] = 0
            if shown == 0:
                continue
            if plan[c, OP] == COPY:
                begin += shift
                emit_rows(base, plan, c, runs, n, begin, shown, low, last, target, size, floats, integers)
                continue
            if plan[c, OP] == STACK:
                depth = plan[c, DEPTH]
                for j in range(shown):
                    first, to = min(begin + shift + j, last) - depth + 1, target + j * size
                    missing = np.int64(0) if plan[c, REPEAT] else min(max(np.int64(0), low - first), depth)
                    width = size // depth
                    memset(to, 0, missing * width)
                    first, to, depth_left = first + missing, to + missing * width, depth - missing
                    emit_rows(base, plan, c, runs, n, first, depth_left, low, last, to, width, floats, integers)
                continue
            results = np.empty(shown * plan[c, ELEMENTS])
            if plan[c, OP] == TIMESTEP:
                first = base_of(base, plan, slot) + number + begin
                for i in range(shown):
                    results[i] = first + i
            elif plan[c, OP] == N_STEP:
                values = discounts[gap:], taken[gap:]
                returns(base, plan, c, runs, n, begin, shown, end, terminal, results, *values)
            else:
                to_go(base, plan, c, neighbours, runs, n, begin, shown, results, other)
            from_floats(plan[c, RESULT], results, len(results), target)
        at += places


@helper
def check_views(size: int, plan: Integers, starts: int, total: int, pads: int, out: int) -> None:
    """Refuse a plan whose slots leave the segment, or whose results or pad values leave their arrays (in bytes)."""
    length = plan[0, ITEM_LENGTH]
    if plan[0, SLOTS] < 0 or plan[0, SLOT_COUNT] < 0 or plan[0, SLOTS] + plan[0, SLOT_COUNT] * 8 * SLOT_FIELDS > size:
        raise ValueError("plan: the slots lie outside the segment")
    if plan[0, MASK] >= 0 and (plan[0, PACKED] or plan[0, MASK] + starts * length > out):
        raise ValueError("plan: the mask does not fit into the output")
    for c in range(1, plan.shape[0]):
        count, elements, rows = plan[c, COUNT], plan[c, ELEMENTS], starts
        if count < 0 or plan[c, SHIFT] < 0 or plan[c, DEPTH] < 0 or elements < 0 or plan[c, TARGET] < 0:
            raise ValueError("plan: a size or an offset is negative")
        if abs(plan[c, BEGIN_AT]) >= ENDLESS or plan[c, SHIFT] >= ENDLESS or plan[c, DEPTH] >= ENDLESS:
            raise ValueError("plan: a view reaches too far")
        source, result, op = plan[c, SOURCE], plan[c, RESULT], plan[c, OP]
        if source < 0 or source > 12 or result < 0 or result > 12 or op < 0 or op > TIMESTEP:
            raise ValueError("plan: no such dtype or result")
        frames = max(np.int64(1), plan[c, DEPTH]) if op == STACK else np.int64(1)
        if plan[c, BYTES] != frames * elements * item_size(result):
            raise ValueError("plan: a row of a result has another size")
        if op != TIMESTEP and plan[c, WIDTH] != elements * item_size(source):
            raise ValueError("plan: a row of a column has another size")
        if op != COPY and op != STACK and not is_floating(result) and op != TIMESTEP:
            raise ValueError("plan: a sum has a floating dtype")
        if plan[c, KIND] == PER_STEP:
            rows = starts * count if count > 0 else total if plan[0, PACKED] else starts * length
            if count > 0 and plan[0, PACKED]:
                raise ValueError("plan: packed items have their own rows")
        if plan[c, TARGET] + rows * plan[c, BYTES] > out or plan[c, PRESENT] + rows > out:
            raise ValueError("plan: a column does not fit into the output")
        if op == N_STEP and (
            min(plan[c, DISCOUNT], plan[c, TAKEN]) < 0 or max(plan[c, DISCOUNT], plan[c, TAKEN]) + 4 * rows > out
        ):
            raise ValueError("plan: a column does not fit into the output")
        if plan[c, PAD] >= 0 and plan[c, PAD] + plan[c, BYTES] > pads:
            raise ValueError("plan: a pad value lies outside the pads")


@kernel
def gather_views(
    segment: Bytes, plan: Integers, pads: Bytes, starts: Integers, lengths: Shorts, neighbours: Shorts, out: Bytes
) -> None:
    """Make the views of items; see `reference_views.gather_views`."""
    if lengths.shape[0] != starts.shape[0]:
        raise ValueError("gather: starts and lengths differ in length")
    if plan.shape[1] < VIEW_FIELDS:
        raise ValueError("plan: not a plan of views")
    check_places(segment.shape[0], plan)
    total = np.int64(0)
    for k in range(starts.shape[0]):
        total += max(np.int64(0), min(np.int64(lengths[k]), plan[0, ITEM_LENGTH]))
    check_views(segment.shape[0], plan, starts.shape[0], total, pads.shape[0], out.shape[0])
    gather_items(segment, plan, pads.ctypes.data, starts, lengths, neighbours, out.ctypes.data)


def load() -> None:
    """Have the kernel compiled, or loaded from the cache, before it is needed."""
    with compile_lock():
        run_all()


def run_all() -> None:
    """Call the kernel once, on next to nothing."""
    plan = np.zeros((1, VIEW_FIELDS), np.int64)
    plan[0, BLOCK_STEPS] = 1
    octets, places, lengths = np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int32)
    gather_views(octets, plan, octets, places, lengths, lengths, octets)

"""Gathering views on a GPU: shifted, stacked, converted, summed up, padded or packed, every view in one launch.

A block of threads makes an item, or a part of one: its first thread looks up the runs of rows around the item
(`cuda_trace`), then its warps take turns at tiles of the views' results (`cuda_show`, `cuda_sums`).
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from gear.kernels.cuda_cast import as_bits, as_float, item_size, load, store
from gear.kernels.cuda_seam import device, kernel, load_8, number_of, peek_4, quotient, store_1, times
from gear.kernels.cuda_show import (
    END,
    ENDED,
    FIRST_RUN,
    HAVE,
    LATEST,
    LOW,
    NUMBER,
    OTHER,
    OWN_SLOT,
    PLACES,
    ROWS,
    RUNS,
    START,
    WHERE,
    show_slot,
    show_tile,
)
from gear.kernels.cuda_sums import STRETCH, last_row, value_at, write_returns, write_timesteps
from gear.kernels.cuda_trace import HELD, NEIGHBOURS, go_back, move, run, stand, trace
from gear.kernels.cuda_windows import rows_per_tile
from gear.kernels.host_show import ENDLESS as _ENDLESS
from gear.kernels.host_trace import AT, BLOCK, FINAL, HOME, LEFT, OF, OVER, RUN, STEP, TERMINAL
from gear.kernels.records import (
    ARENA,
    AT_HEAD,
    AT_TAIL,
    BEGIN_AT,
    BLOCK_BYTES,
    BLOCK_COUNT,
    BLOCK_STEPS,
    BYTES,
    COUNT,
    DISCOUNT,
    ELEMENTS,
    GAMMA,
    ITEM_LENGTH,
    KIND,
    MASK,
    N_STEP,
    OFFSET,
    OP,
    PACKED,
    PAD_HEAD,
    PER_STEP,
    PRESENT,
    RESULT,
    SHIFT,
    SIDE,
    SOURCE,
    STRIDE,
    TAKEN,
    TARGET,
    TIMESTEP,
    TO_GO,
)

ENDLESS = int(_ENDLESS)


@device
def look_up(segment, plan, row, want, neighbours, held, before, after, notes, most):
    """Note the runs around the item of `want` rows at row number `row`: `before` rows before it, `after` behind it."""
    place, other = notes[:OTHER], notes[OTHER:HAVE]
    place[NEIGHBOURS], place[HELD], other[NEIGHBOURS], other[HELD] = neighbours, held, neighbours, held
    number = stand(segment, plan, row, place) if want > 0 else -1
    have = max(0, min(want, place[LEFT])) if number >= 0 else 0
    slot = place[OF] if have > 0 else -1
    place[HOME], other[HOME] = slot, slot
    packed, longest = plan[0, PACKED], plan[0, ITEM_LENGTH]
    places = max(0, want) if packed else longest
    start = have - longest if plan[0, PAD_HEAD] and not packed else 0
    notes[HAVE], notes[OWN_SLOT], notes[START], notes[PLACES], notes[NUMBER] = have, slot, start, places, number
    notes[RUNS], notes[LOW], notes[END], notes[LATEST], notes[ENDED] = 0, 0, 0, -1, 0
    if have > 0:
        go_back(segment, plan, place, before - start)
        until = start + places + after
        notes[RUNS] = trace(segment, plan, place, until, notes[FIRST_RUN:], most)
        if notes[RUNS] > 0:  # garbled records lead nowhere, or to so many runs that they did not fit
            notes[LOW], notes[ENDED] = notes[FIRST_RUN], place[TERMINAL]
            notes[END] = place[AT] if place[OVER] or place[AT] < until else ENDLESS
            notes[LATEST] = notes[END] - 1 + place[FINAL]


@device
def look_behind(segment, plan, c, notes, most):
    """Note where up to `most` further rows of column c lie, as the other place comes to them: 0 at the end."""
    other = notes[OTHER:HAVE]
    rows = run(segment, plan, other, most)
    notes[ROWS] = rows
    if rows > 0:
        block = segment + plan[0, ARENA] + other[BLOCK] * plan[0, BLOCK_BYTES]
        notes[WHERE] = block + plan[c, OFFSET] + other[STEP] * plan[c, STRIDE]
        move(other, rows)


@device
def to_go(segment, plan, c, target, notes, first, count, values, thread, threads):
    """Sums of all rewards from each of `count` positions on, by a whole block of threads; values: float64[STRETCH]."""
    elements, wide, narrow = plan[c, ELEMENTS], item_size(plan[c, SOURCE]), item_size(plan[c, RESULT])
    gamma, size = number_of(plan[c, GAMMA]), plan[c, BYTES]
    for from_element in range(0, elements, threads):
        part = min(threads, elements - from_element)
        most = quotient(STRETCH, part)
        total, discount, skip = 0.0, 1.0, 1
        if thread == 0:
            stand(segment, plan, last_row(plan, notes, first + count - 1), notes[OTHER:HAVE])
        for _ in range(plan[0, BLOCK_COUNT] * plan[0, BLOCK_STEPS] + 1):  # ends whatever the records hold
            if thread == 0:
                look_behind(segment, plan, c, notes, most)
            cuda.syncthreads()
            rows, where = notes[ROWS], notes[WHERE]
            if rows <= 0:
                break
            for i in range(thread, rows * part, threads):
                row = quotient(i, part)
                source = where + row * plan[c, STRIDE] + (from_element + i - row * part) * wide
                values[i] = as_float(load(source, wide), plan[c, SOURCE])
            cuda.syncthreads()
            if thread < part:
                for i in range(skip, rows):
                    total = total + times(discount, values[i * part + thread])
                    discount = times(discount, gamma)
            skip = 0
            cuda.syncthreads()
        left = count
        while left > 0:
            rows = min(most, left)
            left -= rows
            for i in range(thread, rows * part, threads):
                row = quotient(i, part)
                element = from_element + i - row * part
                values[i] = value_at(segment, plan, c, notes, first + left + row, element)
            cuda.syncthreads()
            if thread < part:
                to = target + left * size + (from_element + thread) * narrow
                for i in range(rows - 1, -1, -1):
                    total = values[i * part + thread] + times(gamma, total)
                    store(to + i * size, narrow, as_bits(total, plan[c, RESULT]))
            cuda.syncthreads()


@kernel
def gather_views(
    segment, size, plan, pads, starts, lengths, items, neighbours, held, out, limit, offsets, before, after,
    scratch, room,
):  # fmt: skip
    """Make the views of items; see `reference_views.gather_views`. Addresses but for `plan` and `scratch`.

    Grid: (items or fewer, parts of an item); block: (lanes of a warp, warps). limit: places that the output has for
    packed items; scratch: int64[*], `room` of them per block of threads.
    """
    values = cuda.shared.array(STRETCH, np.float64)
    lane, lanes = cuda.threadIdx.x, cuda.blockDim.x
    warp, warps = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y, cuda.gridDim.y * cuda.blockDim.y
    thread, threads = cuda.threadIdx.y * lanes + lane, lanes * cuda.blockDim.y
    mine = room * (cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x)
    notes, longest = scratch[mine : mine + room], plan[0, ITEM_LENGTH]
    for k in range(cuda.blockIdx.x, items, cuda.gridDim.x):
        if thread == 0:
            want = min(peek_4(lengths + 4 * k), longest)
            most = quotient(room - FIRST_RUN, RUN)
            look_up(segment, plan, load_8(starts + 8 * k), want, neighbours, held, before, after, notes, most)
        cuda.syncthreads()
        have, slot, start, places = notes[HAVE], notes[OWN_SLOT], notes[START], notes[PLACES]
        at = load_8(offsets + 8 * k) if plan[0, PACKED] else k * longest
        if plan[0, PACKED] and at + places > limit:
            places = 0
        turn = warp
        for c in range(1, plan.shape[0]):
            bytes_of_row, target = plan[c, BYTES], out + plan[c, TARGET]
            if plan[c, KIND] != PER_STEP:
                if turn == 0:
                    show_slot(segment, size, plan, c, pads, target + k * bytes_of_row, slot, lane, lanes)
                turn = turn - 1 if turn > 0 else warps - 1
                continue
            op, own = plan[c, OP], plan[c, COUNT] == 0
            count = places if own else plan[c, COUNT]
            row = at if own else k * count
            first = plan[c, BEGIN_AT] + start
            low, stop = notes[LOW], notes[END]
            if plan[c, BEGIN_AT] == 0 and own:
                low, stop = 0, min(have, stop)  # have: what a record says
            begin, stop = max(first, low), min(first + count, stop)
            shown = max(0, stop - begin)
            gap = count - shown if plan[c, SIDE] == AT_HEAD else begin - first
            if plan[c, SIDE] == AT_TAIL or shown == 0:
                gap = count if plan[c, SIDE] == AT_HEAD and shown == 0 else 0
            if plan[c, SHIFT] > 0 and notes[LATEST] < notes[END]:  # nothing comes behind the last row
                shown = max(0, min(shown, notes[END] - plan[c, SHIFT] - begin))
            target += row * bytes_of_row
            each, position = rows_per_tile(bytes_of_row), begin + plan[c, SHIFT]
            tile = turn * each
            while tile < count:
                last = min(tile + each, count)
                show_tile(segment, plan, c, pads, target, notes, tile, last, gap, shown, position, lane, lanes)
                if op == N_STEP:
                    discounts, counts = out + plan[c, DISCOUNT] + 4 * row, out + plan[c, TAKEN] + 4 * row
                    write_returns(
                        segment, plan, c, target, discounts, counts, notes, tile, last, gap, shown, position,
                        lane, lanes,
                    )  # fmt: skip
                elif op == TIMESTEP:
                    write_timesteps(segment, plan, c, target, notes, tile, last, gap, shown, position, lane, lanes)
                if plan[c, PRESENT] >= 0:
                    for i in range(tile + lane, last, lanes):
                        store_1(out + plan[c, PRESENT] + row + i, 1 if gap <= i < gap + shown else 0)
                tile += warps * each
            turn = (turn - quotient(count + each - 1, each)) % warps
            if op == TO_GO and cuda.blockIdx.y == 0 and shown > 0:
                begin_at = target + gap * bytes_of_row
                to_go(segment, plan, c, begin_at, notes, begin, shown, values, thread, threads)
        if plan[0, MASK] >= 0 and turn == 0:
            for i in range(lane, longest, lanes):
                store_1(out + plan[0, MASK] + k * longest + i, 1 if -start <= i < have - start else 0)
        cuda.syncthreads()

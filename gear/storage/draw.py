"""Draw: limiter credit reserved, items drawn, their slots pinned, in one compiled call per batch.

Says where the rows of each item lie, its id and the probability with which it was drawn. Single writer.
"""

from __future__ import annotations

from gear.kernels.compile import kernel
from gear.kernels.host import tree_smallest, tree_total
from gear.selection.limiter import samples_allowed
from gear.storage import fields as f
from gear.storage.directory import float64s, int64s
from gear.storage.draw_ordered import draw_heap, draw_line
from gear.storage.draw_random import draw_epoch, draw_prioritized, draw_uniform, draw_uniform_choosy
from gear.storage.locate import locate


@kernel
def drawable(segment, params):
    """Whether any item can be drawn now."""
    if params[f.P_SAMPLER] == f.PRIORITIZED:
        return tree_total(float64s(segment, params, f.R_TREE), int64s(segment, params, f.R_STARTS)) > 0.0
    return int64s(segment, params, f.R_COUNTERS)[f.LIVE_ITEMS] > 0


@kernel
def reserve(segment, params, want):
    """Reserve limiter credit for up to `want` samples, none while nothing can be drawn; returns how many."""
    if not drawable(segment, params):
        return 0
    counters = int64s(segment, params, f.R_COUNTERS)
    floats = float64s(segment, params, f.R_FLOATS)
    given = samples_allowed(
        want,
        counters[f.INSERTED_ITEMS],
        counters[f.DELETED_ITEMS],
        counters[f.SAMPLED_ITEMS] + counters[f.RESERVED_ITEMS],
        params[f.P_RATIO] != 0,
        params[f.P_MIN_SIZE],
        floats[f.RATIO],
        floats[f.LOW],
    )
    counters[f.RESERVED_ITEMS] += given
    return given


@kernel
def _smallest(segment, params):
    """Smallest non-zero probability of any item now; 1 where draws follow an order."""
    counters = int64s(segment, params, f.R_COUNTERS)
    if params[f.P_SAMPLER] == f.UNIFORM:
        if params[f.P_OVER] != 0:  # a bound: looking for the longest trajectory would cost what is stored
            return 1.0 / max(1, counters[f.LIVE_UNITS] * counters[f.MOST_PER_UNIT])
        return 1.0 / max(1, counters[f.LIVE_ITEMS])
    if params[f.P_SAMPLER] == f.PRIORITIZED:
        tree, levels = float64s(segment, params, f.R_TREE), int64s(segment, params, f.R_STARTS)
        total = tree_total(tree, levels)
        if total > 0.0:
            return tree_smallest(tree, float64s(segment, params, f.R_MINS), levels) / total
    return 1.0


@kernel
def mass(segment, params):
    """What a table is drawn from as often as: (mass, items that can be drawn, smallest non-zero probability).

    The mass is the sum of the leaves, the number of trajectories where these are drawn first, else that of items. The
    number of items is 0 where `Prioritized` may draw one twice.
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    if params[f.P_SAMPLER] == f.PRIORITIZED:
        total = tree_total(float64s(segment, params, f.R_TREE), int64s(segment, params, f.R_STARTS))
    elif params[f.P_OVER] != 0:
        total = float(counters[f.LIVE_UNITS])
    else:
        total = float(counters[f.LIVE_ITEMS])
    return total, counters[f.LIVE_ITEMS], _smallest(segment, params)


@kernel
def _draw(segment, params, size, items, probabilities):
    """Draw up to `size` items by the table's sampler: their indices, and how probable each was. Returns how many."""
    sampler = params[f.P_SAMPLER]
    if sampler == f.PRIORITIZED:
        return draw_prioritized(segment, params, size, items, probabilities)
    if sampler == f.UNIFORM:
        if params[f.P_MAX_TIMES] == 0 and params[f.P_DISTINCT] == 0 and params[f.P_OVER] == 0:
            return draw_uniform(segment, params, size, items, probabilities)
        return draw_uniform_choosy(segment, params, size, items, probabilities)
    if sampler == f.EPOCHS:
        return draw_epoch(segment, params, size, items, probabilities)
    probabilities[:size] = 1.0
    if sampler == f.FIFO or sampler == f.LIFO:
        return draw_line(segment, params, size, items)
    return draw_heap(segment, params, size, items)


@kernel
def select(segment, params, size, credit, hurry, pin, ids, starts, lengths, probabilities):
    """Reserve the credit still missing, then draw up to `size` items, all or none of the credit.

    pin: 1 pins the slot of each item, 0 leaves that to a caller that lets nothing else happen meanwhile.
    credit: samples reserved by earlier calls for this request. hurry: a queue or stack gives what it has, for inserts
    that wait for room. ids, starts: int64[size]; lengths:
    int32[size]; probabilities: float64[size]. Returns (items drawn, credit reserved, smallest non-zero
    probability of any item). With 0 items the credit stays reserved; of a short draw the rest returns.
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    if (
        params[f.P_SPREAD] != 0
    ):  # the home of the table gives the credit, and the client asks others for what is missing
        if params[f.P_DISTINCT] != 0:
            size = min(size, counters[f.LIVE_ITEMS])
        if size == 0 or not drawable(segment, params):
            return 0, 0, 0.0
        credit = size
        counters[f.RESERVED_ITEMS] += size
    else:
        if params[f.P_MOST] > 0:
            size = min(size, params[f.P_MOST])
        credit += reserve(segment, params, size - credit)
        if params[f.P_MOST] > 0 and hurry and credit > 0:
            size = credit
        if credit < size or not drawable(segment, params):
            return 0, credit, 0.0
        if params[f.P_DISTINCT] != 0 and counters[f.LIVE_ITEMS] < size:
            return 0, credit, 0.0
    smallest = _smallest(segment, params)
    n = _draw(segment, params, size, starts, probabilities)
    counters[f.DRAWS] += n
    counters[f.RESERVED_ITEMS] -= size - n
    locate(segment, params, n, pin, ids, starts, lengths)
    counters[f.DRAWN_STEPS] += lengths[:n].sum()
    return n, 0, smallest

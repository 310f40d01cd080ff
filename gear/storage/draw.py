"""Draw: limiter credit reserved, items drawn, their slots pinned, in one compiled call per batch.

Says where the rows of each item lie, its id and the probability with which it was drawn. Single writer.
"""

from __future__ import annotations

from gear.kernels.compile import kernel
from gear.kernels.host import tree_smallest, tree_total
from gear.kernels.program import FLAG, FLOATS, LONGS, SHORTS
from gear.storage import fields as f
from gear.storage.directory import float64s, int64s
from gear.storage.draw_ordered import draw_heap, draw_line, draw_slots
from gear.storage.draw_random import draw_epoch, draw_prioritized, draw_uniform, draw_uniform_choosy
from gear.storage.locate import locate
from gear.storage.passing import samples_pass
from gear.storage.programs import DRAW
from gear.storage.sets import head


@DRAW.kernel()
def drawable(segment, params, which):
    """Whether any item of set number `which` can be drawn now."""
    return _any(segment, head(params, which))


@kernel
def _any(segment, line):
    if line[f.P_SAMPLER] == f.PRIORITIZED:
        return tree_total(float64s(segment, line, f.R_TREE), int64s(segment, line, f.R_STARTS)) > 0.0
    return int64s(segment, line, f.R_COUNTERS)[f.LIVE_ITEMS] > 0


@kernel
def _reserve(segment, params, line, want):
    """Reserve limiter credit for up to `want` samples; returns how many."""
    counters = int64s(segment, params, f.R_COUNTERS)
    if line[f.P_WITH_OPEN] != 0:  # the limiter does not know items of open trajectories
        given = want if int64s(segment, line, f.R_COUNTERS)[f.LIVE_ITEMS] >= params[f.P_MIN_SIZE] else 0
    else:
        given = samples_pass(segment, params, want)
    counters[f.RESERVED_ITEMS] += given
    return given


@kernel
def _smallest(segment, line):
    """Smallest non-zero probability of any item now; 1 where draws follow an order."""
    counters = int64s(segment, line, f.R_COUNTERS)
    if line[f.P_SAMPLER] == f.UNIFORM:
        if line[f.P_OVER] != 0:  # a bound: looking for the longest trajectory would cost what is stored
            return 1.0 / max(1, counters[f.LIVE_UNITS] * counters[f.MOST_PER_UNIT])
        return 1.0 / max(1, counters[f.LIVE_ITEMS])
    if line[f.P_SAMPLER] == f.PRIORITIZED:
        tree, levels = float64s(segment, line, f.R_TREE), int64s(segment, line, f.R_STARTS)
        total = tree_total(tree, levels)
        if total > 0.0:
            return tree_smallest(tree, float64s(segment, line, f.R_MINS), levels) / total
    return 1.0


@DRAW.kernel()
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


@DRAW.kernel(ids=LONGS, starts=LONGS, lengths=SHORTS)
def take(segment, params, size, credit, pin, ids, starts, lengths):
    """`select` for items of set 0 that a GPU has drawn, which come in `starts`: credit, pins, places and ids.

    Returns (items, credit) as `select`; where the limiter holds back the draw has not happened.
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    if params[f.P_SPREAD] != 0:
        counters[f.RESERVED_ITEMS] += size
    else:
        credit += _reserve(segment, params, params, size - credit)
        if credit < size:
            return 0, credit
    counters[f.DRAWS] += size
    locate(segment, params, size, pin, ids, starts, lengths)
    counters[f.DRAWN_STEPS] += lengths[:size].sum()
    return size, 0


@kernel
def _draw(segment, params, line, size, items, probabilities):
    """Draw up to `size` items by the table's sampler: their indices, and how probable each was. Returns how many."""
    sampler = params[f.P_SAMPLER]
    if sampler == f.PRIORITIZED:
        return draw_prioritized(segment, params, line, size, items, probabilities)
    if sampler == f.UNIFORM:
        if params[f.P_MAX_TIMES] == 0 and params[f.P_DISTINCT] == 0 and params[f.P_OVER] == 0:
            return draw_uniform(segment, line, size, items, probabilities)
        return draw_uniform_choosy(segment, params, line, size, items, probabilities)
    if sampler == f.EPOCHS:
        return draw_epoch(segment, params, line, size, items, probabilities)
    probabilities[:size] = 1.0
    if line[f.P_BY_SLOT] != 0:
        return draw_slots(segment, params, line, size, items)
    if sampler == f.FIFO or sampler == f.LIFO:
        return draw_line(segment, params, size, items)
    return draw_heap(segment, params, line, size, items)


@kernel
def _too_few(segment, params, line, size):
    """Whether the set has not the items that a batch needs."""
    if not _any(segment, line):
        return True
    return params[f.P_DISTINCT] != 0 and int64s(segment, line, f.R_COUNTERS)[f.LIVE_ITEMS] < size


@DRAW.kernel(hurry=FLAG, ids=LONGS, starts=LONGS, lengths=SHORTS, probabilities=FLOATS)
def select(segment, params, which, size, credit, hurry, pin, ids, starts, lengths, probabilities):
    """Reserve the credit still missing, then draw up to `size` items of a set, all or none of the credit.

    which: number of the set. pin: 1 pins the slot of each item, 0 leaves that to a caller that lets nothing else happen
    meanwhile. credit: samples reserved by earlier calls for this request. hurry: a queue or stack gives what it has,
    for inserts that wait for room. ids, starts: int64[size]; lengths: int32[size]; probabilities: float64[size].
    Returns (items drawn, credit reserved, smallest non-zero probability of any item). With 0 items the credit stays
    reserved; of a short draw the rest returns.

    While items of set 0 lack what this set needs, a request without items keeps no credit: whoever is to complete
    them may need it.
    """
    line = head(params, which)
    counters = int64s(segment, params, f.R_COUNTERS)
    if params[f.P_SPREAD] != 0:  # the home of the table gives the credit, and the client asks others for the rest
        if params[f.P_DISTINCT] != 0:
            size = min(size, counters[f.LIVE_ITEMS])
        if size == 0 or not _any(segment, line):
            return 0, 0, 0.0
        credit = size
        counters[f.RESERVED_ITEMS] += size
    else:
        if params[f.P_MOST] > 0:
            size = min(size, params[f.P_MOST])
        lacking = which > 0 and counters[f.LIVE_ITEMS] > int64s(segment, line, f.R_COUNTERS)[f.LIVE_ITEMS]
        if lacking and _too_few(segment, params, line, size):
            counters[f.RESERVED_ITEMS] -= credit
            return 0, 0, 0.0
        if _any(segment, line):
            credit += _reserve(segment, params, line, size - credit)
        if params[f.P_MOST] > 0 and hurry and credit > 0:
            size = credit
        if credit < size or _too_few(segment, params, line, size):
            return 0, credit, 0.0
    smallest = _smallest(segment, line)
    n = _draw(segment, params, line, size, starts, probabilities)
    counters[f.DRAWS] += n
    if which > 0:
        int64s(segment, line, f.R_COUNTERS)[f.DRAWS] += n
    counters[f.RESERVED_ITEMS] -= size - n
    locate(segment, params, n, pin, ids, starts, lengths)
    counters[f.DRAWN_STEPS] += lengths[:n].sum()
    return n, 0, smallest

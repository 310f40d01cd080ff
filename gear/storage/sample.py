"""Sample at once: select, gather and deliver in one compiled call, while nothing else can happen.

Half the cost of a small batch is crossing between Python and compiled code; pins are not needed where the
single writer itself gathers. Single writer.
"""

from __future__ import annotations

from gear.kernels.host import gather
from gear.kernels.program import FLOATS, LONGS, OCTETS, PLAN, SHORTS
from gear.storage import fields as f
from gear.storage.directory import int64s
from gear.storage.draw import select
from gear.storage.programs import DRAW
from gear.storage.settle import settle


@DRAW.kernel(plan=PLAN, pads=OCTETS, ids=LONGS, starts=LONGS, lengths=SHORTS, probabilities=FLOATS, out=OCTETS)
def sample(segment, params, which, size, plan, pads, ids, starts, lengths, probabilities, out):
    """Arguments as of `select` and `gather`. Returns (whether it was done, smallest probability of any item).

    Not done, and nothing changed, where the limiter or the items do not give `size` items now.
    """
    n, credit, smallest = select(segment, params, which, size, 0, False, 0, ids, starts, lengths, probabilities)
    if n < size:  # used-up items make a short draw: it goes back whole
        int64s(segment, params, f.R_COUNTERS)[f.RESERVED_ITEMS] -= credit
        settle(segment, params, which, ids[:n], False)
        return False, smallest
    gather(segment, plan, pads, starts, lengths, out)
    settle(segment, params, which, ids, True)
    return True, smallest


@DRAW.kernel(ids=LONGS, starts=LONGS, lengths=SHORTS, probabilities=FLOATS)
def draw_at_once(segment, params, which, size, ids, starts, lengths, probabilities):
    """`sample` without the gathering and the delivery, for rows that another kernel gathers."""
    n, credit, smallest = select(segment, params, which, size, 0, False, 0, ids, starts, lengths, probabilities)
    if n < size:
        int64s(segment, params, f.R_COUNTERS)[f.RESERVED_ITEMS] -= credit
        settle(segment, params, which, ids[:n], False)
        return False, smallest
    return True, smallest

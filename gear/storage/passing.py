"""Limiter credit: whether an insert may pass, how many samples may, and what comes back for items that expired.

Compiled; single writer.
"""

from __future__ import annotations

from gear.kernels.compile import kernel
from gear.selection.limiter import budget_allows, forgiven, insert_allowed, samples_allowed
from gear.storage import fields as f
from gear.storage.directory import float64s, int64s


@kernel
def _passed(params, counters):
    """Items that make room for inserts: sampled or promised; where there are consumers those that have left."""
    if params[f.P_CONSUMERS] > 0:
        return counters[f.DELETED_ITEMS] - counters[f.RETURNED_ITEMS]
    return counters[f.SAMPLED_ITEMS] + counters[f.RESERVED_ITEMS]


@kernel
def insert_passes(segment, params):
    """Whether the limiter lets one more item in."""
    counters = int64s(segment, params, f.R_COUNTERS)
    if params[f.P_SPREAD] != 0:  # lent by the home of the table
        return counters[f.INSERT_CREDIT] > 0
    inserted = counters[f.INSERTED_ITEMS] - counters[f.RETURNED_ITEMS]
    if params[f.P_BUDGET] > 0:
        return budget_allows(inserted, counters[f.VERSION], params[f.P_BUDGET], params[f.P_ETA])
    floats = float64s(segment, params, f.R_FLOATS)
    return insert_allowed(
        inserted,
        counters[f.DELETED_ITEMS] - counters[f.RETURNED_ITEMS],
        _passed(params, counters),
        params[f.P_RATIO] != 0,
        params[f.P_MIN_SIZE],
        floats[f.RATIO],
        floats[f.HIGH],
    )


@kernel
def samples_pass(segment, params, want):
    """How many of `want` samples the limiter lets pass."""
    counters = int64s(segment, params, f.R_COUNTERS)
    floats = float64s(segment, params, f.R_FLOATS)
    return samples_allowed(
        want,
        counters[f.INSERTED_ITEMS] - counters[f.RETURNED_ITEMS],
        counters[f.DELETED_ITEMS] - counters[f.RETURNED_ITEMS],
        counters[f.SAMPLED_ITEMS] + counters[f.RESERVED_ITEMS],
        params[f.P_RATIO] != 0,
        params[f.P_MIN_SIZE],
        floats[f.RATIO],
        floats[f.LOW],
    )


@kernel
def forgive(segment, params, items):
    """That many inserted items have expired: the limiter forgets those of them that nobody has sampled."""
    counters = int64s(segment, params, f.R_COUNTERS)
    floats = float64s(segment, params, f.R_FLOATS)
    limited = params[f.P_RATIO] != 0
    counters[f.RETURNED_ITEMS] += forgiven(
        items,
        counters[f.INSERTED_ITEMS] - counters[f.RETURNED_ITEMS],
        counters[f.SAMPLED_ITEMS] + counters[f.RESERVED_ITEMS],
        floats[f.RATIO] if limited else 1.0,
        floats[f.LOW] if limited else 0.0,
    )

"""Limiters: when a sample or an insert may pass. Reverb's semantics, with credit reserved at select.

Compiled scalar functions over the table's counts: `inserted` and `deleted` items, and `sampled` items,
delivered and reserved together, so that reserved credit never blocks an insert.
"""

from __future__ import annotations

import math

from gear.kernels.compile import kernel


@kernel
def samples_allowed(
    want: int, inserted: int, deleted: int, sampled: int, ratio: bool, min_size: int, spi: float, low: float
) -> int:
    """How many of `want` samples may pass now."""
    if inserted - deleted < min_size:
        return 0
    if not ratio:
        return want
    # A relative slack of 1e-9 keeps 3 * (1/3) from losing a sample to rounding.
    room = spi * inserted - sampled - low
    room += 1e-9 * max(1.0, abs(room))
    if room >= want:  # also room for more than an integer holds
        return want
    return max(0, int(math.floor(room)))


@kernel
def insert_allowed(
    inserted: int, deleted: int, sampled: int, ratio: bool, min_size: int, spi: float, high: float
) -> bool:
    """Whether one more item may be inserted."""
    if not ratio or inserted + 1 - deleted <= min_size:
        return True
    difference = spi * (inserted + 1) - sampled
    return difference <= high + 1e-9 * max(1.0, abs(high))


@kernel
def budget_allows(inserted: int, version: int, batch: int, eta: int) -> bool:
    """Whether one more item may be inserted within a staleness budget.

    AReaL (Fu et al., 2025, eq. 3): of N rollouts the last must satisfy floor((N - 1) / batch) <= version + eta.
    """
    return inserted < (eta + version + 1) * batch


@kernel
def forgiven(items: int, inserted: int, sampled: int, spi: float, low: float) -> int:
    """How many of `items` expired ones count as never inserted: no more than were not sampled.

    With D = spi * inserted - sampled, forgetting them does not take D below `low`.
    """
    room = spi * inserted - sampled - low
    room += 1e-9 * max(1.0, abs(room))
    return max(0, min(items, int(math.floor(max(0.0, min(room / spi, 1e15))))))

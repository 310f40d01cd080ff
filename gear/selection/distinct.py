"""Which entries were met before: a set of non-negative numbers of a known largest size, for one batch."""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel


@kernel
def room(most):
    """An empty set for up to `most` numbers, int64[a power of two]."""
    size = 8
    while size < 2 * most:
        size *= 2
    return np.full(size, -1, np.int64)


@kernel
def is_new(seen, number):
    """Whether `number` was not in the set; it is now."""
    mask = np.uint64(seen.shape[0] - 1)
    at = (np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20) & mask
    while seen[at] >= 0:
        if seen[at] == number:
            return False
        at = (at + np.uint64(1)) & mask
    seen[at] = number
    return True

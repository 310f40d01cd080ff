"""From a raw priority to the mass of a leaf (Schaul et al., 2016). Compiled scalars; trees are kernels."""

from __future__ import annotations

from gear.kernels.compile import kernel

LARGEST = 3.4028234663852886e38
"""Largest priority accepted (float32's maximum): with alpha <= 4 no sum of leaves can overflow."""


@kernel
def leaf(priority: float, alpha: float, eps: float) -> float:
    """(priority + eps) ** alpha, 0 where priority + eps is 0 whatever alpha, never 0 by underflow."""
    base = priority + eps
    if base <= 0.0:
        return 0.0
    if alpha == 0.0:
        return 1.0
    if alpha == 1.0:
        return max(base, 1e-300)
    return max(base**alpha, 1e-300)


@kernel
def refused(priorities) -> int:
    """Index of the first priority that is NaN, negative, infinite or above `LARGEST`; -1 if none."""
    for k in range(priorities.shape[0]):
        if not (0.0 <= priorities[k] <= LARGEST):
            return k
    return -1

"""Importance weights of prioritized draws: a pure function of probabilities, and the check of what shapes it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from gear.errors import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

Normalize = Literal["batch", "table"]
NORMALIZATIONS = get_args(Normalize)

MOST_BETA = 4.0
"""Largest exponent, four times the full correction."""

LEAST_CHANCE = math.ulp(0.0)
"""What a probability that underflowed counts as: the smallest float64."""

LEAST_LOG = math.log(np.finfo(np.float32).tiny)
"""Logarithm of the smallest weight: a normal float32, as some devices take subnormal ones for 0."""


def number(value: object) -> float:
    """`value` as float, NaN if it is no number (a bool or a text is none)."""
    if isinstance(value, (bool, np.bool_, str, bytes)):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:  # an int beyond every float
        return math.copysign(math.inf, value > 0 or -1)  # type: ignore[operator]
    except (TypeError, ValueError):
        return math.nan


def exponent(beta: float, normalize: Normalize) -> float:
    """`beta` as float, refused with `normalize` unless importance weights can be made of them.

    Raises
    ------
    DataError
    """
    if normalize not in NORMALIZATIONS:
        raise DataError(f"normalize: expected 'batch' or 'table', got {normalize!r}")
    value = number(beta)
    if not 0.0 <= value <= MOST_BETA:
        raise DataError(f"beta: expected a number in [0, {MOST_BETA:g}], where 1 corrects fully, got {beta!r}")
    return value


def importance(chances: npt.NDArray[np.float64], smallest: float, beta: float) -> npt.NDArray[np.float32]:
    """(chance / smallest) ** -beta as float32[B], in (0, 1] also where that underflows.

    In logarithms: a quotient of probabilities may be beyond float64, and the smallest may be 0 for it.

    Parameters
    ----------
    chances : float64[B]
    smallest : float
        The chance whose weight is 1.
    """
    log_ratio = np.log(np.maximum(chances, LEAST_CHANCE)) - math.log(max(LEAST_CHANCE, smallest))
    return np.exp(np.clip(-beta * log_ratio, LEAST_LOG, 0.0)).astype(np.float32)

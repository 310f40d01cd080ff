"""Counter-based random numbers on the host; `host` forwards them. See `reference.random_bits`.

Compiled. All arithmetic stays in uint64: Numba turns a mix of signed and unsigned into float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import helper, kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_11, _27, _30, _31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)


@helper
def _mix(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


@kernel
def random_bits(seed: int, draw: int, attempt: int) -> np.uint64:
    """64 random bits that depend on the three numbers alone."""
    stream = _mix(np.uint64(seed) + _GOLDEN)
    drawn = _mix(stream + np.uint64(draw) * _GOLDEN)
    return _mix(drawn + np.uint64(attempt) * _MIX_1)


@kernel
def uniforms(seed: int, first_draw: int, out: npt.NDArray[np.float64]) -> None:
    """out: float64[B] in [0, 1), the draws first_draw, first_draw + 1, ..., 53 bits each."""
    for k in range(out.shape[0]):
        out[k] = np.float64(np.int64(random_bits(seed, first_draw + k, 0) >> _11)) * 2.0**-53

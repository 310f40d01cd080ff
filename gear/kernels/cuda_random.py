"""Counter-based random numbers on a GPU: the same bits as on the host; see `reference.random_bits`.

All arithmetic is that of int64, which wraps around; shifts to the right bring in zeros.
"""

from __future__ import annotations

from numba import cuda

from gear.kernels.cuda_seam import device, kernel, store_8, store_float, times, wrapped

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
"""The constants of `reference`, as int64 has them."""

TO_UNIT = 1.0 / 9007199254740992.0


@device
def _right(z, count):
    """Shift to the right without the sign."""
    return (z >> count) & ((1 << (64 - count)) - 1)


@device
def _mix(z):
    z = wrapped((z ^ _right(z, 30)) * MIX_1)
    z = wrapped((z ^ _right(z, 27)) * MIX_2)
    return z ^ _right(z, 31)


@device
def bits(seed, draw, attempt):
    """64 random bits that depend on the three numbers alone, as int64."""
    stream = _mix(wrapped(seed + GOLDEN))
    drawn = _mix(wrapped(stream + wrapped(draw * GOLDEN)))
    return _mix(wrapped(drawn + wrapped(attempt * MIX_1)))


@device
def uniform(seed, draw):
    """A number in [0, 1) for one numbered draw, 53 bits."""
    return times(float(_right(bits(seed, draw, 0), 11)), TO_UNIT)


@kernel
def write_uniforms(seed, first, out, count):
    """out: float64[count], the draws first, first + 1, ...; see `reference.uniforms`."""
    for k in range(cuda.grid(1), count, cuda.gridsize(1)):
        store_float(out + 8 * k, uniform(seed, first + k))


@kernel
def write_bits(seed, draw, attempt, out):
    """out: int64[1]; see `reference.random_bits`."""
    if cuda.grid(1) == 0:
        store_8(out, bits(seed, draw, attempt))

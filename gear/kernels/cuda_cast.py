"""Converting single values on a GPU while they are gathered: bits to float64 (or int64), then to what is asked for.

Dtypes are numbers of `records.DTYPES`; values travel as int64 bits. Rounding is that of NumPy, to the bit.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.cuda_seam import (
    bits_of,
    bits_of_single,
    device,
    from_unsigned,
    load_1,
    load_2,
    load_4,
    load_8,
    number_of,
    number_of_single,
    store_1,
    store_2,
    store_4,
    store_8,
    times,
)
from gear.kernels.records import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT64,
)

EVEN = 4503599627370496.0
"""2**52: adding and subtracting it rounds a smaller number that is not negative to a whole one, ties to even."""


@device
def item_size(dtype):
    """Bytes of a value."""
    if dtype <= UINT8:
        return 1
    if dtype <= BFLOAT16:
        return 2
    return 4 if dtype <= FLOAT32 else 8


@device
def is_floating(dtype):
    """Whether it is a floating dtype."""
    return dtype in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)


@device
def load(address, size):
    """The bits of a value of 1, 2, 4 or 8 bytes, without a sign."""
    if size == 1:
        return load_1(address)
    if size == 2:
        return load_2(address)
    if size == 4:
        return load_4(address)
    return load_8(address)


@device
def store(address, size, bits):
    """Write the low bits of a value of 1, 2, 4 or 8 bytes."""
    if size == 1:
        store_1(address, bits)
    elif size == 2:
        store_2(address, bits)
    elif size == 4:
        store_4(address, bits)
    else:
        store_8(address, bits)


@device
def _signed(bits, dtype):
    """Bits of a whole number as that number; uint64 wraps around."""
    if dtype == INT8:
        return (bits ^ 0x80) - 0x80
    if dtype == INT16:
        return (bits ^ 0x8000) - 0x8000
    if dtype == INT32:
        return (bits ^ 0x80000000) - 0x80000000
    return bits


@device
def _from_half(bits):
    """A float16's bits as float64."""
    exponent, fraction = (bits >> 10) & 31, bits & 1023
    if exponent == 31:
        size = np.nan if fraction else np.inf
    elif exponent == 0:
        size = times(float(fraction), 2.0**-24)
    else:
        size = number_of(((exponent + 1008) << 52) | (fraction << 42))
    return -size if bits & 0x8000 else size


@device
def as_float(bits, dtype):
    """A value's bits as float64."""
    if dtype == FLOAT32:
        return number_of_single(bits)
    if dtype == FLOAT64:
        return number_of(bits)
    if dtype == BFLOAT16:
        return number_of_single(bits << 16)
    if dtype == FLOAT16:
        return _from_half(bits)
    if dtype == UINT64:
        return from_unsigned(bits)
    return float(_signed(bits, dtype))


@device
def _to_half(value):
    """The bits of the float16 nearest to a float64, ties to even."""
    bits = bits_of(value)
    sign, size = (bits >> 48) & 0x8000, number_of(bits & 0x7FFFFFFFFFFFFFFF)
    if size != size:
        return sign | 0x7E00
    if size >= 65520.0:
        return sign | 0x7C00
    if size < 2.0**-14:
        return sign | int((times(size, 2.0**24) + EVEN) - EVEN)
    exponent = ((bits >> 52) & 2047) - 1023
    scaled = times(size, number_of((10 - exponent + 1023) << 52))  # exact, from 1024 to 2048
    return sign | (((exponent + 15) << 10) + int((scaled + EVEN) - EVEN) - 1024)


@device
def as_bits(value, dtype):
    """A float64 as the bits of a floating dtype (or of int32 or int64: whole numbers only)."""
    if dtype == FLOAT32:
        return bits_of_single(value)
    if dtype == FLOAT64:
        return bits_of(value)
    if dtype == FLOAT16:
        return _to_half(value)
    if dtype in (INT64, INT32):
        return int(value)
    word = bits_of_single(value)
    if value != value:
        return ((word >> 16) & 0x8000) | 0x7FC0
    return (word + 0x7FFF + ((word >> 16) & 1)) >> 16


@device
def converted(bits, dtype, result, scale):
    """A value's bits in another dtype: by way of float64 to floating ones, wrapping around to whole numbers."""
    if not is_floating(result):
        return _signed(bits, dtype)
    value = as_float(bits, dtype)
    return as_bits(value if scale == 1.0 else times(value, scale), result)


@device
def octets_to_singles(target, source, words, scale, lane, lanes):
    """Convert uint8 to float32, four at a time: frames. source: at a multiple of 4, target: of 8."""
    for i in range(lane, words, lanes):
        four = load_4(source + 4 * i)
        first, second = times(float(four & 255), scale), times(float((four >> 8) & 255), scale)
        third, last = times(float((four >> 16) & 255), scale), times(float(four >> 24), scale)
        store_8(target + 16 * i, bits_of_single(first) | (bits_of_single(second) << 32))
        store_8(target + 16 * i + 8, bits_of_single(third) | (bits_of_single(last) << 32))

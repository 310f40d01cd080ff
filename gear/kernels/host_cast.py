"""Converting values on the host while they are gathered: a tile to float64 (or int64), then to what is asked for.

Two steps instead of a loop for each pair of dtypes: a dozen small loops that the compiler vectorises. Compiled into
the kernels of `host`. Dtypes are numbers of `records.DTYPES`, addresses integers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from gear.kernels.compile import helper
from gear.kernels.records import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
)

TILE = 512
"""Values converted at a time."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@intrinsic
def pointer(typingctx, address):  # type: ignore[no-untyped-def]
    """An integer address as a pointer that `carray` takes."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@helper
def item_size(dtype: int) -> int:
    """Bytes of a value."""
    if dtype <= UINT8:
        return np.int64(1)
    if dtype <= BFLOAT16:
        return np.int64(2)
    return np.int64(4) if dtype <= FLOAT32 else np.int64(8)


@helper
def to_floats(dtype: int, source: int, out: Floats, n: int) -> None:
    """The n values at `source` as float64 in out[:n]."""
    at = pointer(source)
    if dtype == FLOAT32:
        for i, v in enumerate(carray(at, (n,), np.float32)):
            out[i] = v
    elif dtype in (UINT8, BOOL):
        for i, v in enumerate(carray(at, (n,), np.uint8)):
            out[i] = v
    elif dtype == FLOAT64:
        for i, v in enumerate(carray(at, (n,), np.float64)):
            out[i] = v
    elif dtype == INT64:
        for i, v in enumerate(carray(at, (n,), np.int64)):
            out[i] = v
    elif dtype == INT32:
        for i, v in enumerate(carray(at, (n,), np.int32)):
            out[i] = v
    elif dtype == INT16:
        for i, v in enumerate(carray(at, (n,), np.int16)):
            out[i] = v
    elif dtype == UINT16:
        for i, v in enumerate(carray(at, (n,), np.uint16)):
            out[i] = v
    elif dtype == INT8:
        for i, v in enumerate(carray(at, (n,), np.int8)):
            out[i] = v
    elif dtype == UINT32:
        for i, v in enumerate(carray(at, (n,), np.uint32)):
            out[i] = v
    elif dtype == UINT64:
        for i, v in enumerate(carray(at, (n,), np.uint64)):
            out[i] = v
    else:
        bits = np.empty(1, np.uint32)
        value = bits.view(np.float32)
        for i, v in enumerate(carray(at, (n,), np.uint16)):
            half = np.uint32(v)
            if dtype == BFLOAT16:
                bits[0] = half << np.uint32(16)
                out[i] = value[0]
                continue
            sign = -1.0 if half & np.uint32(0x8000) else 1.0
            exponent, fraction = (half >> np.uint32(10)) & np.uint32(31), half & np.uint32(1023)
            if exponent == 31:
                out[i] = np.nan if fraction else sign * np.inf
            elif exponent == 0:
                out[i] = sign * fraction * 2.0**-24
            else:
                bits[0] = (exponent + np.uint32(112)) << np.uint32(23) | fraction << np.uint32(13)
                out[i] = sign * value[0]


@helper
def _half(value: float, bits: npt.NDArray[np.uint64], number: Floats) -> int:
    """The bits of the float16 nearest to a float64, ties to even; bits and number: one value, the same memory."""
    sign = np.int64(0x8000) if np.signbit(value) else np.int64(0)
    size = abs(value)
    if np.isnan(value):
        return sign | np.int64(0x7E00)
    if size >= 65520.0:
        return sign | np.int64(0x7C00)
    if size < 2.0**-14:
        return sign | np.int64(np.rint(size * 2.0**24))
    number[0] = size
    exponent = np.int64(bits[0] >> np.uint64(52)) - 1023
    bits[0] = np.uint64(10 - exponent + 1023) << np.uint64(52)
    return sign | (((exponent + 15) << 10) + np.int64(np.rint(size * number[0])) - 1024)


@helper
def from_floats(dtype: int, values: Floats, n: int, target: int) -> None:
    """Write values[:n] to `target` as a floating dtype (or int32, int64: whole numbers only)."""
    at = pointer(target)
    if dtype == FLOAT32:
        single = carray(at, (n,), np.float32)
        for i in range(n):
            single[i] = values[i]
    elif dtype == FLOAT64:
        double = carray(at, (n,), np.float64)
        for i in range(n):
            double[i] = values[i]
    elif dtype == INT64:
        long = carray(at, (n,), np.int64)
        for i in range(n):
            long[i] = np.int64(values[i])
    elif dtype == INT32:
        short = carray(at, (n,), np.int32)
        for i in range(n):
            short[i] = np.int32(values[i])
    elif dtype == FLOAT16:
        half = carray(at, (n,), np.uint16)
        number = np.empty(1)
        bits = number.view(np.uint64)
        for i in range(n):
            half[i] = np.uint16(_half(values[i], bits, number))
    else:
        brain = carray(at, (n,), np.uint16)
        rounded = np.empty(1, np.float32)
        word = rounded.view(np.uint32)
        for i in range(n):
            rounded[0] = values[i]
            w = np.int64(word[0])
            if np.isnan(rounded[0]):
                brain[i] = np.uint16((w >> 16) & 0x8000 | 0x7FC0)
            else:
                brain[i] = np.uint16((w + 0x7FFF + ((w >> 16) & 1)) >> 16)


@helper
def _to_integers(dtype: int, source: int, out: Integers, n: int) -> None:
    """The n whole numbers at `source` as int64, wrapping around."""
    at = pointer(source)
    if dtype in (UINT8, BOOL):
        for i, v in enumerate(carray(at, (n,), np.uint8)):
            out[i] = v
    elif dtype in (INT64, UINT64):
        for i, v in enumerate(carray(at, (n,), np.int64)):
            out[i] = v
    elif dtype == INT32:
        for i, v in enumerate(carray(at, (n,), np.int32)):
            out[i] = v
    elif dtype == UINT32:
        for i, v in enumerate(carray(at, (n,), np.uint32)):
            out[i] = v
    elif dtype == INT16:
        for i, v in enumerate(carray(at, (n,), np.int16)):
            out[i] = v
    elif dtype == UINT16:
        for i, v in enumerate(carray(at, (n,), np.uint16)):
            out[i] = v
    else:
        for i, v in enumerate(carray(at, (n,), np.int8)):
            out[i] = v


@helper
def _from_integers(size: int, values: Integers, n: int, target: int) -> None:
    """Write whole numbers of `size` bytes, wrapping around."""
    at = pointer(target)
    if size == 8:
        long = carray(at, (n,), np.int64)
        for i in range(n):
            long[i] = values[i]
    elif size == 4:
        short = carray(at, (n,), np.int32)
        for i in range(n):
            short[i] = np.int32(values[i])
    elif size == 2:
        word = carray(at, (n,), np.int16)
        for i in range(n):
            word[i] = np.int16(values[i])
    else:
        octet = carray(at, (n,), np.int8)
        for i in range(n):
            octet[i] = np.int8(values[i])


@helper
def is_floating(dtype: int) -> bool:
    """Whether it is a floating dtype."""
    return dtype in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)


@helper
def convert(
    source: int, target: int, n: int, dtype: int, result: int, scale: float, floats: Floats, integers: Integers
) -> None:
    """Convert n values; floats, integers: scratch of TILE values."""
    if dtype == UINT8 and result == FLOAT32:  # frames: one loop, no scratch
        octets, single = carray(pointer(source), (n,), np.uint8), carray(pointer(target), (n,), np.float32)
        for i in range(n):
            single[i] = np.float64(octets[i]) * scale
        return
    wide, narrow = item_size(dtype), item_size(result)
    for begin in range(0, n, TILE):
        part = min(TILE, n - begin)
        if not is_floating(result):
            _to_integers(dtype, source + begin * wide, integers, part)
            _from_integers(narrow, integers, part, target + begin * narrow)
            continue
        to_floats(dtype, source + begin * wide, floats, part)
        if scale != 1.0:
            for i in range(part):
                floats[i] *= scale
        from_floats(result, floats, part, target + begin * narrow)

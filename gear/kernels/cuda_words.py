"""What kernels do with memory and bits on a GPU, each function one instruction or a few; see `cuda_seam`.

Addresses are integers that point into global memory (the device's own, or host memory mapped into it). An access is as
wide as its name says, in bytes, and its address a multiple of that. Nothing here knows a table, a thread or a launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types

try:
    from numba.cuda.extending import intrinsic
except ImportError:  # the part of Numba that came before numba-cuda
    from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

_GLOBAL = 1
"""The address space of global memory: accesses become ld.global and st.global, not generic ones."""


def _word(size: int) -> ir.Type:
    return ir.VectorType(ir.IntType(32), 4) if size == 16 else ir.IntType(8 * size)


def _pointer(builder, address, kind):  # type: ignore[no-untyped-def]
    return builder.inttoptr(address, kind.as_pointer(_GLOBAL))


def _load(builder, address, size):  # type: ignore[no-untyped-def]
    return builder.load(_pointer(builder, address, _word(size)), align=size)


def _mover(size: int, words: int) -> Callable[..., None]:
    """Copy `words` words; all are loaded before the first is stored, so that their loads are under way together."""

    def lower(context, builder, args):  # type: ignore[no-untyped-def]
        targets, sources = [args[0]], [args[1]]
        for _ in range(words - 1):
            targets.append(builder.add(targets[-1], args[2]))
            sources.append(builder.add(sources[-1], args[2]))
        values = [_load(builder, source, size) for source in sources]
        for target, value in zip(targets, values, strict=True):
            builder.store(value, _pointer(builder, target, _word(size)), align=size)
        return context.get_dummy_value()

    if words == 1:

        @intrinsic
        def move(typingctx, target, source):  # type: ignore[no-untyped-def]
            def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
                return lower(context, builder, args)

            return types.void(types.int64, types.int64), codegen

        return move

    @intrinsic
    def move_more(typingctx, target, source, step):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return lower(context, builder, args)

        return types.void(types.int64, types.int64, types.int64), codegen

    return move_more


def _loader(size: int) -> Callable[[int], int]:
    """Bits without a sign, as int64."""

    @intrinsic
    def load(typingctx, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            value = _load(builder, args[0], size)
            return value if size == 8 else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64), codegen

    return load


def _storer(size: int) -> Callable[[int, int], None]:
    """The low bits of an int64; 16 bytes: the same int64 twice."""

    @intrinsic
    def store(typingctx, address, value):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            bits = args[1] if size >= 8 else builder.trunc(args[1], _word(size))
            kind = _word(size)
            if size == 16:
                kind = ir.VectorType(ir.IntType(64), 2)
                pair = ir.Constant(kind, ir.Undefined)
                for i in range(2):
                    pair = builder.insert_element(pair, bits, ir.IntType(32)(i))
                bits = pair
            builder.store(bits, _pointer(builder, args[0], kind), align=size)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return store


def _peeker(size: int) -> Callable[[int], int]:
    """The signed number at an address: read once and whole, though another processor may write it."""

    @intrinsic
    def peek(typingctx, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            kind, letter = ir.IntType(8 * size), "r" if size == 4 else "l"
            text = f"ld.volatile.global.b{8 * size} $0, [$1];"
            call = ir.FunctionType(kind, [ir.IntType(64)])
            value = builder.asm(call, text, f"={letter},l", [args[0]], side_effect=True)
            return value if size == 8 else builder.sext(value, ir.IntType(64))

        return types.int64(types.int64), codegen

    return peek


move_1, move_2, move_4, move_8, move_16 = (_mover(size, 1) for size in (1, 2, 4, 8, 16))
move_four_4, move_four_8, move_four_16 = (_mover(size, 4) for size in (4, 8, 16))
load_1, load_2, load_4, load_8 = (_loader(size) for size in (1, 2, 4, 8))
store_1, store_2, store_4, store_8, store_16 = (_storer(size) for size in (1, 2, 4, 8, 16))
peek_4, peek_8 = _peeker(4), _peeker(8)


@intrinsic
def load_float(typingctx, address):  # type: ignore[no-untyped-def]
    """The float64 at an address."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load(_pointer(builder, args[0], ir.DoubleType()), align=8)

    return types.float64(types.int64), codegen


@intrinsic
def store_float(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Write a float64."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store(args[1], _pointer(builder, args[0], ir.DoubleType()), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.float64), codegen


@intrinsic
def fence(typingctx):  # type: ignore[no-untyped-def]
    """No access moves across it, as any processor of the system sees them."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.asm(ir.FunctionType(ir.VoidType(), []), "fence.acq_rel.sys;", "~{memory}", [], side_effect=True)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def claim(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Write an int64 if there is 0, in one step; returns what was there."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _pointer(builder, args[0], ir.IntType(64))
        found = builder.cmpxchg(pointer, ir.IntType(64)(0), args[1], "monotonic", "monotonic")
        return builder.extract_value(found, 0)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def raise_to(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Write an int64 if it is larger than what is there, in one step."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.atomic_rmw("max", _pointer(builder, args[0], ir.IntType(64)), args[1], "monotonic")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def times(typingctx, one, other):  # type: ignore[no-untyped-def]
    """A product that no later addition is fused with: it is rounded, as on the host."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        double = ir.DoubleType()
        call = ir.FunctionType(double, [double, double])
        return builder.asm(call, "mul.rn.f64 $0, $1, $2;", "=d,d,d", list(args), side_effect=False)

    return types.float64(types.float64, types.float64), codegen


@intrinsic
def bits_of(typingctx, number):  # type: ignore[no-untyped-def]
    """The bits of a float64 as int64."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def number_of(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float64 that has these bits."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def bits_of_single(typingctx, number):  # type: ignore[no-untyped-def]
    """The bits of the float32 nearest to a float64, as int64 without a sign."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        single = builder.fptrunc(args[0], ir.FloatType())
        return builder.zext(builder.bitcast(single, ir.IntType(32)), ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def number_of_single(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float32 that has the low 32 bits, as float64."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        low = builder.trunc(args[0], ir.IntType(32))
        return builder.fpext(builder.bitcast(low, ir.FloatType()), ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def from_unsigned(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float64 nearest to an int64 read as a number without a sign."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.uitofp(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def wrapped(typingctx, value):  # type: ignore[no-untyped-def]
    """An int64 result as it is: arithmetic wraps around by itself here."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return args[0]

    return types.int64(types.int64), codegen


@intrinsic
def _short_quotient(typingctx, number, divisor):  # type: ignore[no-untyped-def]
    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        low = [builder.trunc(a, ir.IntType(32)) for a in args]
        return builder.zext(builder.udiv(*low), ir.IntType(64))

    return types.int64(types.int64, types.int64), codegen


def _quotient(number, divisor):  # type: ignore[no-untyped-def]
    """Number // divisor of numbers that are not negative: in 32 bits, several times as fast, where they fit."""
    if (number | divisor) >> 32 == 0:
        return _short_quotient(number, divisor)
    return np.int64(number // divisor)


def _compiled(function):  # type: ignore[no-untyped-def]
    from numba import cuda

    return cuda.jit(device=True)(function)


quotient = _compiled(_quotient)

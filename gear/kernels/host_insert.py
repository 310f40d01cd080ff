"""Rows on their way in: where the caller's arrays lie, and writing all columns of many trajectories at once.

An array's head is read where NumPy's C interface promises it (`PyArrayObject_fields` in numpy/ndarraytypes.h); the
caller has made sure that the promise is kept here, and keeps the arrays alive. They are only read.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import copy, kernel, memcpy, read_int32, read_int64
from gear.kernels.host_copy import check_places
from gear.kernels.records import (
    ARENA,
    BLOCK_BYTES,
    BLOCK_COUNT,
    BLOCK_STEPS,
    KIND,
    OFFSET,
    PER_STEP,
    STRIDE,
    WIDTH,
)

TYPE = object.__basicsize__ - 8
"""Where every object names its type."""

DATA, AXES, EXTENTS, DESCRIPTION, FLAGS = (object.__basicsize__ + offset for offset in (0, 8, 16, 40, 48))
"""Where an array has the address of its data, its number of axes, the address of its shape, its dtype, its flags."""

CONTIGUOUS = 1
"""The flag of an array whose elements lie one behind the other, the last axis fastest."""

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]


@partial(kernel, nogil=False)  # with the GIL nobody changes an array's shape meanwhile
def read_heads(kind: int, columns: Integers, lengths: Integers, addresses: Integers) -> int:
    """Read where the arrays of N trajectories lie, and how many rows they have, if all are as they should be.

    kind: address of the type that all must have; columns: int64[C, 3 + D], per column the address of N addresses of
    objects, the address of the dtype that they must have, and the number and extents of a row's axes; lengths: int64[N]
    and addresses: int64[C, N], filled in. Returns the largest length; -1 if anything is something else, empty, not
    contiguous or of another length than the trajectory's first column.
    """
    n, longest = lengths.shape[0], np.int64(0)
    if columns.shape[1] < 3 or addresses.shape[0] != columns.shape[0] or addresses.shape[1] != n:
        raise ValueError("read_heads: the arrays differ in length")
    for c in range(columns.shape[0]):
        objects, dtype, axes = columns[c, 0], columns[c, 1], columns[c, 2]
        if axes < 0 or axes > columns.shape[1] - 3:
            raise ValueError("read_heads: a row has more axes than are given")
        for k in range(n):
            one = read_int64(objects + 8 * k)
            if read_int64(one + TYPE) != kind or read_int64(one + DESCRIPTION) != dtype:
                return np.int64(-1)
            if read_int32(one + AXES) != axes + 1 or read_int32(one + FLAGS) & CONTIGUOUS == 0:
                return np.int64(-1)
            extents = read_int64(one + EXTENTS)
            rows = read_int64(extents)
            if rows < 1 or (c > 0 and rows != lengths[k]):
                return np.int64(-1)
            for axis in range(axes):
                if read_int64(extents + 8 * axis + 8) != columns[c, 3 + axis]:
                    return np.int64(-1)
            lengths[k], addresses[c, k] = rows, read_int64(one + DATA)
            longest = max(longest, rows)
    return longest


@kernel
def read_offsets(
    offsets: Integers, total: int, bases: Integers, widths: Integers, lengths: Integers, addresses: Integers
) -> int:
    """Where the trajectories of packed columns lie, and how many rows they have.

    offsets: int64[N + 1], first row of each and `total`; bases, widths: int64[C], address of a column's first row and
    bytes of a row; lengths: int64[N] and addresses: int64[C, N], filled in. Returns the largest length, -1 if the
    offsets do not rise from 0 to `total`.
    """
    n = lengths.shape[0]
    if offsets.shape[0] != n + 1 or addresses.shape[0] != bases.shape[0] or addresses.shape[1] != n:
        raise ValueError("read_offsets: the arrays differ in length")
    if widths.shape[0] != bases.shape[0]:
        raise ValueError("read_offsets: the arrays differ in length")
    longest, before = np.int64(0), np.int64(0)
    if offsets[0] != 0:
        return np.int64(-1)
    for k in range(n):
        rows = offsets[k + 1] - before
        if offsets[k + 1] <= before or offsets[k + 1] > total:
            return np.int64(-1)
        lengths[k], longest = rows, max(longest, rows)
        for c in range(bases.shape[0]):
            addresses[c, k] = bases[c] + before * widths[c]
        before = offsets[k + 1]
    return longest if before == total else np.int64(-1)


@kernel
def write_columns(
    segment: Bytes, plan: Integers, blocks: Shorts, needs: Integers, steps: Integers, sources: Integers
) -> None:
    """Write the rows of K trajectories, all per-step columns of the plan, into leased blocks.

    blocks: int32[sum of needs], one trajectory's behind the other's; needs, steps: int64[K], how many blocks and rows
    each has; sources: int64[columns, K], address of each trajectory's first row, the others behind it.
    """
    check_places(segment.shape[0], plan)
    n, trajectories, block_steps, block_bytes = (
        blocks.shape[0], steps.shape[0], plan[0, BLOCK_STEPS], plan[0, BLOCK_BYTES]
    )  # fmt: skip
    columns = 0
    for c in range(1, plan.shape[0]):
        columns += plan[c, KIND] == PER_STEP
    if sources.shape[0] != columns or sources.shape[1] != trajectories or needs.shape[0] != trajectories:
        raise ValueError("write_columns: the arrays differ in length")
    named = 0
    for k in range(trajectories):
        if needs[k] < 0 or needs[k] > n - named or steps[k] < 0 or steps[k] > needs[k] * block_steps:
            raise ValueError("write_columns: rows outside the given blocks")
        named += needs[k]
    for b in range(n):
        if blocks[b] < 0 or blocks[b] >= plan[0, BLOCK_COUNT]:
            raise ValueError("write_columns: a block outside the arena")
    arena, first = segment.ctypes.data + plan[0, ARENA], 0
    for k in range(trajectories):
        done, b = 0, first
        while done < steps[k]:
            part, to, number = min(steps[k] - done, block_steps), arena + blocks[b] * block_bytes, 0
            for c in range(1, plan.shape[0]):
                if plan[c, KIND] != PER_STEP:
                    continue
                width, stride = plan[c, WIDTH], plan[c, STRIDE]
                origin, target = sources[number, k] + done * width, to + plan[c, OFFSET]
                if stride == width:
                    memcpy(target, origin, part * width)
                else:
                    for i in range(part):
                        copy(target + i * stride, origin + i * width, width)
                number += 1
            done, b = done + part, b + 1
        first += needs[k]

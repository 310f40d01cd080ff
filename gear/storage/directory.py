"""Typed views of a segment's regions, for compiled code.

Kernels receive a table as two arrays, ``segment`` (uint8) and ``params`` (int64, `Layout.params`); the
compiled accessors here turn a region into a typed view. Only the shard that owns the table may change
anything here; clients read block and slot records of what they have pinned.

A view counts no references: it must not outlive the call that was given the segment. Views that counted theirs, as
slices do, would cost more than what most kernels do with them.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from gear.kernels.compile import kernel
from gear.kernels.host_cast import pointer


@kernel
def int64s(segment, params, region):
    """Region as int64[N]."""
    return carray(pointer(segment.ctypes.data + params[region]), (params[region + 1] // 8,), np.int64)


@kernel
def int32s(segment, params, region):
    """Region as int32[N]."""
    return carray(pointer(segment.ctypes.data + params[region]), (params[region + 1] // 4,), np.int32)


@kernel
def float64s(segment, params, region):
    """Region as float64[N]."""
    return carray(pointer(segment.ctypes.data + params[region]), (params[region + 1] // 8,), np.float64)

"""Typed views of a segment's regions, for compiled code.

Kernels receive a table as two arrays, ``segment`` (uint8) and ``params`` (int64, `Layout.params`); the
compiled accessors here turn a region into a typed view. Only the shard that owns the table may change
anything here; clients read block and slot records of what they have pinned.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel


@kernel
def int64s(segment, params, region):
    """Region as int64[N]."""
    return segment[params[region] : params[region] + params[region + 1]].view(np.int64)


@kernel
def int32s(segment, params, region):
    """Region as int32[N]."""
    return segment[params[region] : params[region] + params[region + 1]].view(np.int32)


@kernel
def float64s(segment, params, region):
    """Region as float64[N]."""
    return segment[params[region] : params[region] + params[region + 1]].view(np.float64)

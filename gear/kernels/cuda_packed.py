"""Numbering items that lie one behind the other on a GPU: where one begins depends on the lengths of all before it."""

from __future__ import annotations

import numpy as np
from numba import cuda

from gear.kernels.cuda_seam import kernel, peek_4, quotient, store_8

COUNTERS = 512
"""Threads of a block that numbers packed items, at most."""


@kernel
def number_packed(lengths, items, longest, offsets):
    """offsets: int64[items], where each item begins if they lie behind each other. A grid of one block of threads."""
    sums = cuda.shared.array(COUNTERS, np.int64)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    each = quotient(items + threads - 1, threads)
    total = 0
    for k in range(thread * each, min(items, (thread + 1) * each)):
        total += max(0, min(peek_4(lengths + 4 * k), longest))
    sums[thread] = total
    cuda.syncthreads()
    total = 0
    for i in range(thread):
        total += sums[i]
    for k in range(thread * each, min(items, (thread + 1) * each)):
        store_8(offsets + 8 * k, total)
        total += max(0, min(peek_4(lengths + 4 * k), longest))

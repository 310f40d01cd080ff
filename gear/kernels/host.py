"""Kernels on the host, compiled by Numba: the same functions as `reference`, for speed.

All release the GIL and may be called from other kernels. Arrays must be C-contiguous and writable (a
read-only one is another signature, compiled in mid-service). Gathering never leaves the segment, whatever
`starts` and block records hold; a plan that does not fit its arrays is refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import compile_lock, helper, kernel
from gear.kernels.host_copy import check_places
from gear.kernels.host_insert import read_heads, read_offsets, write_columns
from gear.kernels.host_packed import gather_packed
from gear.kernels.host_random import random_bits, uniforms
from gear.kernels.host_rows import gather_rows
from gear.kernels.host_tree import tree_build, tree_draw, tree_smallest, tree_total, tree_update
from gear.kernels.host_windows import gather_windows
from gear.kernels.records import (
    BLOCK_STEPS,
    FAN,
    ITEM_LENGTH,
    KIND,
    MASK,
    PAD,
    PER_STEP,
    PLAN_FIELDS,
    TARGET,
    WIDTH,
)

__all__ = [
    "gather",
    "gather_packed",
    "load",
    "random_bits",
    "read_heads",
    "read_offsets",
    "tree_build",
    "tree_draw",
    "tree_smallest",
    "tree_total",
    "tree_update",
    "uniforms",
    "write_columns",
]

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]


@helper
def _check_output(plan: Integers, pads: int, items: int, out: int) -> None:
    """Refuse a plan whose batch leaves the output, or whose pad values leave the pads (sizes in bytes)."""
    length = plan[0, ITEM_LENGTH]
    if plan[0, MASK] >= 0 and plan[0, MASK] + items * length > out:
        raise ValueError("plan: the mask does not fit into the output")
    for c in range(1, plan.shape[0]):
        rows = items * length if plan[c, KIND] == PER_STEP else items
        if plan[c, TARGET] + rows * plan[c, WIDTH] > out:
            raise ValueError("plan: a column does not fit into the output")
        if plan[c, PAD] >= 0 and plan[c, PAD] + plan[c, WIDTH] > pads:
            raise ValueError("plan: a pad value lies outside the pads")


@kernel
def gather(segment: Bytes, plan: Integers, pads: Bytes, starts: Integers, lengths: Shorts, out: Bytes) -> None:
    """Collect the rows of items into contiguous columns; see `reference.gather`."""
    if lengths.shape[0] != starts.shape[0]:
        raise ValueError("gather: starts and lengths differ in length")
    check_places(segment.shape[0], plan)
    _check_output(plan, pads.shape[0], starts.shape[0], out.shape[0])
    if plan[0, ITEM_LENGTH] == 1:
        gather_rows(segment, plan, pads.ctypes.data, starts, lengths, out.ctypes.data)
    else:
        gather_windows(segment, plan, pads.ctypes.data, starts, lengths, out.ctypes.data)


def load() -> None:
    """Have every kernel here compiled, or loaded from the cache, before it is needed."""
    with compile_lock():
        run_all()


def run_all() -> None:
    """Call every kernel here once, on next to nothing."""
    plan = np.zeros((1, PLAN_FIELDS), np.int64)
    plan[0, BLOCK_STEPS] = 1
    octets, places, lengths = np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int32)
    tree, starts = np.zeros(FAN), np.zeros(1, np.int64)
    gather(octets, plan, octets, places, lengths, octets)
    table = np.zeros((0, 3), np.int64)
    read_heads(0, table, places, table[:, :0].copy())
    read_offsets(np.zeros(1, np.int64), 0, places, places, places, table[:, :0].copy())
    write_columns(octets, plan, lengths, places, places, table[:, :0].copy())
    gather_packed(octets, plan, octets, places, lengths, octets)
    tree_build(tree, tree[:0], starts)
    tree_update(tree, tree[:0], starts, places, tree[:0])
    tree_draw(tree, starts, tree[:0], places)
    tree_total(tree, starts)
    tree_smallest(tree, tree[:0], starts)
    random_bits(0, 0, 0)
    uniforms(0, 0, tree[:0])

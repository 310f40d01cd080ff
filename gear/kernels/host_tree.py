"""The sum tree on the host, compiled by Numba; `host` forwards it. See `reference` for the arrays.

A node is re-summed from its eight children, so sums never drift, and pairwise, so that the processor adds
in parallel. A batch goes down (or up) level by level, the nodes of the next level prefetched.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels.compile import helper, kernel, prefetch
from gear.kernels.compile import read_float64 as _at
from gear.kernels.host_node import least, least_leaf, node_sum, write_float64
from gear.kernels.records import FAN

SHIFT = 3
"""Binary logarithm of FAN."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@helper
def _sum_up(tree: int, mins: int, level: int, start: int, below: int, inner: int, place: int) -> None:
    """Sum and minimum of node `place` of an inner level that begins at `start`, its children's at `below`.

    tree, mins: addresses.
    """
    node, mine = below + place * FAN, start + place
    write_float64(tree + 8 * mine, node_sum(tree + 8 * node))
    smallest = least_leaf(tree + 8 * node) if level == 1 else least(mins + 8 * (node - inner))
    write_float64(mins + 8 * (mine - inner), smallest)


@kernel
def tree_build(tree: Floats, mins: Floats, starts: Integers) -> None:
    """Make sums and minima from the leaves; runs once before the tree is used."""
    levels, base, low = starts.shape[0], tree.ctypes.data, mins.ctypes.data
    for level in range(1, levels):
        start, below, inner = starts[level], starts[level - 1], starts[1]
        end = starts[level + 1] if level + 1 < levels else tree.shape[0]
        nodes = (start - below) // FAN
        for place in range(nodes):
            _sum_up(base, low, level, start, below, inner, place)
        for place in range(nodes, end - start):  # padding to whole nodes
            tree[start + place] = 0.0
            mins[start + place - inner] = np.inf


@kernel
def tree_update(tree: Floats, mins: Floats, starts: Integers, items: Integers, leaves: Floats) -> None:
    """Set leaves and re-sum their ancestors; of duplicate items the last wins."""
    levels, n = starts.shape[0], items.shape[0]
    if leaves.shape[0] != n:
        raise ValueError("tree_update: items and leaves differ in length")
    count = 0 if levels == 0 else starts[1] if levels > 1 else tree.shape[0]
    base, low = tree.ctypes.data, mins.ctypes.data
    for k in range(n):
        if items[k] < 0 or items[k] >= count:
            raise IndexError("tree_update: an item lies outside the tree")
        prefetch(base + 8 * items[k])
    for k in range(n):
        tree[items[k]] = leaves[k]
    for level in range(1, levels):
        start, below, inner = starts[level], starts[level - 1], starts[1]
        nodes = (start - below) // FAN
        if nodes <= n:  # cheaper than finding out which ones changed
            for place in range(nodes):
                _sum_up(base, low, level, start, below, inner, place)
            continue
        last = np.int64(-1)
        for k in range(n):
            place = items[k] >> (SHIFT * level)
            if place != last:  # sorted items share parents
                _sum_up(base, low, level, start, below, inner, place)
                last = place


@kernel
def tree_total(tree: Floats, starts: Integers) -> float:
    """Return the sum of all leaves."""
    if starts.shape[0] == 0:
        return 0.0
    return node_sum(tree.ctypes.data + 8 * starts[starts.shape[0] - 1])


@kernel
def tree_smallest(tree: Floats, mins: Floats, starts: Integers) -> float:
    """Return the smallest leaf that is not zero; inf if there is none."""
    levels = starts.shape[0]
    if levels == 0:
        return np.inf
    if levels == 1:
        return least_leaf(tree.ctypes.data)
    return least(mins.ctypes.data + 8 * (starts[levels - 1] - starts[1]))


@helper
def _nearest(node: int, child: int) -> tuple[int, float]:
    """Where a mass belongs that rounding pushed onto a child of zero: the end of the one before it."""
    for q in range(child - 1, -1, -1):
        if _at(node + 8 * q) > 0.0:
            return q, np.nextafter(_at(node + 8 * q), 0.0)
    for q in range(child + 1, FAN):  # only for a mass below zero
        if _at(node + 8 * q) > 0.0:
            return q, 0.0
    return child, 0.0


@kernel
def tree_draw(tree: Floats, starts: Integers, masses: Floats, items: Integers) -> None:
    """items[k] = the leaf at masses[k] of the cumulated leaves, never one of zero; -1 if all are zero."""
    levels, n = starts.shape[0], masses.shape[0]
    if items.shape[0] != n:
        raise ValueError("tree_draw: masses and items differ in length")
    base = tree.ctypes.data
    if levels == 0 or not node_sum(base + 8 * starts[levels - 1]) > 0.0:
        items[:] = -1
        return
    items[:] = 0
    for level in range(levels - 1, -1, -1):
        start, below = base + 8 * starts[level], base + 8 * (starts[level - 1] if level > 0 else 0)
        for k in range(n):
            # Halves, pairs, single children, added in the order of node_sum; a NaN goes right.
            node, x = start + 64 * items[k], masses[k]
            first, second = _at(node) + _at(node + 8), _at(node + 16) + _at(node + 24)
            third, half = _at(node + 32) + _at(node + 40), first + second
            right = not (x < half)
            x = x - half if right else x
            pair = third if right else first
            child = 4 if right else 0
            right = not (x < pair)
            x = x - pair if right else x
            child = child + 2 if right else child
            single = _at(node + 8 * child)
            right = not (x < single)
            x = x - single if right else x
            child = child + 1 if right else child
            if not _at(node + 8 * child) > 0.0:
                child, x = _nearest(node, child)
            item = items[k] * FAN + child
            items[k], masses[k] = item, x
            if level > 0:
                prefetch(below + 64 * item)

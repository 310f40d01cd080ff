"""The sum tree on a GPU: its nodes, building it, drawing from it; see `reference` for the arrays.

Levels, sums and the order of additions are those of the host, so both draw the same leaves. Trees are addresses of
float64 but for ``starts``. A node is one line of memory, read by one thread.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from gear.kernels.cuda_random import uniform
from gear.kernels.cuda_seam import bits_of, device, kernel, load_float, number_of, store_8, store_float, times
from gear.kernels.records import FAN

SHIFT = 3
"""Binary logarithm of FAN."""

NODE = 8 * FAN
"""Bytes of a node."""


@device
def node_sum(node):
    """Sum of the eight float64 at an address, added in pairs."""
    low = (load_float(node) + load_float(node + 8)) + (load_float(node + 16) + load_float(node + 24))
    high = (load_float(node + 32) + load_float(node + 40)) + (load_float(node + 48) + load_float(node + 56))
    return low + high


@device
def _least(node, leaves):
    """The smallest of the eight float64 at an address; of leaves, the smallest that is not zero."""
    least = np.inf
    for q in range(FAN):
        value = load_float(node + 8 * q)
        if value < least and (not leaves or value > 0.0):
            least = value
    return least


@device
def sum_up(tree, mins, starts, level, place):
    """Sum and minimum of node `place` of an inner level."""
    node, inner = starts[level - 1] + place * FAN, starts[1]
    at = starts[level] + place
    store_float(tree + 8 * at, node_sum(tree + 8 * node))
    below = tree + 8 * node if level == 1 else mins + 8 * (node - inner)
    store_float(mins + 8 * (at - inner), _least(below, level == 1))


@device
def nodes_of(starts, level):
    """Nodes that an inner level has."""
    return (starts[level] - starts[level - 1]) >> SHIFT


@kernel
def build_levels(tree, mins, starts, size, level, last):
    """Make levels `level` to `last` from the one below; all but the first need a grid of one block of threads."""
    thread, threads = cuda.grid(1), cuda.gridsize(1)
    while level <= last:
        nodes = nodes_of(starts, level)
        end = (starts[level + 1] if level + 1 < starts.shape[0] else size) - starts[level]
        for place in range(thread, end, threads):
            if place < nodes:
                sum_up(tree, mins, starts, level, place)
            else:  # padding to whole nodes
                store_float(tree + 8 * (starts[level] + place), 0.0)
                store_float(mins + 8 * (starts[level] + place - starts[1]), np.inf)
        cuda.syncthreads()
        level += 1


@device
def _nearest(node, child):
    """Where a mass belongs that rounding pushed onto a child of zero: the end of the one before it."""
    for q in range(child - 1, -1, -1):
        value = load_float(node + 8 * q)
        if value > 0.0:
            return q, number_of(bits_of(value) - 1)  # the next smaller float64
    for q in range(child + 1, FAN):  # only for a mass below zero
        if load_float(node + 8 * q) > 0.0:
            return q, 0.0
    return child, 0.0


@device
def descend(tree, starts, x):
    """The leaf at mass x of the cumulated leaves of a tree whose total is not zero, never one of zero."""
    item = 0
    for above in range(starts.shape[0]):
        node = tree + 8 * (starts[starts.shape[0] - 1 - above] + item * FAN)
        # Halves, pairs, single children, added in the order of node_sum; a NaN goes right.
        first = load_float(node) + load_float(node + 8)
        half = first + (load_float(node + 16) + load_float(node + 24))
        pair, child = first, 0
        if not (x < half):
            x, pair, child = x - half, load_float(node + 32) + load_float(node + 40), 4
        if not (x < pair):
            x, child = x - pair, child + 2
        single = load_float(node + 8 * child)
        if not (x < single):
            x, child = x - single, child + 1
        if not load_float(node + 8 * child) > 0.0:
            child, x = _nearest(node, child)
        item = item * FAN + child
    return item


@kernel
def draw_masses(tree, starts, masses, items, count):
    """items: int64[count], the leaves at masses: float64[count]; -1 if all leaves are zero."""
    for k in range(cuda.grid(1), count, cuda.gridsize(1)):
        item = -1
        if starts.shape[0] > 0 and node_sum(tree + 8 * starts[starts.shape[0] - 1]) > 0.0:
            item = descend(tree, starts, load_float(masses + 8 * k))
        store_8(items + 8 * k, item)


@kernel
def draw_numbered(tree, starts, seed, first, items, probabilities, count):
    """Draws first, first + 1, ... of a seed: items: int64[count] and what each was drawn with: float64[count].

    The total is read where it lies: what a host would do in three steps, waiting for a number in between.
    """
    for k in range(cuda.grid(1), count, cuda.gridsize(1)):
        item, probability = -1, 0.0
        total = node_sum(tree + 8 * starts[starts.shape[0] - 1]) if starts.shape[0] > 0 else 0.0
        if total > 0.0:
            item = descend(tree, starts, times(uniform(seed, first + k), total))
            probability = load_float(tree + 8 * item) / total
        store_8(items + 8 * k, item)
        store_float(probabilities + 8 * k, probability)

"""Updating the sum tree on a GPU: leaves and their paths alone, duplicates settled, whole or not at all.

Of duplicate items the last wins, whatever order threads run in: each writes its number into a slot of a hash table
that its item has to itself, and only the largest number's leaf is put. The table is empty between updates. An update of
up to `cuda_priorities.FEW` items is one launch of one block of threads; larger ones take a launch per step.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from gear.kernels.cuda_seam import claim, device, kernel, load_8, load_float, raise_to, store_8, store_float
from gear.kernels.cuda_tree import SHIFT, nodes_of, sum_up

HEAD = 2
"""int64s at the beginning of the notes: what `status` is made of, and room to align the rest to 16 bytes."""


@device
def _slot(keys, mask, item):
    """The address of the slot that an item has to itself."""
    at = ((item & 0x7FFFFFFF) * 0x61C88647 >> 7) & mask  # Fibonacci hashing
    while True:
        found = claim(keys + 8 * at, item + 1)
        if found == 0 or found == item + 1:
            return at
        at = (at + 1) & mask


@device
def enter(notes, mask, items, leaves, size, k):
    """Enter update k into the table, or note that it is refused: no leaf of the tree, or no value of one."""
    item, leaf = load_8(items + 8 * k), load_float(leaves + 8 * k)
    if item < 0 or item >= size or not (leaf >= 0.0 and leaf < np.inf):
        raise_to(notes, -k - 1 + (1 << 62))
        return
    keys = notes + 8 * HEAD
    numbers, slots = keys + 8 * (mask + 1), keys + 16 * (mask + 1)
    slot = _slot(keys, mask, item)
    store_8(slots + 8 * k, slot + 1)
    raise_to(numbers + 8 * slot, k + 1)


@device
def put(notes, mask, tree, items, leaves, k):
    """Put leaf k if nothing was refused and it is the last of its item."""
    numbers, slots = notes + 8 * (HEAD + mask + 1), notes + 8 * (HEAD + 2 * (mask + 1))
    slot = load_8(slots + 8 * k) - 1
    if load_8(notes) == 0 and load_8(numbers + 8 * slot) == k + 1:
        store_float(tree + 8 * load_8(items + 8 * k), load_float(leaves + 8 * k))


@device
def leave(notes, mask, k):
    """Empty the slot of update k."""
    slots = notes + 8 * (HEAD + 2 * (mask + 1))
    slot = load_8(slots + 8 * k) - 1
    if slot >= 0:
        store_8(notes + 8 * (HEAD + slot), 0)
        store_8(notes + 8 * (HEAD + mask + 1 + slot), 0)
        store_8(slots + 8 * k, 0)


@device
def rise(notes, tree, mins, starts, level, items, count, thread, threads):
    """Sum up a level's nodes above the items; all of them where that is fewer."""
    nodes = nodes_of(starts, level)
    if load_8(notes) != 0:
        return
    if nodes <= count:
        for place in range(thread, nodes, threads):
            sum_up(tree, mins, starts, level, place)
        return
    shift = SHIFT * level
    for k in range(thread, count, threads):
        place = load_8(items + 8 * k) >> shift
        if k == 0 or load_8(items + 8 * (k - 1)) >> shift != place:  # neighbours share parents
            sum_up(tree, mins, starts, level, place)


@device
def report(notes, status):
    """Say which update was refused, -1 for none, and forget it."""
    refused = load_8(notes)
    store_8(status, (1 << 62) - refused - 1 if refused else -1)
    store_8(notes, 0)


@kernel
def update_few(notes, mask, tree, mins, starts, size, items, leaves, count, status):
    """A whole update in one launch, by a grid of one block of threads."""
    thread, threads = cuda.grid(1), cuda.gridsize(1)
    for k in range(thread, count, threads):
        enter(notes, mask, items, leaves, size, k)
    cuda.syncthreads()
    for k in range(thread, count, threads):
        put(notes, mask, tree, items, leaves, k)
    cuda.syncthreads()
    for k in range(thread, count, threads):
        leave(notes, mask, k)
    for level in range(1, starts.shape[0]):
        rise(notes, tree, mins, starts, level, items, count, thread, threads)
        cuda.syncthreads()
    if thread == 0:
        report(notes, status)


@kernel
def enter_all(notes, mask, items, leaves, size, count):
    """First step of a large update."""
    for k in range(cuda.grid(1), count, cuda.gridsize(1)):
        enter(notes, mask, items, leaves, size, k)


@kernel
def put_all(notes, mask, tree, items, leaves, count):
    """Second step of a large update."""
    for k in range(cuda.grid(1), count, cuda.gridsize(1)):
        put(notes, mask, tree, items, leaves, k)


@kernel
def rise_all(notes, mask, tree, mins, starts, first, last, items, count, status):
    """Further steps: levels `first` to `last`; more than one need a grid of one block of threads.

    The step of level 1 (or of a tree that has no level above its leaves) empties the table, the last one reports.
    """
    thread, threads = cuda.grid(1), cuda.gridsize(1)
    if first <= 1:
        for k in range(thread, count, threads):
            leave(notes, mask, k)
    for level in range(first, last + 1):
        rise(notes, tree, mins, starts, level, items, count, thread, threads)
        cuda.syncthreads()
    if last == starts.shape[0] - 1 and thread == 0:
        report(notes, status)

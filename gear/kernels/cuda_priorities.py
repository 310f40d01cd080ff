"""The sum tree of a sampler on a GPU: building it, updates, draws; a launch or a few each, for which nobody waits.

A draw is one launch, whatever its size. An update of up to `FEW` items is one too; a larger one takes two and those of
a build. A build is one for each level with more than `FEW` nodes, and one for all levels above.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from gear.kernels.cuda_launch import THREADS, Call, lines
from gear.kernels.cuda_random import write_bits, write_uniforms
from gear.kernels.cuda_seam import SIMULATED
from gear.kernels.cuda_tree import build_levels, draw_masses, draw_numbered
from gear.kernels.cuda_update import HEAD, enter_all, put_all, rise_all, update_few
from gear.kernels.records import FAN

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FEW = 16 if SIMULATED else 4096
"""Items of an update, or nodes of a level, that one block of threads does."""

BLOCK = 4 if SIMULATED else 512
"""Threads of a block that is alone: more would get fewer than 128 registers each."""


def _above(starts: Integers) -> list[tuple[int, int]]:
    """(first, last) levels of the launches that sum up a tree: single ones while large, then all others."""
    levels, found = len(starts), list[tuple[int, int]]()
    for level in range(1, levels):
        if (starts[level] - starts[level - 1]) // FAN <= FEW:
            return [*found, (level, levels - 1)]
        found.append((level, level))
    return found


def _leaves(tree: Any, starts: Integers) -> int:
    return int(starts[1]) if len(starts) > 1 else len(tree) if len(starts) else 0


class Updates:
    """Makes updates of up to `most` items of one tree at a time; owns what they note meanwhile.

    Parameters
    ----------
    most : items of an update at most.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        slots = 8
        while slots < 2 * most:
            slots *= 2
        self.mask = slots - 1
        self.notes = cuda.to_device(np.zeros(HEAD + 2 * slots + max(1, most), np.int64))

    def __call__(
        self, tree: Any, mins: Any, starts: Integers, items: Any, leaves: Any, status: Any, stream: Any = 0
    ) -> None:
        """Set leaves and re-sum their ancestors; see `reference.tree_update`.

        Parameters
        ----------
        status : int64[1]
            Receives -1, or the first update that is refused, because its item is no leaf of the tree or its value
            is negative, infinite or no number; nothing is changed then.

        Raises
        ------
        ValueError
            If there are more items than it was made for, or not as many leaves.
        """
        count, size = len(items), _leaves(tree, starts)
        if len(leaves) != count:
            raise ValueError("tree_update: items and leaves differ in length")
        if count > self.most:
            raise ValueError(f"tree_update: made for {self.most} items at a time, got {count}; make a larger one")
        with Call(stream) as call:
            notes, table = call.writes(self.notes), call.table(starts)
            there = call.writes(tree), call.writes(mins), table
            given = call.reads(items), call.reads(leaves)
            told = call.writes(status)
            if count <= FEW:
                call.launch(update_few, 1, BLOCK, notes, self.mask, *there, size, *given, count, told)
                return
            grid = lines(count)
            call.launch(enter_all, grid, THREADS, notes, self.mask, *given, size, count)
            call.launch(put_all, grid, THREADS, notes, self.mask, there[0], *given, count)
            for first, last in _above(starts) or [(1, 0)]:
                shape = (grid, THREADS) if first == last else (1, BLOCK)
                arguments = notes, self.mask, *there, first, last, given[0], count, told
                call.launch(rise_all, *shape, *arguments)


def tree_build(tree: Any, mins: Any, starts: Integers, stream: Any = 0) -> None:
    """Make the inner nodes of a sum tree from its leaves; see `reference.tree_build`."""
    with Call(stream) as call:
        arguments = call.writes(tree), call.writes(mins), call.table(starts), len(tree)
        for first, last in _above(starts):
            shape = (lines(int(starts[first] - starts[first - 1]) // FAN), THREADS) if first == last else (1, BLOCK)
            call.launch(build_levels, *shape, *arguments, first, last)


def tree_update(tree: Any, mins: Any, starts: Integers, items: Any, leaves: Any, stream: Any = 0) -> None:
    """Set leaves and re-sum their ancestors; see `reference.tree_update`, and `Updates` for what never waits."""
    status = np.full(1, -1, np.int64)
    Updates(len(items))(tree, mins, starts, items, leaves, status, stream)
    if status[0] < 0:
        return
    k = int(status[0])
    item, leaf = (float(np.asarray(a.copy_to_host() if hasattr(a, "copy_to_host") else a)[k]) for a in (items, leaves))
    if not 0 <= item < _leaves(tree, starts):
        raise IndexError("tree_update: an item lies outside the tree")
    raise ValueError(f"tree_update: leaf {k} is {leaf}; expected a finite number that is not negative")


def tree_draw(tree: Any, starts: Integers, masses: Any, items: Any, stream: Any = 0) -> None:
    """Find the leaves at which the cumulated leaves first exceed the masses; see `reference.tree_draw`."""
    if len(masses) != len(items):
        raise ValueError("tree_draw: masses and items differ in length")
    if len(items):
        with Call(stream) as call:
            arguments = call.reads(tree), call.table(starts), call.reads(masses), call.writes(items)
            call.launch(draw_masses, lines(len(items)), THREADS, *arguments, len(items))


def tree_sample(
    tree: Any, starts: Integers, seed: int, first: int, items: Any, probabilities: Any, stream: Any = 0
) -> None:
    """Make the draws first, first + 1, ... of a seed.

    The items are those of `uniforms` times `tree_total` given to `tree_draw`, on the host as on a device.

    Parameters
    ----------
    tree, starts
        As for `reference.tree_draw`.
    seed, first : numbers from 0 to 2**63 - 1.
    items : int64[B]
        Receives the leaves, -1 where the total is 0.
    probabilities : float64[B]
        Receives what each was drawn with: its leaf over the total.
    """
    if len(probabilities) != len(items):
        raise ValueError("tree_sample: items and probabilities differ in length")
    if len(items):
        with Call(stream) as call:
            arguments = call.reads(tree), call.table(starts), seed, first, call.writes(items)
            call.launch(
                draw_numbered, lines(len(items)), THREADS, *arguments, call.writes(probabilities), len(items)
            )  # fmt: skip


def _node(array: Any, begin: int) -> Floats:
    """The node of an array that begins at an index, in the host's memory."""
    node = array[begin : begin + FAN]
    return np.asarray(node.copy_to_host() if hasattr(node, "copy_to_host") else node)


def tree_total(tree: Any, starts: Integers) -> float:
    """Return the sum of all leaves; waits for the device if the tree is there."""
    if not len(starts):
        return 0.0
    node = _node(tree, int(starts[-1]))
    return float(node.reshape(2, 2, 2).sum(2).sum(1).sum())


def tree_smallest(tree: Any, mins: Any, starts: Integers) -> float:
    """Return the smallest leaf that is not zero, inf if there is none; waits for the device if the tree is there."""
    if not len(starts):
        return float("inf")
    node = _node(tree, 0) if len(starts) == 1 else _node(mins, int(starts[-1] - starts[1]))
    return float(min(node[node > 0.0], default=np.inf))


def uniforms(seed: int, first_draw: int, out: Any, stream: Any = 0) -> None:
    """Fill float64[B] with numbers in [0, 1); see `reference.uniforms`."""
    if len(out):
        with Call(stream) as call:
            call.launch(write_uniforms, lines(len(out)), THREADS, seed, first_draw, call.writes(out), len(out))


def random_bits(seed: int, draw: int, attempt: int, stream: Any = 0) -> int:
    """Return 64 random bits that depend on the three numbers alone; see `reference.random_bits`."""
    out = np.zeros(1, np.int64)
    with Call(stream) as call:
        call.launch(write_bits, 1, THREADS, seed, draw, attempt, call.writes(out))
    return int(out.view(np.uint64)[0])

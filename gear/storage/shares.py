"""Dividing one draw among data-parallel ranks: every rank gets a batch, none empty, with about as many steps.

Pure functions over the lengths of units: items, or the groups that stay together. Longest first, each to who has the
least so far (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969): at most 4/3 of the
best there can be. verl divides a batch for its ranks by the same lengths (Karmarkar and Karp's differencing in
`verl/utils/seqlen_balancing.py`), which comes closer by steps that do not matter beside the longest response and takes
time in proportion to ranks for each item; this is on the shard's loop.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


class Bins:
    """Batches of at most `steps` steps and `size` units for each of `ranks`, filled in the order of the draw.

    A unit goes where it leaves the least room. `alone`: a longer one comes as a batch of its own.
    """

    def __init__(self, ranks: int, size: int, steps: int, alone: bool) -> None:
        self._size, self._steps, self._alone = size, steps, alone
        self._open = [(0, rank) for rank in range(ranks)]  # (steps, rank), rising; those that may take more
        self._counts = [0] * ranks
        self.owners: list[int] = []
        """By unit, whose it is."""

    def put(self, length: int) -> bool:
        """Take the next unit, if it fits anywhere."""
        at = bisect_right(self._open, (self._steps - length, len(self._counts))) - 1
        if at < 0:
            if not self._alone or length <= self._steps or not self._open or self._open[0][0]:
                return False
            at = 0
        load, rank = self._open.pop(at)
        self.owners.append(rank)
        self._counts[rank] += 1
        if self._counts[rank] < self._size and load + length < self._steps:
            insort(self._open, (load + length, rank))
        return True


def even(lengths: npt.NDArray[np.int64], ranks: int) -> npt.NDArray[np.int64]:
    """Whose each unit is, where all get equally many (one more or less, if they do not divide). int64[N]."""
    n = len(lengths)
    if n == 0 or (lengths == lengths[0]).all():
        return np.arange(n) * ranks // max(1, n)
    owners, loads = np.empty(n, np.int64), np.zeros(ranks, np.int64)
    order = np.argsort(-lengths, kind="stable")
    for first in range(0, n, ranks):  # of the next longest ones, the longest to who has least
        some = order[first : first + ranks]
        to = np.argsort(loads, kind="stable")[: len(some)]
        owners[some] = to
        loads[to] += lengths[some]
    return owners


def within(lengths: npt.NDArray[np.int64], ranks: int, size: int, steps: int, alone: bool) -> npt.NDArray[np.int64]:
    """The same for batches of at most `steps` steps and `size` units, for units that `Bins` took. int64[N]."""
    owners = np.empty(len(lengths), np.int64)
    least = [(0, rank, 0) for rank in range(ranks)]
    for unit in np.argsort(-lengths, kind="stable").tolist():
        load, rank, count = heapq.heappop(least)
        total = load + int(lengths[unit])
        if total > steps and load:
            return _as_filled(lengths, ranks, size, steps, alone)
        owners[unit] = rank
        if count + 1 < size:
            heapq.heappush(least, (total, rank, count + 1))
    return owners


def _as_filled(lengths: npt.NDArray[np.int64], ranks: int, size: int, steps: int, alone: bool) -> npt.NDArray[np.int64]:
    """As they were taken, which fits where longest first does not; nobody is left with nothing."""
    bins = Bins(ranks, size, steps, alone)
    for length in lengths.tolist():
        bins.put(length)
    owners = np.array(bins.owners, np.int64)
    for rank in np.flatnonzero(np.bincount(owners, minlength=ranks) == 0).tolist():
        crowded = np.flatnonzero(np.bincount(owners, minlength=ranks)[owners] > 1)
        owners[crowded[np.argmin(lengths[crowded])]] = rank
    return owners

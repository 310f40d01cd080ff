"""Draws by priority on the GPU of a shard: a sum tree there over the host's leaves, and draws numbered as the host's.

The host writes leaves, as ever, and notes whose; before a draw the GPU takes in what has changed, by one update of the
paths of those items, or, after more than are noted, all leaves at once. The tree has the host's shape and order of
additions, so both draw the same items for the same draw number. What a draw brings (items, probabilities, the root)
comes to the host in one copy. Single writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import cuda

from gear.devices.seam import on
from gear.kernels.cuda import Updates, tree_build, tree_sample
from gear.kernels.records import FAN
from gear.storage import fields as f
from gear.storage.regions import MOST_CHANGED

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout


class Drawn(NamedTuple):
    """Items that were drawn, int64[B] and float64[B], and the tree at that draw: all leaves' sum, the smallest one."""

    items: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    total: float
    smallest: float

    @property
    def least(self) -> float:
        """The smallest probability of any item."""
        return self.smallest / self.total if self.total > 0 else 1.0


class DrawsThere:
    """The sum tree of a table's set 0 on a device.

    Parameters
    ----------
    layout, segment : of the table, whose sampler is `Prioritized`.
    number : of the device in this process.
    """

    def __init__(self, layout: Layout, segment: npt.NDArray[np.uint8], number: int) -> None:
        self._number, self._seed = number, layout.table.seed
        self._counters = layout.view(segment, "counters")
        self._leaves, self._changed = layout.view(segment, "tree"), layout.view(segment, "changed")
        self._starts = layout.view(segment, "starts").copy()
        self._size = int(self._starts[1]) if len(self._starts) > 1 else len(self._leaves)
        self._root = int(self._starts[-1])
        with on(number):
            self._tree = cuda.to_device(np.zeros(len(self._leaves)))
            self._mins = cuda.to_device(np.full(max(1, len(self._leaves) - self._size), np.inf))
            self._update = Updates(min(len(self._changed), MOST_CHANGED))
            self._given = cuda.device_array(len(self._changed), np.int64)
            self._values = cuda.device_array(len(self._changed), np.float64)
            self._status = cuda.to_device(np.full(1, -1, np.int64))
        self._room = 0
        self._compile()
        self._counters[f.SUMMED_THERE], self._counters[f.CHANGED] = 1, len(self._changed) + 1
        self._known: tuple[float, float] | None = None

    def _compile(self) -> None:
        """Run every kernel once, on a tree of nothing: none is compiled while somebody waits for a draw."""
        with on(self._number):
            self._given[:1].copy_to_device(np.zeros(1, np.int64))
            self._values[:1].copy_to_device(np.zeros(1))
            self._update(self._tree, self._mins, self._starts, self._given[:1], self._values[:1], self._status)
            tree_build(self._tree, self._mins, self._starts)
            items, chances = cuda.device_array(1, np.int64), cuda.device_array(1, np.float64)
            tree_sample(self._tree, self._starts, self._seed, 0, items, chances)
            cuda.synchronize()

    def draw(self, size: int) -> Drawn:
        """Make the next `size` draws; they count once they are taken. Items are -1 where no leaf is above 0."""
        first = int(self._counters[f.DRAWS])
        with on(self._number):
            self._take_in()
            if size > self._room:
                self._room = size
                self._result = cuda.device_array(2 * (size + FAN), np.int64)
                self._host = cuda.pinned_array(2 * (size + FAN), np.int64)
            items, chances = self._result[:size], self._result[size : 2 * size].view(np.float64)
            tree_sample(self._tree, self._starts, self._seed, first, items, chances)
            there, here = self._result[: 2 * (size + FAN)], self._host[: 2 * (size + FAN)]
            self._copy_root(there[2 * size :])
            there.copy_to_host(here)
        self._known = total, smallest = self._sums(here[2 * size :].view(np.float64))
        items_here, chances_here = here[:size].copy(), here[size : 2 * size].view(np.float64).copy()
        return Drawn(items_here, chances_here, total, smallest)

    def sums(self) -> tuple[float, float]:
        """The sum of all leaves and the smallest one that is not zero (inf: none)."""
        if self._known is None or self._counters[f.CHANGED]:
            with on(self._number):
                self._take_in()
                both, here = cuda.device_array(2 * FAN, np.int64), np.empty(2 * FAN, np.int64)
                self._copy_root(both)
                both.copy_to_host(here)
            self._known = self._sums(here.view(np.float64))
        return self._known

    def _take_in(self) -> None:
        """Bring the leaves that changed, and sum up above them."""
        count = int(self._counters[f.CHANGED])
        if not count:
            return
        self._counters[f.CHANGED] = 0
        if count > len(self._changed):
            self._tree[: self._size].copy_to_device(self._leaves[: self._size])
            tree_build(self._tree, self._mins, self._starts)
            return
        items = self._changed[:count]
        given, leaves = self._given[:count], self._values[:count]
        given.copy_to_device(items)
        leaves.copy_to_device(self._leaves[items])
        self._update(self._tree, self._mins, self._starts, given, leaves, self._status)

    def _copy_root(self, there: object) -> None:
        """Eight sums and eight minima, behind each other."""
        levels = len(self._starts)
        sums = self._tree[self._root : self._root + FAN]
        at = self._root - self._size
        least = sums if levels == 1 else self._mins[at : at + FAN]
        there[:FAN].view(np.float64).copy_to_device(sums)  # type: ignore[index]
        there[FAN : 2 * FAN].view(np.float64).copy_to_device(least)  # type: ignore[index]

    @staticmethod
    def _sums(root: npt.NDArray[np.float64]) -> tuple[float, float]:
        sums, least = root[:FAN], root[FAN:]
        return float(sums.reshape(2, 2, 2).sum(2).sum(1).sum()), float(min(least[least > 0.0], default=np.inf))

"""Which blocks and slots the rows of items lie in: what a reader must bring that gathers from a copy of its own.

Reads only. It looks at whatever `starts` say and never leaves the segment; that a pin keeps the rows is the caller's
business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.storage import fields as f

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout


class Extent:
    """The blocks that items take, with their records, in the memory of one table.

    Parameters
    ----------
    layout, segment : the table's.
    """

    def __init__(self, layout: Layout, segment: npt.NDArray[np.uint8]) -> None:
        self._steps, self._count = layout.block_steps, layout.blocks
        self._blocks, self._slots = layout.view(segment, "blocks"), layout.view(segment, "slots")

    def of(
        self,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        length: int,
        reach: tuple[int, int],
        neighbours: npt.NDArray[np.int32],
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Blocks, their records, slots and their records, both in rising order.

        Parameters
        ----------
        starts, lengths : int64[B], int32[B]
            First row number and rows of each item.
        length : int
            Steps that an item is shown with at most.
        reach : (int, int)
            Rows before items and behind them that are read too.
        neighbours : int32[K]
            Slots of other pieces of their trajectories, which are read whole.

        Returns
        -------
        int32[N], int32[N, BLOCK_FIELDS], int32[M], int64[M, SLOT_FIELDS]
        """
        row = starts[(starts >= 0) & (starts < self._count * self._steps)]
        step, first = row % self._steps, (row // self._steps).astype(np.int32)
        longest = max(length, int(lengths.max(initial=0)))
        back = -(-np.maximum(0, reach[0] + longest - step) // self._steps) if reach[0] else np.zeros_like(step)
        ahead = -(-(step + longest + reach[1] + 1) // self._steps) - 1  # one more: the final row
        known = neighbours[(neighbours >= 0) & (neighbours < len(self._slots))]
        begins = self._slots[known, f.FIRST].astype(np.int32)
        found = [first, *self._walk(first, back, f.PREVIOUS), *self._walk(first, ahead, f.NEXT)]
        begins = begins[(begins >= 0) & (begins < self._count)]
        found += [begins, *self._walk(begins, np.full(len(begins), self._count), f.NEXT)]
        blocks = np.unique(np.concatenate(found))
        records = self._blocks[blocks]
        slots = np.unique(np.concatenate((records[:, f.SLOT], known)))
        slots = slots[(slots >= 0) & (slots < len(self._slots))]
        return blocks, records, slots, self._slots[slots]

    def _walk(self, at: npt.NDArray[np.int32], far: npt.NDArray[np.int64], way: int) -> list[npt.NDArray[np.int32]]:
        """The blocks up to `far` (int64[B]) behind each of `at` (int32[B]) along the chains, one step at a time."""
        found = []
        for walked in range(min(self._count, int(far.max(initial=0)))):
            going = far > walked
            ends = way == f.PREVIOUS
            at, far = at[going], far[going]
            if ends:  # the first block of a chain leads nowhere
                inside = self._blocks[at, f.ORDINAL] > 0
                at, far = at[inside], far[inside]
            at = self._blocks[at, way]
            there = (at >= 0) & (at < self._count)
            at, far = at[there], far[there]
            if not len(at):
                break
            found.append(at)
        return found

"""Whether the late columns of items are there, for whoever reads them: asked before and after their rows are gathered.

A column that is not there holds bytes of others or none: it is never handed out. Rows that were overwritten while they
were gathered are gathered again. Reads only, in any process that maps the segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.errors import DataError
from gear.storage import fields as f
from gear.storage.item_sets import bits_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from gear.storage.layout import Layout


class Presence:
    """The late columns `names` of the items at `starts` (int64[B], rows).

    Raises
    ------
    DataError
        If some item lacks one: which, and how to wait for it.
    """

    def __init__(
        self,
        layout: Layout,
        segment: npt.NDArray[np.uint8],
        names: Iterable[str],
        starts: npt.NDArray[np.int64],
    ) -> None:
        blocks = layout.view(segment, "blocks")
        self._late = layout.view(segment, "late")
        known = (starts >= 0) & (starts < layout.blocks * layout.block_steps)
        slots = blocks[np.where(known, starts, 0) // layout.block_steps, f.SLOT]
        self._slots = slots[known & (slots >= 0) & (slots < layout.slots)]
        self._before = self._changes()
        self._needs = bits_of(layout.table, names := tuple(names))
        bits = self._late[self._slots, f.LATE_BITS]
        for name in names:
            lacking = int(np.count_nonzero(bits & bits_of(layout.table, [name]) == 0))
            if lacking:
                raise DataError(
                    f"late column {name!r} of {lacking} of {len(starts)} items of table {layout.table.name!r} is not "
                    f"there yet; draw with require=({name!r},), or leave the column out"
                )

    def near(self, neighbours: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Those of other pieces of split trajectories (slots) that have the columns: views end before the others."""
        there = self._late[neighbours, f.LATE_BITS] & self._needs == self._needs
        near = neighbours[there]
        self._slots = np.concatenate([self._slots, near.astype(self._slots.dtype)])
        self._before = self._changes()
        return near

    def _changes(self) -> npt.NDArray[np.int64]:
        changes: npt.NDArray[np.int64] = self._late[self._slots, f.LATE_CHANGES]
        return changes

    @property
    def unchanged(self) -> bool:
        """Whether no row has changed since; asked again, since the last question."""
        before, self._before = self._before, self._changes()
        return bool((before == self._before).all() and not (before & 1).any())

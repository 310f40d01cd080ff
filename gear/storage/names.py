"""Which ids trajectories have: of the rows with which they begin, see `gear.storage.locate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.storage import fields as f

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout
    from gear.storage.table import StoredTable


def names(layout: Layout, records: npt.NDArray[np.int32], blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Ids of the trajectories that begin in those blocks, int64[N]; good while nobody hands the blocks out anew.

    records: those of all blocks, as `Layout.view` gives them.
    """
    named: npt.NDArray[np.int64] = records[blocks, f.GENERATION].astype(np.int64)
    named <<= layout.row_bits
    named += blocks * np.int64(layout.block_steps)
    named |= layout.index << f.ID_TABLE_SHIFT | layout.shard << f.ID_SHARD_SHIFT
    return named


def names_of(stored: StoredTable, client: int, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Ids of the trajectories that a client committed under those numbers, int64[N].

    One that has left the table gets an id of its own that nothing has ever had, as any that is stale.
    """
    layout, slots = stored.layout, stored.layout.view(stored.segment, "slots")
    key = stored.records[client, f.ID_LOW]
    mine = (slots[:, f.CLIENT] == key) & ((slots[:, f.STATE] == f.CLOSED) | (slots[:, f.STATE] == f.OPEN))
    there = np.flatnonzero(mine & np.isin(slots[:, f.SEQUENCE], sequences))
    there = there[np.argsort(slots[there, f.SEQUENCE])]
    numbers = slots[there, f.SEQUENCE]
    prefix = layout.index << f.ID_TABLE_SHIFT | layout.shard << f.ID_SHARD_SHIFT
    found = np.full(len(sequences), prefix, np.int64)  # of generation 0, which is never handed out
    if len(there):
        at = np.minimum(np.searchsorted(numbers, sequences), len(numbers) - 1)
        known = numbers[at] == sequences
        ids = names(layout, layout.view(stored.segment, "blocks"), slots[there, f.FIRST].astype(np.int32))
        found[known] = ids[at[known]]
    return found

"""Dropping trajectories by id, open or sealed: they leave the table at once, their blocks after the last reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.batch import Update
from gear.errors import DataError
from gear.storage import fields as f
from gear.storage import late, opened
from gear.storage.evict import evict
from gear.storage.passing import forgive
from gear.storage.versions import untouched

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.table import StoredTable


def drop(stored: StoredTable, ids: npt.NDArray[np.int64]) -> Update:
    """Drop the trajectories that ids name by any of their rows, a member of a group with all of it.

    How many ids were applied and how many were stale: their trajectory had left.

    Raises
    ------
    DataError
        If a writer of some client still writes one; nothing is dropped then.
    """
    segment, params = stored.segment, stored.params
    slots, mates = stored.layout.view(segment, "slots"), stored.layout.view(segment, "mates")
    found = [int(late.slot_named(segment, params, number)) for number in ids.tolist()]
    for number, slot in zip(ids.tolist(), found, strict=True):
        if slot >= 0 and slots[slot, f.STATE] == f.OPEN and slots[slot, f.WRITER] != f.TABLE:
            raise DataError(
                f"drop in table {stored.table.name!r}: trajectory {number} is written by a client; drop it when it has "
                "ended; nothing was dropped"
            )
    going: dict[int, None] = {}
    for slot in found:
        while slot >= 0 and slot not in going:
            going[slot] = None
            slot = int(mates[slot]) if len(mates) else slot
    for slot in going:
        if slots[slot, f.STATE] == f.OPEN:
            opened.drop(segment, params, slot)
        else:
            left = int(untouched(segment, params, slot))
            slots[slot, f.FLAGS] |= f.STALE_NOW
            evict(segment, params, slot, False)
            forgive(segment, params, left)
    applied = sum(slot >= 0 for slot in found)
    return Update(applied, len(ids) - applied)

"""A table's listing as pages and cursors.

A cursor is opaque bytes: slot, number of the trajectory and item at which the next page begins. It names
nothing that must stay: it is as good after any insert, eviction or reset.
"""

from __future__ import annotations

import struct

import numpy as np

from gear.errors import ProtocolError
from gear.page import Page
from gear.storage import fields as f
from gear.storage import scan as scans
from gear.storage.table import StoredTable

_CURSOR = struct.Struct("<qqq")


def scan(stored: StoredTable, cursor: bytes, most: int) -> tuple[Page, bytes]:
    """The next page of at most `most` items, and the cursor of the one behind it; empty: that was all.

    A page may be shorter, even empty, before the end: a call looks at a bounded part of the table.

    Raises
    ------
    ProtocolError
        If the cursor is none of this table.
    """
    slot, order, item = (0, -1, 0)
    slots = int(stored.params[f.P_SLOTS])
    if cursor:
        if len(cursor) != _CURSOR.size:
            raise ProtocolError(f"scan: expected a cursor of {_CURSOR.size} bytes, got {len(cursor)}")
        slot, order, item = _CURSOR.unpack(cursor)
        if not 0 <= slot < slots or not 0 <= item < 2**62:
            raise ProtocolError(f"scan: expected a cursor of table {stored.table.name!r}, got {(slot, order, item)}")
    ids, trajectories, positions = (np.empty(most, np.int64) for _ in range(3))
    lengths = np.empty(most, np.int32)
    kept = bool(scans.keeps_priorities(stored.segment, stored.params))
    priorities = np.empty(most if kept else 0, np.float64)
    n, slot, order, item = scans.scan(
        stored.segment, stored.params, slot, order, item, ids, trajectories, positions, lengths, priorities
    )
    page = Page(ids[:n], trajectories[:n], positions[:n], lengths[:n], priorities[:n] if kept else None)
    return page, b"" if slot >= slots else _CURSOR.pack(slot, order, item)

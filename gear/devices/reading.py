"""What one client's kernels read: a collector for each of its tables and devices.

Needs no torch: a learner that takes NumPy arrays has columns of a device gathered too.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from gear.devices.collecting import Collector
from gear.devices.memory import MappedSegment

if TYPE_CHECKING:
    from gear.transport.base import OpenTable

_lock = threading.Lock()
_collectors: weakref.WeakKeyDictionary[OpenTable, dict[int, Collector]] = weakref.WeakKeyDictionary()


def collector_of(table: OpenTable, number: int) -> Collector:
    """What gathers a table's rows on a device: its segment is page-locked and mapped by the first to ask.

    Raises
    ------
    InsufficientMemory, DeviceError
    """
    with _lock:
        mine = _collectors.setdefault(table, {})
        if number not in mine:
            mapped = MappedSegment(table.segment, number)
            weakref.finalize(table, mapped.close)
            mine[number] = Collector(table.layout, mapped, table.arena, number)
        return mine[number]

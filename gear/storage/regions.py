"""The arrays that samplers and removers keep in a segment: which ones a table needs, and how large they are.

Each is (name, dtype, count); those that are not needed are empty. Pure functions of the declared table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gear.schema import Epochs, MaxHeap, MinHeap, Prioritized, Table, Uniform
from gear.storage import fields as f

Array = tuple[str, str, int]

ABSENT = -2
"""What `links` hold of an item that is not in the line; -1 is an end of it."""

MOST_CHANGED = 4096
"""Items noted for a GPU between two of its draws, which takes them in by one launch; after more, all leaves anew."""

_HEAPS = (MaxHeap, MinHeap)
_BY_PRIORITY = (Prioritized, MaxHeap, MinHeap)


@dataclass(frozen=True)
class Region:
    """A typed, aligned part of the segment."""

    name: str
    dtype: str
    count: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the region."""
        return self.count * np.dtype(self.dtype).itemsize


def up(value: int, multiple: int) -> int:
    """`value` rounded up to a multiple."""
    return -(-value // multiple) * multiple


def tree_starts(leaves: int) -> list[int]:
    """Start of each level of a sum tree over `leaves`, leaves first, then one past the end.

    Each level is padded to a multiple of FAN; the last level is one node of FAN values.
    """
    starts, size = [0], up(max(leaves, 1), f.FAN)
    while True:
        starts.append(starts[-1] + size)
        if size == f.FAN:
            return starts
        size = up(size // f.FAN, f.FAN)


def _tree_arrays(prefix: str, leaves: int) -> list[Array]:
    starts = tree_starts(leaves) if leaves else [0]
    levels = len(starts) - 1
    return [
        (f"{prefix}starts", "int64", levels),
        (f"{prefix}tree", "float64", starts[-1]),
        (f"{prefix}mins", "float64", starts[-1] - starts[1] if levels else 0),
    ]


def structure_arrays(table: Table, items: int, units: int, slots: int, beside: bool = False) -> list[Array]:
    """What a sampler draws from, once for each set of items; `beside`: for another set than 0."""
    sampler = table.sampler
    listed = 0
    if isinstance(sampler, Uniform):
        listed = units
    elif isinstance(sampler, (*_HEAPS, Epochs)):
        listed = items
    elif table.by_slot(beside):
        listed = slots
    noted = min(items // 8 + 8, MOST_CHANGED) if isinstance(sampler, Prioritized) and not beside else 0
    return [
        ("live", "int64", listed),
        ("position", "int32", listed),
        *_tree_arrays("", items if isinstance(sampler, Prioritized) else 0),
        ("changed", "int64", noted),
    ]


def sampler_arrays(table: Table, items: int, units: int, slots: int) -> list[Array]:
    """Arrays per item, or per unit (block or slot) of a `Uniform` sampler."""
    sampler = table.sampler
    once = table.max_times_sampled or table.distinct  # leaves are out of the tree meanwhile, and come back from these
    computed = isinstance(sampler, Prioritized) and sampler.alpha != 0 and not once
    raw = isinstance(table.remover, _BY_PRIORITY) or (isinstance(sampler, _BY_PRIORITY) and not computed)
    return [
        *structure_arrays(table, items, units, slots),
        ("raw", "float64", items if raw else 0),
        ("stamps", "int64", items if isinstance(sampler, _HEAPS) else 0),
        ("times", "int32", 2 * items if table.max_times_sampled else 0),
    ]


def consumer_arrays(table: Table, items: int, slots: int) -> list[Array]:
    """Arrays per consumer, and per consumer and item; those of groups per item and slot."""
    consumers, grouped = table.lines, table.group_size > 0
    return [
        ("lines", "int64", consumers * f.LINE_FIELDS),
        ("links", "int32", 2 * consumers * items),
        ("claims", "int64", consumers * items),
        ("acks", "int32", items if consumers else 0),
        ("units", "int64", (1 + consumers) * items if consumers else 0),
        ("mates", "int32", slots if grouped else 0),
    ]


def slot_arrays(table: Table, slots: int) -> list[Array]:
    """What is known of a trajectory beside its record, where the table needs it."""
    late = any(c.late for c in table.columns)
    ordered = table.by_slot(False) or table.by_slot(True)
    return [
        ("late", "int64", f.LATE_FIELDS * slots if late else 0),
        ("versions", "int64", slots if table.versioned else 0),
        ("slot_keys", "float64", slots if ordered else 0),
        ("slot_stamps", "int64", slots if ordered else 0),
    ]


def remover_arrays(table: Table, slots: int) -> list[Array]:
    """Arrays per slot."""
    remover = table.remover
    heap = isinstance(remover, _HEAPS)
    listed = slots if heap or isinstance(remover, Uniform) else 0
    return [
        ("remover_live", "int64", listed),
        ("remover_position", "int32", listed),
        *_tree_arrays("remover_", slots if isinstance(remover, Prioritized) else 0),
        ("remover_keys", "float64", slots if heap else 0),
        ("remover_stamps", "int64", slots if heap else 0),
    ]

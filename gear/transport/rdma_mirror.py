"""A copy of the blocks that a batch needs, small and dense, from which the usual kernels gather.

Blocks and slots get numbers of their own here; records and plan are rewritten to these, so that a kernel finds in the
copy what it would have found in the table. Pure functions over arrays: who brings the rows is not their business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.kernels import records as r
from gear.storage.regions import up
from gear.transport.rdma_chains import runs

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.plan import Plan
    from gear.storage.layout import Layout, Placement
    from gear.transport.rdma_chains import Transfer

ALIGN = 64

SHORT = 1024
"""Bytes of a run below which the server sends it instead of having it read."""


class Found(NamedTuple):
    """What the server said of the rows of items: numbers in rising order, and their records.

    blocks, slots : int32[N], int32[M]; block_records : int32[N, BLOCK_FIELDS]; slot_records : int64[M, SLOT_FIELDS].
    """

    blocks: npt.NDArray[np.int32]
    block_records: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    slot_records: npt.NDArray[np.int64]


def short_columns(layout: Layout) -> list[Placement]:
    """The per-trajectory columns whose rows come with the records."""
    return [p for p in layout.placements.values() if p.column.per == "trajectory" and p.stride < SHORT]


def long_columns(layout: Layout) -> list[Placement]:
    """Those whose rows are read."""
    return [p for p in layout.placements.values() if p.column.per == "trajectory" and p.stride >= SHORT]


class Mirror:
    """The geometry of one copy.

    Parameters
    ----------
    layout : Layout
        The table's.
    found : Found

    Attributes
    ----------
    nbytes : bytes of memory that it takes.
    """

    def __init__(self, layout: Layout, found: Found) -> None:
        self._layout, self._found = layout, found
        blocks, slots = len(found.blocks), len(found.slots)
        at = blocks * layout.block_bytes
        self._strips: dict[str, int] = {}
        for place in [*long_columns(layout), *short_columns(layout)]:
            self._strips[place.column.name] = at = up(at, ALIGN)
            at += slots * place.stride
        self._records = up(at, ALIGN)
        self._slots = up(self._records + blocks * 4 * r.BLOCK_FIELDS, ALIGN)
        self.nbytes = self._slots + slots * 8 * r.SLOT_FIELDS

    def transfers(self) -> tuple[list[Transfer], list[Transfer]]:
        """What to bring: `far` from where the arena begins, and from where the per-trajectory columns begin."""
        layout, found = self._layout, self._found
        near = np.arange(len(found.blocks), dtype=np.int64) * layout.block_bytes
        rows = runs(near, found.blocks.astype(np.int64) * layout.block_bytes, layout.block_bytes)
        values = []
        slots = found.slots.astype(np.int64)
        for place in long_columns(layout):
            own = self._strips[place.column.name] + np.arange(len(slots), dtype=np.int64) * place.stride
            values += runs(own, place.offset + slots * place.stride, place.stride)
        return rows, values

    def fill(self, memory: npt.NDArray[np.uint8], values: npt.NDArray[np.uint8]) -> None:
        """Write the records, and the rows of the short per-trajectory columns, uint8: column by column.

        Raises
        ------
        ValueError
            If there are not as many of these as slots take.
        """
        found, at = self._found, 0
        records = found.block_records.copy()
        for field in (r.NEXT, r.PREVIOUS):
            records[:, field] = renumber(records[:, field], found.blocks)
        records[:, r.SLOT] = renumber(records[:, r.SLOT], found.slots)
        slots = found.slot_records.copy()
        for field in (r.FIRST, r.LAST):
            slots[:, field] = renumber(slots[:, field], found.blocks)
        for field in (r.PREDECESSOR, r.SUCCESSOR):
            slots[:, field] = renumber(slots[:, field], found.slots)
        for begin, array in ((self._records, records), (self._slots, slots)):
            memory[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        for place in short_columns(self._layout):
            begin, nbytes = self._strips[place.column.name], len(slots) * place.stride
            memory[begin : begin + nbytes] = values[at : at + nbytes]
            at += nbytes
        if at != len(values):
            raise ValueError(f"expected {at} bytes of per-trajectory columns, got {len(values)}")

    def plan(self, plan: Plan) -> Plan:
        """A plan for the table as one for the copy."""
        layout, rows = self._layout, plan.rows.copy()
        rows[0, [r.ARENA, r.BLOCKS, r.BLOCK_COUNT]] = 0, self._records, len(self._found.blocks)
        if plan.viewed:
            rows[0, [r.SLOTS, r.SLOT_COUNT]] = self._slots, len(self._found.slots)
        base = layout.regions["trajectories"].offset
        moved = {base + layout.placements[name].offset: at for name, at in self._strips.items()}
        for column in rows[1:]:
            if column[r.KIND] == r.PER_TRAJECTORY:
                column[r.OFFSET] = moved[int(column[r.OFFSET])]
        return plan._replace(rows=rows)

    def starts(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Row numbers, int64[B], as they are here."""
        steps = self._layout.block_steps
        block = renumber(starts // steps, self._found.blocks).astype(np.int64)
        return np.where(block < 0, -1, block * steps + starts % steps)

    def neighbours(self, neighbours: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Slots, int32[K] in rising order, as they are numbered here."""
        here = renumber(neighbours, self._found.slots)
        return here[here >= 0].astype(np.int32)


def renumber(old: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Where each of `old` stands in `known`, which rises; -1 for those that are not there."""
    if not len(known):
        return np.full(old.shape, -1, old.dtype)
    place = np.searchsorted(known, old)
    there = (place < len(known)) & (known[np.minimum(place, len(known) - 1)] == old)
    return np.where(there, place, -1).astype(old.dtype)

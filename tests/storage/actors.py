"""Helpers of the storage tests: an actor that writes numbered trajectories, and a reader that checks them.

Every trajectory carries its number in column ``k`` and its step in column ``t``, so that a row that is
torn, mixed or somebody else's shows.
"""

from __future__ import annotations

import time

import numpy as np

from gear.schema import Column, Table
from gear.storage.fields import BEGIN, END, NEXT, TERMINATED
from gear.storage.layout import COMMIT_ENTRY
from gear.storage.queue import RequestQueue
from gear.storage.table import StoredTable

COLUMNS = (Column("k", (3,), "int64"), Column("t", (), "int32"))


def make(**fields) -> StoredTable:
    fields.setdefault("mean_length", 10)
    return StoredTable(Table("table", fields.pop("columns", COLUMNS), **fields))


def column(stored: StoredTable, name: str) -> np.ndarray:
    """The column as [blocks, block_steps, *shape], a view of the arena."""
    place, layout = stored.layout.placements[name], stored.layout
    dtype = np.dtype(place.column.dtype)
    strides = [layout.block_bytes, place.stride]
    for axis in range(len(place.column.shape)):
        strides.append(dtype.itemsize * int(np.prod(place.column.shape[axis + 1 :], dtype=int)))
    return np.ndarray(
        (layout.blocks, layout.block_steps, *place.column.shape),
        dtype,
        stored.segment,
        layout.regions["arena"].offset + place.offset,
        tuple(strides),
    )


def read(stored: StoredTable, start: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(k, t) of `length` rows from row `start` on, following the chain of blocks."""
    blocks = stored.layout.view(stored.segment, "blocks")
    k, t = column(stored, "k"), column(stored, "t")
    block, row = divmod(start, stored.layout.block_steps)
    ks, ts = [], []
    for _ in range(length):
        ks.append(k[block, row].copy())
        ts.append(t[block, row])
        row += 1
        if row == stored.layout.block_steps:
            block, row = int(blocks[block, NEXT]), 0
    return np.array(ks), np.array(ts)


class Actor:
    """Writes whole or growing trajectories through a queue, as a client would."""

    def __init__(self, stored: StoredTable, key: bytes = b"a" * 16, queue: RequestQueue | None = None) -> None:
        self.stored, self.queue = stored, queue or RequestQueue(stored)
        self.client = stored.attach(key)
        self.sequence = stored.committed(self.client)
        self.results: list = []

    def grant(self, blocks: int, slots: int = 1):
        grant = self.stored.lease(self.client, blocks, slots)
        if len(grant.blocks) == blocks and len(grant.slots) == slots:
            return grant
        self.stored.give_back(self.client, grant.blocks, grant.slots)
        grants: list = []
        self.queue.allocate(self.client, blocks, slots, time.monotonic() + 60, grants.append)
        if not grants:
            self.out_of_blocks()
        return grants[0]

    def out_of_blocks(self) -> None:
        """Called when an allocation waits for readers; must make them let go."""
        raise AssertionError("out of blocks")

    def write(self, blocks, first: int, length: int, number: int, block_zero: int) -> None:
        k, t = column(self.stored, "k"), column(self.stored, "t")
        for step in range(first, first + length):
            block, row = divmod(step, self.stored.layout.block_steps)
            k[blocks[block - block_zero], row] = number
            t[blocks[block - block_zero], row] = step

    def entry(self, slot: int, blocks, length: int, flags: int, priorities=(), sequence: int | None = None):
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        entry = np.zeros(1, COMMIT_ENTRY)
        entry[0] = (sequence, slot, len(blocks), length, flags, len(priorities), 0, 0)
        return entry, np.asarray(blocks, np.int32), np.asarray(priorities, np.float64)

    def send(self, *parts):
        """Commit entries; the result is appended to `results`."""
        entries, blocks, priorities = (np.concatenate([p[i] for p in parts]) for i in range(3))
        self.queue.commit(self.client, entries, blocks, priorities, self.results.append)

    def insert(self, number: int, length: int, priorities=(), flags: int = TERMINATED) -> int:
        """Insert a whole trajectory; returns its slot."""
        grant = self.grant(self.stored.layout.blocks_for(length))
        self.write(grant.blocks, 0, length, number, 0)
        slot = int(grant.slots[0])
        self.send(self.entry(slot, grant.blocks, length, BEGIN | END | flags, priorities))
        return slot


class Growing:
    """A trajectory that an actor appends to, chunk by chunk."""

    def __init__(self, actor: Actor, number: int) -> None:
        self.actor, self.number = actor, number
        self.slot, self.length, self.blocks = -1, 0, []

    def append(self, rows: int, end: bool = False) -> None:
        layout = self.actor.stored.layout
        begin = self.slot < 0
        need = layout.blocks_for(self.length + rows) - layout.blocks_for(self.length)
        grant = self.actor.grant(need, 1 if begin else 0)
        if begin:
            self.slot = int(grant.slots[0])
        self.blocks += grant.blocks.tolist()
        self.actor.write(self.blocks, self.length, rows, self.number, 0)
        flags = (BEGIN if begin else 0) | (END if end else 0)
        self.actor.send(self.actor.entry(self.slot, grant.blocks, rows, flags))
        self.length += rows

    def abandon(self) -> None:
        """Let go of a trajectory that was evicted while it was open."""
        self.actor.send(self.actor.entry(self.slot, [], 0, END))

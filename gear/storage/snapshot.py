"""A table at one instant, read block by block while clients go on: nobody waits for whoever reads it.

At the instant the directory is copied; rows are not. A block is never changed before it is leased again, which raises
its generation: whoever reads it and finds the generation unchanged has read what was there. So that little is lost,
the owner copies a block aside before it is leased again, as long as that takes less memory than `room`, and the reader
takes first what is about to be leased. What is lost all the same leaves the snapshot with its whole trajectory.

`take`, `before_lease` and `before_fill` are the owner's and belong to its thread; everything else is the reader's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gear.storage import fields as f
from gear.storage.kept import kept_regions
from gear.storage.undelivered import take_back

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout
    from gear.storage.table import StoredTable

SHARE = 16
"""The table's bytes over this are what a snapshot may take beside it: 64 MiB per GiB."""

LEAST_ROOM = 1 << 20


def rows_in(layout: Layout, slots: npt.NDArray[np.int64], blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """How many rows of a stored trajectory each block holds, int32[blocks]; -1 for those of none."""
    state, owner = slots[:, f.STATE], blocks[:, f.SLOT]
    stored = (state == f.OPEN) | (state == f.CLOSED)
    inside = (owner >= 0) & (owner < len(slots)) & (blocks[:, f.OWNER] == -1)
    slot = np.where(inside, owner, 0)
    inside &= stored[slot]
    length = slots[:, f.LENGTH] + ((slots[:, f.FLAGS] & f.HAS_FINAL) != 0)
    rows = np.clip(length[slot] - blocks[:, f.ORDINAL].astype(np.int64) * layout.block_steps, 0, layout.block_steps)
    return np.where(inside, rows, -1).astype(np.int32)


class Snapshot:
    """One table at the instant of `take`.

    Parameters
    ----------
    stored : StoredTable
    room : int, optional
        Bytes that blocks may take which are copied aside. Default: what is left of a sixteenth of the table's memory
        beside the copy of its directory.

    Attributes
    ----------
    arrays : the directory, by the names of its regions; none once it was forgotten.
    rows : rows that each block holds, see `rows_in`.
    pending, values_pending : bool[blocks] and bool[slots]: what is still to be read.
    lost : bool[slots], trajectories of which something was lost.
    """

    def __init__(self, stored: StoredTable, room: int | None = None) -> None:
        self.stored, self.layout = stored, stored.layout
        layout = self.layout
        self.arrays: dict[str, np.ndarray] = {}
        for name, count in kept_regions(layout).items():
            copy = np.empty(count, layout.regions[name].dtype)
            copy.fill(0)  # touched now: at the instant a copy is all that is left to do
            self.arrays[name] = copy
        taken = sum(copy.nbytes for copy in self.arrays.values())
        whole = layout.nbytes + layout.device_bytes
        self.room = max(LEAST_ROOM, whole // SHARE - taken) if room is None else room
        self.lost = np.zeros(layout.slots, np.bool_)
        self.pending = np.zeros(layout.blocks, np.bool_)
        self.values_pending = np.zeros(layout.slots, np.bool_)
        self._gone = np.zeros(layout.blocks, np.bool_)
        self._values_gone = np.zeros(layout.slots, np.bool_)
        self._aside: dict[int, npt.NDArray[np.uint8]] = {}
        self._values_aside: dict[int, npt.NDArray[np.uint8]] = {}
        self._lock = threading.Lock()
        self.most_aside, self._free = 0, self.room
        segment, region = stored.segment, layout.regions["arena"]
        self._arena = segment[region.offset : region.offset + region.nbytes].reshape(layout.blocks, layout.block_bytes)
        self._there = None if stored.arena is None else stored.arena.blocks
        self._free_blocks, self._free_slots = layout.view(segment, "free_blocks"), layout.view(segment, "free_slots")
        self._blocks_now, self._slots_now = layout.view(segment, "blocks"), layout.view(segment, "slots")
        self._strips = layout.strips(segment)
        self.value_bytes = sum(p.width for p in layout.once)

    # The owner's

    def take(self) -> None:
        """The instant."""
        stored, layout = self.stored, self.layout
        for name, copy in self.arrays.items():
            region = layout.regions[name]
            copy[:] = stored.segment[region.offset : region.offset + copy.nbytes].view(region.dtype)
        take_back(stored, self.arrays)
        self.rows = rows_in(layout, self.records("slots"), self.records("blocks"))
        self.pending = self.rows > 0
        state = self.records("slots")[:, f.STATE]
        self.stored_slots = (state == f.OPEN) | (state == f.CLOSED)
        self.values_pending = self.stored_slots & bool(self._strips)
        stored.snapshot = self

    def before_lease(self, blocks: int, slots: int) -> None:
        """That many blocks and slots are leased next."""
        if blocks:
            self._look(blocks, f.FREE_HEAD, self._free_blocks, self.pending, self._save_blocks)
        if slots and self.value_bytes:
            self._look(slots, f.SLOT_HEAD, self._free_slots, self.values_pending, self._save_values)

    def _look(
        self,
        n: int,
        head: int,
        ring: npt.NDArray[np.int32],
        pending: npt.NDArray[np.bool_],
        save: Callable[[npt.NDArray], None],
    ) -> None:
        """Save what is still to be read of the next `n` in a ring of free ones; as a rule that is nothing, at once."""
        begin = int(self.stored.counters[head]) % len(ring)
        numbers = ring[begin : begin + n]
        if len(numbers) < n:
            numbers = np.concatenate((numbers, ring[: n - len(numbers)]))
        there = pending[numbers]
        if there.any():
            save(numbers[there])

    def before_fill(self, slots: npt.NDArray[np.int64], bits: int) -> None:
        """Late columns `bits` of these slots are about to be written; what was there at the instant is copied aside."""
        arrays = self.arrays  # the reader puts others there, when it has read all
        if not arrays:
            return
        slots, now = np.unique(slots[slots >= 0]), self._slots_now
        late, then, blocks = (self._records(arrays, name) for name in ("late", "slots", "blocks"))
        same = self.stored_slots[slots] & (now[slots, f.ORDER] == then[slots, f.ORDER])
        slots = slots[same & (late[slots, f.LATE_BITS] & bits != 0)]
        for slot in slots.tolist():
            chain, block = [], int(then[slot, f.FIRST])
            while block >= 0:
                chain.append(block)
                block = int(blocks[block, f.NEXT])
            numbers = np.array(chain, np.int32)
            self._save_blocks(numbers[self.pending[numbers]])
            if self.values_pending[slot]:
                self._save_values(np.array([slot]))

    def _save_blocks(self, numbers: npt.NDArray) -> None:
        for block in numbers.tolist():
            if block in self._aside:
                continue
            if self._reserve(self.layout.full_block_bytes):
                self._aside[block] = np.empty(self.layout.full_block_bytes, np.uint8)
                self._copy(np.array([block]), self._aside[block][None])
            else:
                self._gone[block] = True

    def _save_values(self, numbers: npt.NDArray) -> None:
        for slot in numbers.tolist():
            if slot in self._values_aside:
                continue
            if self._reserve(self.value_bytes):
                self._values_aside[slot] = np.concatenate([strip[slot] for strip in self._strips])
            else:
                self._values_gone[slot] = True

    def _reserve(self, nbytes: int) -> bool:
        with self._lock:
            if self._free < nbytes:
                return False
            self._free -= nbytes
            self.most_aside = max(self.most_aside, self.room - self._free)
            return True

    # The reader's

    def records(self, name: str) -> np.ndarray:
        """The copy of a region, with a row for each record."""
        return self._records(self.arrays, name)

    def _records(self, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
        return arrays[name].reshape(-1, self.layout.fields_of(name))

    def forget(self) -> None:
        """The directory is written and needed no more; the owner may be at work with it in this moment."""
        self.arrays = {}

    def urgent(self, most: int) -> tuple[npt.NDArray, bool]:
        """Up to `most` blocks that are to be read and are free by now, in the order in which they will be leased.

        And whether some of them are near: half of all free blocks, or more, are leased after them.
        """
        counters, ring = self.stored.counters, self.layout.view(self.stored.segment, "free_blocks")
        head, count = int(counters[f.FREE_HEAD]), min(int(counters[f.FREE_BLOCKS]), len(ring))
        free = ring[(head + np.arange(count)) % len(ring)]
        free = free[(free >= 0) & (free < len(self.pending))]
        pending = np.flatnonzero(self.pending[free])
        return free[pending[:most]], len(pending) > 0 and bool(2 * pending[0] <= len(free))

    def read(self, blocks: npt.NDArray, out: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Read blocks as they were into `out`, uint8[N, full_block_bytes]; bool[N], which were there.

        What was not is lost, and its trajectory with it.
        """
        self._copy(blocks, out)
        then = self.records("blocks")
        there = self._blocks_now[blocks, f.GENERATION] == then[blocks, f.GENERATION]
        there &= ~self._gone[blocks]
        self.pending[blocks] = False
        if self._aside:
            self._give_aside(blocks, self._aside, out, there)
        self.lost[then[blocks[~there], f.SLOT]] = True
        return there

    def _copy(self, blocks: npt.NDArray, out: npt.NDArray[np.uint8]) -> None:
        """Copy blocks as they are by now."""
        size = self.layout.block_bytes
        if self._there is None:
            np.take(self._arena, blocks, axis=0, out=out, mode="clip")
            return
        out[:, :size] = self._arena[blocks]
        out[:, size:] = self._there.read(blocks)

    def read_values(self, slots: npt.NDArray, out: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """The same for what trajectories have once; out: uint8[len(slots), value_bytes]."""
        at = 0
        for strip in self._strips:
            out[:, at : at + strip.shape[1]] = strip[slots]
            at += strip.shape[1]
        there = self._slots_now[slots, f.ORDER] == self.records("slots")[slots, f.ORDER]
        there &= (self._slots_now[slots, f.STATE] != f.LEASED) & ~self._values_gone[slots]
        self.values_pending[slots] = False
        if self._values_aside:
            self._give_aside(slots, self._values_aside, out, there)
        self.lost[slots[~there]] = True
        return there

    def _give_aside(
        self,
        numbers: npt.NDArray,
        aside: dict[int, npt.NDArray[np.uint8]],
        out: npt.NDArray[np.uint8],
        there: npt.NDArray[np.bool_],
    ) -> None:
        for k, number in enumerate(numbers.tolist()):
            copy = aside.pop(number, None)
            if copy is not None:
                out[k], there[k] = copy, True
                with self._lock:
                    self._free += len(copy)

    def leave_out(self) -> int:
        """Take the trajectories that were lost out of the directory; how many there are. A group goes as a whole."""
        slots = self.records("slots")
        if self.layout.table.group_size and self.lost.any():
            mates = self.arrays["mates"]
            for slot in np.flatnonzero(self.lost).tolist():
                mate = int(mates[slot])
                while mate != slot and not self.lost[mate]:
                    self.lost[mate] = True
                    mate = int(mates[mate])
        self.lost &= self.stored_slots
        slots[self.lost, f.STATE], slots[self.lost, f.WRITER] = f.FREE, -1
        return int(self.lost.sum())

    def removal_order(self) -> npt.NDArray[np.int64]:
        """The slots in the order in which they are likely to be evicted, int64[N]; open ones last."""
        slots, params = self.records("slots"), self.layout.params
        there = np.flatnonzero(self.stored_slots)
        key = slots[there, f.ORDER].astype(np.float64)
        remover = int(params[f.P_REMOVER])
        if remover == f.LIFO:
            key = -key
        elif remover in (f.MAX_HEAP, f.MIN_HEAP):
            keys = self.layout.view(self.stored.segment, "remover_keys")[there]  # as they are by now: it is a guess
            key = -keys if remover == f.MAX_HEAP else keys.copy()
        return there[np.lexsort((key, slots[there, f.STATE] == f.OPEN))]

    def let_go(self) -> None:
        """The owner need not look after it any more."""
        if self.stored.snapshot is self:
            self.stored.snapshot = None

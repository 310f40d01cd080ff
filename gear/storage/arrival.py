"""Rows that came with their commit entries: given blocks of the arena when their turn comes.

An arrival is what one message of a client without shared memory brought. It leases for as many entries as it can,
copies their rows and names their blocks; from then on they are commit entries like any others. Until then it holds
nothing of the table. What a message says is checked before anything is leased.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.errors import DataError, ProtocolError
from gear.storage import fields as f

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gear.devices.arena import Arena
    from gear.storage.layout import Layout
    from gear.storage.table import StoredTable

TURN = 4 << 20
"""Bytes copied at a time: the others of a shard need not wait for a long trajectory."""

_WHOLE = f.BEGIN | f.END

Growing = dict[int, tuple[int, int, int]]
"""A client's open trajectories by its own number for them: slot, last block and length."""


class Places:
    """Where rows of a table lie, as bytes: uint8[blocks, block_bytes], and per column uint8[slots, width].

    block_bytes : of a block as it travels, with the columns behind the others that lie in the `arena` of a device.
    """

    def __init__(self, layout: Layout, segment: npt.NDArray[np.uint8], arena: Arena | None = None) -> None:
        self.block_bytes, self._there = layout.full_block_bytes, arena
        region, base = layout.regions["arena"], layout.regions["trajectories"].offset
        self.blocks = segment[region.offset :][: region.nbytes].reshape(layout.blocks, layout.block_bytes)
        self.values = [
            segment[base + p.offset :][: layout.slots * p.stride].reshape(layout.slots, p.stride)[:, : p.width]
            for p in layout.per_trajectory
        ]
        if layout.table.versioned:  # it travels as if it were one of them
            self.values.append(layout.view(segment, "versions")[:, None].view(np.uint8))
        self.width = sum(column.shape[1] for column in self.values)

    def put(self, to: npt.NDArray[np.int32], source: npt.NDArray[np.uint8]) -> None:
        """Write blocks as they came, uint8[N, block_bytes], into those of these numbers."""
        if self._there is not None:
            size = self.blocks.shape[1]
            self._there.blocks[to] = source[:, size:]
            source = source[:, :size]
        if (np.diff(to) == 1).all():
            self.blocks[to[0] : to[0] + len(to)] = source
        else:
            self.blocks[to] = source


class Arrival:
    """Entries whose rows wait for their place.

    Parameters
    ----------
    stored, places : the table and its memory.
    client : int
    growing : the client's open trajectories, shared by its arrivals.
    entries : COMMIT_ENTRY[N], slots numbered by the client, `before` set.
    priorities : float64[P]
    values : uint8, the per-trajectory rows of each entry that begins a trajectory.
    frames : the bytes of blocks: of each entry all that hold its rows, also one that an earlier entry brought.

    Raises
    ------
    DataError, ProtocolError
        If sizes do not fit, naming the entry.
    """

    def __init__(
        self,
        stored: StoredTable,
        places: Places,
        client: int,
        growing: Growing,
        entries: npt.NDArray[np.void],
        priorities: npt.NDArray[np.float64],
        values: npt.NDArray[np.uint8],
        frames: Sequence[npt.NDArray[np.uint8]],
    ) -> None:
        self._stored, self._places, self._client, self._growing = stored, places, client, growing
        steps, block_bytes = stored.layout.block_steps, places.block_bytes
        begins, final = entries["flags"] & f.BEGIN != 0, entries["flags"] & f.HAS_FINAL != 0
        before, end = self._lengths(entries, begins)
        last = -(-(end + final) // steps)
        self._images = np.where(end + final > before, last - before // steps, 0)
        self._added = last - -(-before // steps)
        counts = entries["priorities"].astype(np.int64)
        came, blocks, begun = sum(len(frame) for frame in frames), int(self._images.sum()), int(begins.sum())
        if (entries["blocks"] != self._added).any() or (counts < 0).any():
            raise ProtocolError(f"{self._name}: the number of blocks or priorities does not fit an entry")
        if counts.sum() != len(priorities):
            raise ProtocolError(f"{self._name}: expected {counts.sum()} priorities, got {len(priorities)}")
        if came != blocks * block_bytes or any(len(frame) % block_bytes for frame in frames):
            raise ProtocolError(f"{self._name}: expected {blocks} blocks of {block_bytes} bytes, got {came} bytes")
        if len(values) != begun * places.width:
            raise ProtocolError(
                f"{self._name}: expected {places.width} bytes of per-trajectory columns for each of {begun} "
                f"trajectories, got {len(values)} bytes"
            )
        self._entries, self._priorities, self._begins = entries, priorities, begins
        self._values = values.reshape(begun, places.width)
        self._blocks = [frame.reshape(-1, block_bytes) for frame in frames]
        self._names: dict[int, int] = {}
        self._landing: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._targets = np.empty(0, np.int32)
        self._grew: Growing = {}

    @property
    def _name(self) -> str:
        return f"table {self._stored.table.name!r}"

    def _lengths(
        self, entries: npt.NDArray[np.void], begins: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows of each entry's trajectory before it and after it, int64[N] each, if they can be."""
        longest = self._stored.layout.max_length
        before, length = entries["before"].astype(np.int64), entries["length"].astype(np.int64)
        before[begins & (entries["flags"] & f.CONTINUES != 0)] = (
            0  # there it says where in its trajectory a piece begins
        )
        if (entries["before"] < 0).any() or (length < 0).any() or before[begins].any():
            raise ProtocolError(f"{self._name}: an entry's length can not be; nothing of the message was applied")
        late = np.flatnonzero(before + length > longest)
        if len(late):
            raise DataError(
                f"{self._name}, commit entry {late[0]} of {len(entries)}: the trajectory is longer than the "
                f"{longest} steps it may have"
            )
        return before, before + length

    @property
    def nbytes(self) -> int:
        """Bytes of rows that have no place yet."""
        return sum(block.size for block in self._blocks)

    @property
    def count(self) -> int:
        """Entries that have no place yet."""
        return len(self._entries) + (len(self._landing[0]) if self._landing is not None else 0)

    @property
    def copying(self) -> bool:
        """Whether there is a place and not all rows are there yet: `land` goes on."""
        return self._landing is not None

    @property
    def nothing(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Entries, blocks and priorities: none of them."""
        return self._entries[:0], np.empty(0, np.int32), self._priorities[:0]

    def name(self, slot: int) -> int:
        """The client's number for a slot that one of the entries named."""
        return self._names.get(slot, slot)

    def land(self, admitted: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Give as many entries a place as blocks can be leased for.

        `admitted` tells whether the limiter lets the first one pass: then the table evicts for it. Returns entries,
        blocks and priorities as `StoredTable.commit` takes them, None if there is no place or more to copy.
        """
        if self._landing is not None:
            return self._go_on(TURN)
        self._skip()
        n = len(self._entries)
        if not n:
            return None
        added, begins = np.cumsum(self._added), np.cumsum(self._begins)
        grant = self._stored.lease(self._client, int(added[-1]), int(begins[-1]))
        n = int(np.count_nonzero((added <= len(grant.blocks)) & (begins <= len(grant.slots))))
        taken = (int(added[n - 1]), int(begins[n - 1])) if n else (0, 0)
        self._stored.end_leases(self._client, grant.blocks[taken[0] :], grant.slots[taken[1] :])
        if not n:
            more = self._stored.allocate(self._client, int(added[0]), int(begins[0])) if admitted else None
            if more is None:
                return None
            grant, n, taken = more, 1, (int(added[0]), int(begins[0]))
        return self._place(n, grant.blocks[: taken[0]], grant.slots[: taken[1]])

    def _skip(self) -> None:
        """Leave out entries that are committed already."""
        done = int(np.count_nonzero(self._entries["sequence"] <= self._stored.committed(self._client)))
        if done:
            self._drop(np.arange(len(self._entries)) < done)

    def _place(
        self, n: int, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        entries = self._entries[:n].copy()
        handles = entries["slot"].copy()
        self._grew = dict(self._growing)
        if (entries["flags"] & _WHOLE == _WHOLE).all():
            entries["slot"], self._targets = slots, blocks
        else:
            self._targets = self._targets_of(entries, blocks, slots)
            self._stored.call(slots, handles[entries["flags"] & f.BEGIN != 0])
        for column, width in zip(self._places.values, self._widths(), strict=True):
            column[slots] = self._values[: len(slots), width]
        self._names.update(zip(entries["slot"].tolist(), handles.tolist(), strict=True))
        entries["before"][entries["flags"] & f.BEGIN == 0] = 0
        priorities = self._priorities[: int(entries["priorities"].sum(dtype=np.int64))]
        self._landing = entries, blocks.copy(), priorities.copy()
        self._advance(n, len(slots), len(priorities))
        return self._go_on(TURN)

    def finish(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Copy all that has a place at once."""
        return self._go_on(len(self._targets) * self._places.block_bytes)

    def _go_on(self, nbytes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Copy up to that many bytes (a block at least); the entries once all are there."""
        n = max(1, nbytes // self._places.block_bytes)
        self._copy(self._targets[:n])
        self._targets = self._targets[n:]
        if len(self._targets):
            return None
        landed, self._landing = self._landing, None
        return landed

    def _targets_of(self, entries: np.ndarray, blocks: np.ndarray, slots: np.ndarray) -> npt.NDArray[np.int32]:
        """Name the slots of the entries; the blocks that all their rows go to."""
        targets: list[int] = []
        at = begun = 0
        for k, entry in enumerate(entries):
            handle, flags, added = int(entry["slot"]), int(entry["flags"]), int(self._added[k])
            mine = blocks[at : at + added].tolist()
            at += added
            before, length = 0 if flags & f.BEGIN else int(entry["before"]), int(entry["length"])
            if flags & f.BEGIN:
                slot, tail = int(slots[begun]), -1
                begun += 1
            else:
                slot, tail, there = self._growing.get(handle, (-1, -1, -1))
                if before != there:  # not there, or something in between was refused: the check refuses slot -1
                    slot = tail = -1
            if self._images[k] > added:
                targets.append(tail)
            targets += mine
            entries["slot"][k] = slot
            if flags & f.END:
                self._growing.pop(handle, None)
            else:
                self._growing[handle] = slot, mine[-1] if mine else tail, before + length
        return np.array(targets, np.int32)

    def refused(self) -> None:
        """The entries that landed last were refused: what grows is what grew before them."""
        self._growing.clear()
        self._growing.update(self._grew)

    def _widths(self) -> list[slice]:
        ends = np.cumsum([0, *(column.shape[1] for column in self._places.values)]).tolist()
        return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]

    def _copy(self, targets: npt.NDArray[np.int32]) -> None:
        """Copy the next blocks that came to `targets`; those for -1 are left out."""
        at = 0
        while at < len(targets):
            source = self._blocks[0]
            n = min(len(source), len(targets) - at)
            to = targets[at : at + n]
            known = to >= 0
            if known.all():
                self._places.put(to, source[:n])
            elif known.any():
                self._places.put(to[known], source[:n][known])
            self._blocks[0] = source[n:]
            if not len(self._blocks[0]):
                self._blocks.pop(0)
            at += n

    def _advance(self, entries: int, begun: int, priorities: int) -> None:
        self._entries, self._begins = self._entries[entries:], self._begins[entries:]
        self._images, self._added = self._images[entries:], self._added[entries:]
        self._values, self._priorities = self._values[begun:], self._priorities[priorities:]

    def drop(self, first: int, last: int) -> list[int]:
        """Leave out the entries numbered first..last; which there were."""
        leaving = (self._entries["sequence"] >= first) & (self._entries["sequence"] <= last)
        gone: list[int] = self._entries["sequence"][leaving].tolist()
        if gone:
            self._drop(leaving)
        return gone

    def partial(self, first: int, last: int) -> bool:
        """Whether one of the entries first..last is only a part of its trajectory."""
        leaving = (self._entries["sequence"] >= first) & (self._entries["sequence"] <= last)
        return bool((self._entries["flags"][leaving] & _WHOLE != _WHOLE).any())

    def _drop(self, leaving: npt.NDArray[np.bool_]) -> None:
        staying = np.repeat(~leaving, self._images)
        at = 0
        kept = []
        for source in self._blocks:
            mask = staying[at : at + len(source)]
            at += len(source)
            if mask.all():
                kept.append(source)
            elif mask.any():
                kept.append(source[mask])
        self._values = self._values[~leaving[self._begins]]
        self._priorities = self._priorities[np.repeat(~leaving, self._entries["priorities"])]
        self._blocks = kept
        self._images, self._added = self._images[~leaving], self._added[~leaving]
        self._entries, self._begins = self._entries[~leaving], self._begins[~leaving]

"""The outbox of the `tcp` path: entries leave with their rows, straight from the stage that they were written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.storage.fields import BEGIN, END, HAS_FINAL
from gear.storage.layout import COMMIT_ENTRY
from gear.transport import messages as m
from gear.transport.base import NO_SEAM, Seam
from gear.transport.outbox import Outbox
from gear.transport.pieces import split
from gear.transport.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gear.transport.base import OpenTable
    from gear.transport.channel import Buffer
    from gear.transport.conversation import Call, Conversation

MESSAGE = 1 << 20
"""Bytes of rows after which gathered commits are sent."""

TOGETHER = 1 << 16
"""Bytes of neighbouring blocks from which they are sent from where they lie."""


class StagedOutbox(Outbox):
    """An outbox whose entries take their rows along.

    Of a trajectory that grows (`publish="rows"`) the block that its next rows go on in is sent whole each time, and
    stays in the stage until then.
    """

    def __init__(self, talk: Conversation, table: OpenTable) -> None:
        super().__init__(talk, table)
        self.stage = Stage(table.layout, table.segment)
        self._steps, self._limit = table.layout.block_steps, max(1, MESSAGE // table.layout.block_bytes)
        self._open: dict[int, tuple[int, int]] = {}  # by slot: rows submitted, the block of the last one
        self._tails: dict[int, int] = {}  # by sequence: the block it goes on in, which an earlier entry brought
        self._left: dict[int, int] = {}  # by sequence: such a block that nothing goes on in

    def room_for(self, blocks: int, slots: int) -> bool:
        """Whether the stage has that many for a commit."""
        return self.stage.has(blocks, slots, len(self._open))

    def add(
        self,
        slot: int,
        blocks: Sequence[int],
        length: int,
        flags: int,
        priorities: float | npt.NDArray[np.float64] | None,
        seam: Seam = NO_SEAM,
    ) -> int:
        """Queue an entry whose rows are in the stage."""
        if flags & (BEGIN | END) == BEGIN | END:
            self.before = 0
        else:
            self._grow(slot, blocks, length, flags)
        sequence = super().add(slot, blocks, length, flags, priorities, seam)
        if len(self._blocks) >= self._limit:
            self.post()
        return sequence

    def add_many(
        self, entries: npt.NDArray[np.void], blocks: npt.NDArray[np.int32], priorities: npt.NDArray[np.float64]
    ) -> int:
        """Send entries whose rows are in the stage, as many messages as their bytes want."""
        self.before = 0
        first, at = self.sequence + 1, 0
        named, given = (np.cumsum([0, *entries[name].tolist()]) for name in ("blocks", "priorities"))
        while at < len(entries):
            stop = max(at + 1, int(np.searchsorted(named, named[at] + self._limit, "right")) - 1)
            part = slice(named[at], named[stop]), slice(given[at], given[stop])
            super().add_many(entries[at:stop], blocks[part[0]], priorities[part[1]])
            at = stop
        return first

    def _grow(self, slot: int, blocks: Sequence[int], length: int, flags: int) -> None:
        before, tail = (0, -1) if flags & BEGIN else self._open.get(slot, (0, -1))
        self.before = before
        if before % self._steps:
            tails = self._tails if length or flags & HAS_FINAL else self._left
            tails[self.sequence + 1] = tail
        if flags & END:
            self._open.pop(slot, None)
        else:
            self._open[slot] = before + length, blocks[-1] if len(blocks) else tail

    def _send(self, entries: bytes, blocks: bytes, priorities: bytes, want: int, slots: int) -> None:
        said, images = np.frombuffer(entries, COMMIT_ENTRY), np.frombuffer(blocks, np.int32)
        done, ended = images, said["slot"]
        if self._tails or self._left or self._open:
            images, done, ended = self._images(said, images)
        values = self.stage.values(said["slot"][said["flags"] & BEGIN != 0])
        self.talk.post(
            m.Insert(self.index),
            (entries, priorities, values, *self._rows(images)),
            lambda call: self._arrived(call, entries, blocks, done, ended),
        )

    def _images(self, said: np.ndarray, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Blocks to send, blocks and slots that are done with once they have arrived."""
        images: list[int] = []
        done: list[int] = []
        at = 0
        for entry in said:
            count, sequence, flags = int(entry["blocks"]), int(entry["sequence"]), int(entry["flags"])
            tail = self._tails.pop(sequence, None)
            sent = ([] if tail is None else [tail]) + blocks[at : at + count].tolist()
            images += sent
            before = 0 if flags & BEGIN else int(entry["before"])
            goes_on = not flags & END and (before + int(entry["length"])) % self._steps
            done += sent[:-1] if goes_on else sent
            if sequence in self._left:
                done.append(self._left.pop(sequence))
            at += count
        return np.array(images, np.int32), np.array(done, np.int32), said["slot"][said["flags"] & END != 0]

    def _rows(self, images: npt.NDArray[np.int32]) -> list[Buffer]:
        """The bytes of blocks: long runs from where they lie, others copied together."""
        if not len(images):
            return []
        memory_of = self.stage.blocks
        starts = np.flatnonzero(np.diff(images, prepend=images[0] - 2) != 1)
        ends = np.append(starts[1:], len(images))
        if images.size * memory_of.shape[1] >= TOGETHER * len(starts):
            runs = [memory_of[images[a] : images[a] + b - a] for a, b in zip(starts, ends, strict=True)]
        else:
            runs = [memory_of[images]]
        return [part for run in runs for part in split(run.reshape(-1).data, memory_of.shape[1])]

    def _arrived(self, call: Call, entries: bytes, blocks: bytes, done: np.ndarray, ended: np.ndarray) -> None:
        self.stage.put(done.tolist(), ended.tolist())
        self._answered(call, entries, blocks, 0)

    def give_back(self, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> None:
        """Return numbers to the stage."""
        self.stage.put(blocks.tolist(), slots.tolist())

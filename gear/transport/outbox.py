"""Commit entries of one table on their way to its shard, and the leases that come back with the answers.

With nothing in flight entries leave at once, else they gather until the acknowledgement or until `BATCH` of
them are there. Adding one is a few plain operations, as actors do it for every trajectory. The owner of the
conversation's lock serialises the calls.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gear.storage.fields import BEGIN
from gear.storage.layout import COMMIT_ENTRY
from gear.transport import messages as m
from gear.transport.base import NO_SEAM, Seam
from gear.transport.entries import number
from gear.transport.wire import array as array_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gear.errors import GearError
    from gear.transport.base import OpenTable
    from gear.transport.conversation import Call, Conversation

BATCH = 64
"""Entries per message at most."""

WINDOW = 1024
"""Entries without an answer at most."""

MOST_ASKED = 4096
"""Blocks that acknowledgements bring along at most."""

_FULL = 1 << 16
_REMEMBERED = 255
_PACK = struct.Struct("<qiiiiiiq").pack_into
_SEQUENCE = struct.Struct("<q").unpack_from
_ENTRY = COMMIT_ENTRY.itemsize


@dataclass(slots=True)
class _Refusal:
    """Entries first..last that the shard refused; `told` once a wait has raised it."""

    first: int
    last: int
    answer: m.Failed
    told: bool = False


class Outbox:
    """Commits of one table.

    Attributes
    ----------
    sequence : number of the last entry.
    settled : all entries up to this one are committed, refused or withdrawn.
    committed : highest sequence known to be committed.
    count : entries gathered and not sent.
    flying : messages without an answer.
    """

    def __init__(self, talk: Conversation, table: OpenTable) -> None:
        self.talk, self.table, self.index = talk, table, table.layout.index
        self.sequence = self.settled = self.committed = self.count = self.flying = 0
        self.asked = 0  # blocks of the last call for leases: what is worth having ready
        self.before = 0  # of the next entry, where rows travel
        self._entries = bytearray(BATCH * _ENTRY)
        self._blocks = array("i")
        self._priorities = array("d")
        self._begun = 0
        self._refused: list[_Refusal] = []
        self._spare_blocks = self._spare_slots = np.empty(0, np.int32)
        self._coming = 0

    def add(
        self,
        slot: int,
        blocks: Sequence[int],
        length: int,
        flags: int,
        priorities: float | npt.NDArray[np.float64] | None,
        seam: Seam = NO_SEAM,
    ) -> int:
        """Queue an entry; the caller has made sure that the window is not full."""
        sequence, n = self.sequence + 1, 0
        if priorities is not None:
            if type(priorities) is float:
                self._priorities.append(priorities)
                n = 1
            else:
                given = np.atleast_1d(np.asarray(priorities, np.float64))
                self._priorities.frombytes(given.tobytes())
                n = len(given)
        count = len(blocks)
        before = self.before or seam.steps
        _PACK(self._entries, self.count * _ENTRY, sequence, slot, count, length, flags, n, before, seam.follows)
        self._blocks.extend(blocks)
        self._begun += flags & BEGIN == BEGIN
        self.sequence = sequence
        self.count += 1
        if not self.flying or self.count == BATCH or count > _FULL or n > _FULL:
            self.post()
        return sequence

    def add_many(
        self, entries: npt.NDArray[np.void], blocks: npt.NDArray[np.int32], priorities: npt.NDArray[np.float64]
    ) -> int:
        """Send entries as one message, behind what is gathered; their first number. See `Session.submit_many`."""
        self.post()
        first = self.sequence + 1
        number(entries, first)
        self.sequence += len(entries)
        self.talk.check()
        self.flying += 1
        # More blocks may come with the answer than are used up here, as batches differ in the blocks that they take.
        slots = max(0, len(entries) - len(self._spare_slots))
        want = self._want(2 * len(blocks))
        self._send(entries.tobytes(), blocks.tobytes(), priorities.tobytes(), want, slots)
        return first

    def post(self) -> None:
        """Send what is gathered."""
        n = self.count
        if not n:
            return
        self.talk.check()
        entries = bytes(memoryview(self._entries)[: n * _ENTRY])
        blocks, priorities, begun = self._blocks.tobytes(), self._priorities.tobytes(), self._begun
        # Sending may take in an answer, which posts what is gathered then: this must not be it.
        del self._blocks[:], self._priorities[:]
        self.count = self._begun = 0
        self.flying += 1
        want = self._want(len(blocks) // 4)
        self._send(entries, blocks, priorities, want, min(want, begun))

    def _want(self, most: int) -> int:
        """Blocks to ask for with an answer: so that somewhat more than was asked for last is ready."""
        return max(0, min(most, self.asked + self.asked // 2 - len(self._spare_blocks) - self._coming))

    def _send(self, entries: bytes, blocks: bytes, priorities: bytes, want: int, slots: int) -> None:
        """Post a message of these entries, whose answer brings up to `want` blocks and so many slots."""
        self._coming += want
        self.talk.post(
            m.Commit(self.index, want, slots),
            (entries, blocks, priorities),
            lambda call: self._answered(call, entries, blocks, want),
        )

    def _answered(self, call: Call, entries: bytes, blocks: bytes, want: int) -> None:
        first, last = (_SEQUENCE(entries, at)[0] for at in (0, len(entries) - _ENTRY))
        self.flying -= 1
        self._coming -= want
        # Numbers that were withdrawn while gathered have no message of their own.
        self.settled = last if self.flying or self.count else self.sequence
        answer = call.answer
        if isinstance(answer, m.Committed):
            self.committed = max(self.committed, answer.sequence)
            if answer.lost:
                self.table.lost.update(answer.lost)
            self.keep(*(array_of(frame, np.int32, m.MAX_ROWS, "leases") for frame in call.frames))
        elif isinstance(answer, m.Failed):
            self.committed = max(self.committed, answer.sequence)
            self._refused = [*self._refused[-_REMEMBERED:], _Refusal(max(first, answer.sequence + 1), last, answer)]
            self._take_back(np.frombuffer(entries, COMMIT_ENTRY), np.frombuffer(blocks, np.int32), answer.sequence)
        if self.count:
            self.post()

    def _take_back(self, entries: np.ndarray, blocks: np.ndarray, committed: int) -> None:
        """Give back the leases of entries the shard refused."""
        refused = entries["sequence"] > committed
        slots = entries["slot"][refused & (entries["flags"] & BEGIN != 0)]
        self.give_back(blocks[np.repeat(refused, entries["blocks"])], slots)

    def give_back(self, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> None:
        """End leases."""
        if len(blocks) or len(slots):
            frames = (np.asarray(blocks, np.int32).tobytes(), np.asarray(slots, np.int32).tobytes())
            self.talk.post(m.GiveBack(self.index), frames)

    def refusal(self, sequence: int) -> GearError | None:
        """What the shard said when it refused this entry, or an earlier one that nobody has asked about."""
        for refused in self._refused:
            if refused.first <= sequence and (sequence <= refused.last or not refused.told):
                refused.told = True
                return refused.answer.error()
        return None

    def drop(self, first: int, last: int) -> int:
        """Drop entries first..last that are still gathered here, and end their leases; how many.

        Refused ones count: they are not committed either.
        """
        refused = sum(max(0, min(last, r.last) - max(first, r.first) + 1) for r in self._refused)
        if not self.count or last <= self.sequence - self.count:
            return refused
        entries = np.frombuffer(bytes(memoryview(self._entries)[: self.count * _ENTRY]), COMMIT_ENTRY)
        blocks, priorities = np.array(self._blocks, np.int32), np.array(self._priorities, np.float64)
        leaving = (entries["sequence"] >= first) & (entries["sequence"] <= last)
        of_block = np.repeat(leaving, entries["blocks"])
        self.give_back(blocks[of_block], entries["slot"][leaving])
        staying = entries[~leaving]
        self._entries[: len(staying) * _ENTRY] = staying.tobytes()
        self._blocks = array("i", blocks[~of_block].tobytes())
        self._priorities = array("d", priorities[~np.repeat(leaving, entries["priorities"])].tobytes())
        self.count, self._begun = len(staying), int(np.count_nonzero(staying["flags"] & BEGIN))
        if not self.count and not self.flying:
            self.settled = self.sequence
        return refused + int(leaving.sum())

    def spare(self, blocks: int, slots: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Up to that many leases that came with acknowledgements."""
        mine, self._spare_blocks = self._spare_blocks[:blocks], self._spare_blocks[blocks:]
        slot, self._spare_slots = self._spare_slots[:slots], self._spare_slots[slots:]
        return mine, slot

    def keep(self, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> None:
        """Keep leases for the next call of `spare`."""
        if len(blocks):
            held = self._spare_blocks
            self._spare_blocks = np.concatenate((held, blocks)) if len(held) else blocks
        if len(slots):
            held = self._spare_slots
            self._spare_slots = np.concatenate((held, slots)) if len(held) else slots

"""Commits whose rows are written to their blocks by RDMA: leases first, then the rows, then the commit.

Messages are served one after the other: while leases for the first are asked for, the others wait in line. Where the
shard's device cannot confine a writer to leases its rows go to an inbox there, and no lease is needed. A message for
which there is no way goes with its rows over TCP, as do pieces of trajectories that grow. Rows stay in the stage until
the shard has acknowledged them, so that they can be sent again in any way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gear.errors import DeviceError
from gear.storage.fields import BEGIN, END
from gear.storage.layout import COMMIT_ENTRY
from gear.transport import messages as m
from gear.transport.rdma_chains import Transfer, runs
from gear.transport.rdma_device import PAGE
from gear.transport.rdma_queue import Broken, Key
from gear.transport.staged import StagedOutbox
from gear.transport.wire import array

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import numpy.typing as npt

    from gear.transport.base import OpenTable
    from gear.transport.conversation import Call, Conversation
    from gear.transport.rdma_queue import QueuePair
    from gear.transport.rdma_way import Way

_WHOLE = BEGIN | END


@dataclass(eq=False)
class _Part:
    """A message in line: its entries, what they name in the stage, and whether the rows go along over TCP."""

    entries: npt.NDArray[np.void]
    blocks: npt.NDArray[np.int32]
    priorities: npt.NDArray[np.float64]
    along: bool

    def split(self, count: int) -> _Part:
        """Take the first entries off."""
        named, given = (int(self.entries[name][:count].sum(dtype=np.int64)) for name in ("blocks", "priorities"))
        first = _Part(self.entries[:count], self.blocks[:named], self.priorities[:given], self.along)
        self.entries, self.blocks = self.entries[count:], self.blocks[named:]
        self.priorities = self.priorities[given:]
        return first

    def without(self, leaving: npt.NDArray[np.bool_]) -> None:
        """Leave out entries, bool[N]."""
        self.blocks = self.blocks[~np.repeat(leaving, self.entries["blocks"])]
        self.priorities = self.priorities[~np.repeat(leaving, self.entries["priorities"])]
        self.entries = self.entries[~leaving]


class RdmaOutbox(StagedOutbox):
    """An outbox of one table.

    Parameters
    ----------
    way : Way
    register : uint8[N] -> region
        Registers memory that is written from; called once, for the blocks that the stage lends.
    """

    def __init__(
        self, talk: Conversation, table: OpenTable, way: Way, register: Callable[[npt.NDArray[np.uint8]], Any]
    ) -> None:
        super().__init__(talk, table)
        self._way, self._register = way, register
        self._region: Any = None
        self._line: deque[_Part] = deque()
        self._placing, self._landing = False, 0  # whether leases are asked for; commits without an answer

    def _send(self, entries: bytes, blocks: bytes, priorities: bytes, want: int, slots: int) -> None:
        said = np.frombuffer(bytearray(entries), COMMIT_ENTRY)
        named = np.frombuffer(blocks, np.int32)
        beyond = int(named.max(initial=0)) >= self.stage.most
        along = beyond or not len(named) or bool((said["flags"] & _WHOLE != _WHOLE).any())
        self._line.append(_Part(said, named, np.frombuffer(priorities, np.float64), along))
        self._pump()

    def _pump(self) -> None:
        """Send what is in line, up to the first message whose leases are to come."""
        while self._line and not self._placing:
            part = self._line[0]
            pair = self._way.ready(self.talk)
            if not len(part.entries):  # withdrawn
                self._line.popleft()
                self._over()
            elif pair is not None and not part.along and self._unload(pair, part):
                self._line.popleft()
            elif part.along or pair is None or not self._way.writes:
                if self._landing:  # these may have to be sent again, and nothing may overtake them
                    return
                self._line.popleft()
                self._send_along(part)
            else:
                self._placing = True
                least, count = int(part.entries["blocks"][0]), len(part.blocks)
                body = m.Place(self.index, count, len(part.entries), least)
                self.talk.post(body, (), self._placed)

    def _send_along(self, part: _Part) -> None:
        super()._send(part.entries.tobytes(), part.blocks.tobytes(), part.priorities.tobytes(), 0, 0)

    def _unload(self, pair: QueuePair, part: _Part) -> bool:
        """Write the rows to the inbox and commit them; whether that was done."""
        inbox, count = self._way.inbox, len(part.blocks)
        begin = inbox.take(count * self.stage.blocks.shape[1])
        if begin is None:
            return False
        far = inbox.far
        there = np.array([[count, far.address + begin, far.key]])
        if not self._write(pair, part.blocks, there) or not self.talk.link.up:
            inbox.give(begin)
            part.along = True
            return False
        frames = part.entries.tobytes(), part.priorities.tobytes(), self.stage.values(part.entries["slot"])
        self._landing += 1
        body = m.Unload(self.index, inbox.pair, begin, count * self.stage.blocks.shape[1])

        def done(call: Call) -> None:
            inbox.give(begin)
            self._landed(call, part, part.blocks[:0], part.entries["slot"][:0])

        self.talk.post(body, frames, done)
        return True

    def _over(self) -> None:
        """A message has ended of which nothing was left."""
        self.flying -= 1
        if not self.flying and not self.count:
            self.settled = self.sequence

    def _placed(self, call: Call) -> None:
        self._placing = False
        if not isinstance(call.answer, m.Placed):
            pair = self._way.pair
            if pair is not None:
                self._way.broke(pair, str(getattr(call.answer, "message", "the shard gave no place")))
            self._pump()
            return
        blocks, slots = (array(frame, np.int32, m.MAX_ROWS, "leases") for frame in call.frames[:2])
        windows = array(call.frames[2], np.int64, 3 * m.MAX_ROWS, "windows").reshape(-1, 3)
        used = (0, 0)
        while self._line and not len(self._line[0].entries):
            self._line.popleft()
            self._over()
        if self._line and not self._line[0].along:
            used = self._fill(self._line[0], blocks, slots, windows)
        self._forgo(blocks[used[0] :], slots[used[1] :])
        self._pump()

    def _fill(
        self,
        part: _Part,
        blocks: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int32],
        windows: npt.NDArray[np.int64],
    ) -> tuple[int, int]:
        """Write the rows of as many entries as have a place, and commit them; how many blocks and slots that took."""
        named = np.cumsum(part.entries["blocks"], dtype=np.int64)
        count = min(int(np.searchsorted(named, len(blocks), "right")), len(slots))
        if not count:
            return 0, 0
        pair, taken = self._way.pair, int(named[count - 1])
        if pair is None or not self._write(pair, part.blocks[:taken], windows) or not self.talk.link.up:
            part.along = True
            return 0, 0
        if count == len(part.entries):
            self._line.popleft()
        else:
            part = part.split(count)
            self.flying += 1
        self._land(part, blocks[:taken], slots[:count])
        return taken, count

    def _write(self, pair: QueuePair, blocks: npt.NDArray[np.int32], windows: npt.NDArray[np.int64]) -> bool:
        """Write blocks of the stage to the first blocks that windows show; False if the way broke."""
        size, at = self.stage.blocks.shape[1], 0
        try:
            if self._region is None:
                memory = self.stage.blocks[: self.stage.most].reshape(-1)
                memory[::PAGE] = memory[::PAGE]  # pages that are there are pinned in a hundredth of the time
                self._region = self._register(memory)
            near = self.stage.blocks.ctypes.data, self._region.lkey
            for count, address, key in windows.tolist():
                mine = blocks[at : at + count].astype(np.int64)
                if not len(mine):
                    break
                moves: list[Transfer] = runs(mine * size, np.arange(len(mine), dtype=np.int64) * size, size)
                pair.write(moves, near, Key(address, key))
                at += count
        except (Broken, DeviceError) as error:
            self._way.broke(pair, str(error))
            return False
        self._way.went_well()
        self._way.figures["written_bytes"] += len(blocks) * size
        return True

    def _land(self, part: _Part, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> None:
        entries = part.entries.copy()
        entries["slot"] = slots
        values = self.stage.values(part.entries["slot"])
        frames = (entries.tobytes(), blocks.tobytes(), part.priorities.tobytes(), values)
        self._landing += 1
        self.talk.post(m.Land(self.index), frames, lambda call: self._landed(call, part, blocks, slots))

    def _landed(self, call: Call, part: _Part, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> None:
        answer = call.answer
        self._landing -= 1
        if isinstance(answer, m.Failed) and answer.kind == "DeviceError":  # the shard that leased is no more
            leaving = part.entries["sequence"] <= answer.sequence
            for index, first, last in self.talk.link.void:
                void = (part.entries["sequence"] >= first) & (part.entries["sequence"] <= last)
                leaving |= void & (index == self.index)
            self.stage.put(
                part.blocks[np.repeat(leaving, part.entries["blocks"])].tolist(), part.entries["slot"][leaving].tolist()
            )
            part.without(leaving)
            self.committed = max(self.committed, answer.sequence)
            if len(part.entries):
                self._send_along(part)
            else:
                self._over()
            self._pump()
            return
        if isinstance(answer, m.Failed) and len(blocks):  # what was refused has its leases still
            refused = part.entries["sequence"] > answer.sequence
            self._forgo(blocks[np.repeat(refused, part.entries["blocks"])], slots[refused])
        self._arrived(call, part.entries.tobytes(), part.blocks.tobytes(), part.blocks, part.entries["slot"])
        self._pump()

    def _forgo(self, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> None:
        if len(blocks) or len(slots):
            self.talk.post(m.Forgo(self.index), (blocks.tobytes(), slots.tobytes()))

    def unregister(self) -> None:
        """Nothing is written any more."""
        region, self._region = self._region, None
        if region is not None:
            region.close()

    def drop(self, first: int, last: int) -> int:
        """Drop entries first..last that were not sent yet."""
        dropped = 0
        for part in self._line:
            leaving = (part.entries["sequence"] >= first) & (part.entries["sequence"] <= last)
            if leaving.any() and not (part.entries["flags"][leaving] & _WHOLE != _WHOLE).any():
                dropped += int(leaving.sum())
                self.give_back(part.blocks[np.repeat(leaving, part.entries["blocks"])], part.entries["slot"][leaving])
                part.without(leaving)
        return dropped + super().drop(first, last)

"""What a client asks of a shard over the control channel, whichever way the rows go.

How leases come about, where rows are written and how they are gathered is the business of the data paths,
`shm` and `tcp`.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gear import schema
from gear.batch import NO_NEIGHBOURS, Selection, Update
from gear.errors import ConnectionLost, DeadlineExceeded, PinLost, ProtocolError
from gear.parts import is_spread, part
from gear.storage.layout import Layout
from gear.transport import messages as m
from gear.transport.base import NO_SEAM, OpenTable, Seam
from gear.transport.channel import Buffer
from gear.transport.conversation import Call, Conversation
from gear.transport.outbox import WINDOW, Outbox
from gear.transport.remote import FOREVER, LEAST, deadline_of, expect
from gear.transport.session_later import LaterSession
from gear.transport.weights import RemoteWeights
from gear.transport.wire import array, page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from gear.checkpoint import Checkpoint
    from gear.devices.arena import Arena
    from gear.page import Page
    from gear.plan import Plan
    from gear.schema import Table
    from gear.transport.base import Session, Wanted


class RemoteSession(LaterSession, RemoteWeights):
    """The greater part of a `Session` with one shard; see `Remote` for its life."""

    path = ""

    # Tables

    def create_table(self, table: Table, timeout: float | None) -> OpenTable:
        """Create, or find an equal one."""
        with self._talking() as talk:
            return self._open(talk, talk.ask(m.CreateTable(schema.to_bytes(table)), deadline_of(timeout)))

    def open_table(self, name: str | None, timeout: float | None) -> OpenTable:
        """The table of that name, or the only one."""
        known = self._opened.get(name) if name is not None else None
        if known is not None and not self._closed:
            return known
        with self._talking() as talk:
            return self._open(talk, talk.ask(m.OpenTable(name), deadline_of(timeout)))

    def _open(self, talk: Conversation, call: Call) -> OpenTable:
        answer: m.Opened = expect(call, m.Opened)
        table = schema.from_bytes(answer.table)
        opened = self._opened.get(table.name)
        if opened is None:
            mine = part(table, answer.part, answer.parts)
            layout = Layout(mine, answer.index, answer.shard, spread=is_spread(table, answer.parts))
            if layout.nbytes != answer.nbytes:
                raise ProtocolError(
                    f"table {table.name!r}: expected a segment of {layout.nbytes} bytes, the server has one of "
                    f"{answer.nbytes} bytes; install the same release at both ends"
                )
            layout, arena = self._reached(answer, layout) if layout.device_bytes else (layout, None)
            opened = OpenTable(mine, layout, self._segment(answer, layout), row=answer.client, arena=arena)
            self._opened[table.name] = opened
            self._boxes[answer.index] = self._box(talk, opened)
        return opened

    def parts(self, table: OpenTable) -> list[tuple[Session, OpenTable]]:
        """The table itself."""
        return [(self, table)]  # type: ignore[list-item]

    # Requests that a table on several shards makes of all of them at once

    def post(self, body: m.Message, frames: Sequence[Buffer] = ()) -> Call:
        """Send a request; `answer` waits for what comes of it."""
        with self._talking() as talk:
            return talk.post(body, frames)

    def answer(self, call: Call, what: str, deadline: float, undo: Callable[[Call], None] | None = None) -> Call:
        """Wait for the answer to a request; see `Conversation.ask`. Errors name `what`."""
        with self._talking() as talk:
            return talk.answer(call, what, deadline, undo)

    def answer_soon(self, call: Call, what: str, deadline: float, undo: Callable[[Call], None] | None = None) -> Call:
        """The same, but a shard that is away is not waited for.

        Raises
        ------
        ConnectionLost
            If it is; an answer that comes later is given to `undo`.
        """
        with self._talking() as talk:
            talk.until(lambda: call.done or self.away, deadline)
            if not call.done and self.away:
                talk.abandon(call, undo)
                raise ConnectionLost(f"{what}: the shard is being started again")
            return talk.answer(call, what, deadline, undo)

    def await_answer(self, call: Call, deadline: float) -> bool:
        """Wait for the answer to a request until the deadline; whether it came."""
        with self._talking() as talk:
            return talk.until(lambda: call.done, deadline)

    def abandon(self, table: OpenTable, call: Call) -> None:
        """Nobody waits any more for a selection, whether it has come or will."""
        index = table.layout.index
        with self._talking() as talk:
            talk.abandon(call, lambda call: self.unwanted(index, call))

    def opened(self, call: Call) -> OpenTable:
        """The part of a table that an answer has opened."""
        with self._talking() as talk:
            return self._open(talk, call)

    def look(self, call: Call) -> bool:
        """Take in what has arrived, without waiting; whether that call was answered."""
        with self._talking() as talk:
            talk.look()
            talk.check()
            return call.done

    @abstractmethod
    def _segment(self, answer: m.Opened, layout: Layout) -> npt.NDArray[np.uint8]:
        """The memory in which this path writes a table's rows, uint8[layout.nbytes]."""

    @abstractmethod
    def _reached(self, answer: m.Opened, layout: Layout) -> tuple[Layout, Arena | None]:
        """How rows of columns on a device are written: the layout of the segment, and the blocks there."""

    # Commits

    def submit(
        self,
        table: OpenTable,
        slot: int,
        blocks: Sequence[int],
        length: int,
        flags: int,
        priorities: float | npt.NDArray[np.float64] | None,
        timeout: float | None,
        seam: Seam = NO_SEAM,
    ) -> int:
        """Queue one commit entry."""
        talk = self._talk or self._begin(LEAST)
        with talk.lock:
            box = self._boxes[table.layout.index]
            if box.sequence - box.settled >= WINDOW:
                self._wait_for(talk, box, lambda: box.sequence - box.settled < WINDOW, timeout)
            sequence = box.add(slot, blocks, length, flags, priorities, seam)
            if box.count == 0:
                if box.flying > 1:  # a full batch left while others are on their way: take in what came
                    talk.look()
            elif self._attendant.dozing:  # type: ignore[union-attr]
                self._attendant.wake()  # type: ignore[union-attr]
            return sequence

    def submit_many(
        self,
        table: OpenTable,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> int:
        """Send commit entries as one message."""
        talk = self._talk or self._begin(LEAST)
        with talk.lock:
            box, n = self._boxes[table.layout.index], len(entries)
            if box.sequence - box.settled + n > WINDOW:
                self._wait_for(talk, box, lambda: box.sequence - box.settled + n <= WINDOW, timeout)
            first = box.add_many(entries, blocks, priorities)
            if box.flying > 1:
                talk.look()
            return first

    def wait(self, table: OpenTable, sequence: int, timeout: float | None) -> None:
        """Return once every entry up to `sequence` is committed."""
        with self._talking() as talk:
            box = self._boxes[table.layout.index]
            if box.settled < sequence:
                self._wait_for(talk, box, lambda: box.settled >= sequence, timeout)
            error = box.refusal(sequence)
            if error is not None:
                raise error

    def _wait_for(self, talk: Conversation, box: Outbox, ready: Any, timeout: float | None) -> None:
        if talk.until(ready, deadline_of(timeout)):
            return
        reason = "the server did not say what for"
        with contextlib.suppress(DeadlineExceeded):
            reason = expect(talk.ask(m.Explain(box.index), time.monotonic()), m.Explained).text
        if not ready():
            raise DeadlineExceeded(f"insert timed out: {reason}")

    def withdraw(self, table: OpenTable, first: int, last: int) -> int:
        """Drop the entries first..last that are not committed."""
        with self._talking() as talk:
            box = self._boxes[table.layout.index]
            dropped = box.drop(first, last)
            if not box.flying:
                return dropped
            try:
                call = talk.ask(m.Withdraw(box.index, first, last), time.monotonic())
            except DeadlineExceeded as error:
                raise DeadlineExceeded(
                    f"{error}; the server is silent, so whether {_commits(last - first + 1)} done is unknown: what is "
                    "not is withdrawn when it answers again"
                ) from None
            answer: m.Withdrawn = expect(call, m.Withdrawn)
            if answer.dropped and box.flying:
                talk.link.void = [*talk.link.void[1 - m.MAX_VOIDS :], (box.index, first, last)]
            return dropped + answer.dropped

    def committed(self, table: OpenTable) -> int:
        """Highest sequence number known to be committed."""
        with self._talking() as talk:
            box = self._boxes[table.layout.index]
            box.post()
            talk.look()
            return box.committed

    def acknowledged(self, table: OpenTable) -> int:
        """Highest sequence number heard to be committed."""
        box = self._boxes.get(table.layout.index)
        return 0 if box is None else box.committed

    def pending(self, table: OpenTable) -> int:
        """Commit entries not heard to be committed."""
        box = self._boxes.get(table.layout.index)
        return 0 if box is None else box.sequence - box.settled

    # Draws

    def select(self, table: OpenTable, wanted: Wanted, timeout: float | None) -> Selection:
        """Draw and pin items."""
        talk, index = self._talk or self._begin(LEAST), table.layout.index
        shape = None if wanted.ahead is None else self.ahead(wanted.ahead, wanted.size)
        body = m.Select(index, wanted.size, wanted.parties, min(wanted.ttl, 1e10), None, shape, wanted.which)
        body.before, body.after = wanted.reach
        body.consumer, body.share = wanted.consumer, wanted.share
        if wanted.budget is not None:
            body.steps, body.alone = wanted.budget
        into = None
        if shape is not None and wanted.into is not None and wanted.ahead is not None:
            into = self.straight(table, wanted.ahead, wanted.into)
        deadline = FOREVER
        if timeout is not None:
            body.timeout = max(0.0, timeout)
            deadline = deadline_of(timeout)
        with talk.lock:
            call = talk.ask(body, deadline, undo=lambda call: self.unwanted(index, call), into=into)
        return self.selected(table, call)

    def selected(self, table: OpenTable, call: Call) -> Selection:
        """The selection that is the answer to a request."""
        answer: m.Selected = expect(call, m.Selected)
        if len(call.frames) > 1 and call.frames[-1] != m.BAD:
            self._came(table.layout.index, answer.pin, call.frames[1:])
        buffer = bytearray(call.frames[0])
        near, each = answer.near, 36 if answer.versioned else 28
        n, rest = divmod(len(buffer) - 4 * near, each)
        if rest or n < 0:
            raise ProtocolError(
                f"expected {each} bytes per selected item and 4 per neighbour ({answer.near}), got {len(buffer)}"
            )
        return Selection(
            table.table.name,
            np.frombuffer(buffer, np.int64, n),
            np.frombuffer(buffer, np.float64, n, 8 * n),
            np.frombuffer(buffer, np.int64, n, 16 * n),
            np.frombuffer(buffer, np.int32, n, (each - 4) * n),
            answer.smallest,
            answer.pin,
            answer.parties,
            answer.deadline,
            (),
            np.frombuffer(buffer, np.int32, near, each * n) if near else NO_NEIGHBOURS,
            answer.draw,
            np.frombuffer(buffer, np.int64, n, 24 * n) if answer.versioned else None,
        )

    def pick(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        parties: int,
        ttl: float,
        reach: tuple[int, int],
        timeout: float | None,
    ) -> Selection:
        """Pin items by their ids."""
        index = table.layout.index
        body = m.Pick(index, parties, min(ttl, 1e10), *reach)
        with self._talking() as talk:
            frames = (ids.tobytes(),)
            call = talk.ask(body, deadline_of(timeout), frames, undo=lambda late: self.unwanted(index, late))
        return self.selected(table, call)

    def ahead(self, plan: Plan | None, count: int) -> m.Shape | None:
        """How items look that are gathered by `plan`, if the rows of so many are to come with their selection."""
        return None

    def straight(self, table: OpenTable, plan: Plan, out: npt.NDArray[np.uint8]) -> Sequence[memoryview] | None:
        """Where the rows of a batch that comes with its selection go in `out`, if they can go there at once."""
        return None

    def _came(self, index: int, pin: int, rows: list[Buffer]) -> None:
        """Rows that came with a selection, and how they lie."""

    def unwanted(self, index: int, call: Call) -> None:
        """A selection came after its caller had given up."""
        assert self._talk is not None
        if not call.answer.pin:
            return
        self._talk.releases.append((index, call.answer.pin, False))

    def sample(
        self, table: OpenTable, size: int, plan: Plan, out: npt.NDArray[np.uint8], which: int = 0
    ) -> Selection | None:
        """Never: the shard draws."""
        return None

    def hold(self, table: OpenTable, selection: Selection) -> None:
        """Join the pin of a selection."""
        index = table.layout.index
        with self._talking() as talk:
            if self.revoked(table, selection):
                raise PinLost(f"pin {selection.pin} of table {selection.table!r} was taken back; select again")
            undo = lambda call: talk.releases.append((index, selection.pin, False))
            talk.ask(m.Hold(index, selection.pin), deadline_of(LEAST), undo=undo)

    def release(self, table: OpenTable, selection: Selection, delivered: bool) -> None:
        """End this party's hold; travels with the next message."""
        talk = self._talk or self._begin(LEAST)
        with talk.lock:
            talk.check()
            key = (table.layout.index, selection.pin)
            if self._revoked.pop(key, False):
                return  # let go of when it was revoked
            talk.releases.append((*key, delivered))
            if self._attendant.dozing:  # type: ignore[union-attr]
                self._attendant.wake()  # type: ignore[union-attr]

    def revoked(self, table: OpenTable, selection: Selection) -> bool:
        """Whether the shard has taken the pin back."""
        return (table.layout.index, selection.pin) in self._revoked or self._outlived(selection.pin)

    def update_priorities(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> Update:
        """Set raw priorities."""
        frames = (np.ascontiguousarray(ids, np.int64).tobytes(), np.ascontiguousarray(priorities, np.float64).tobytes())
        with self._talking() as talk:
            call = talk.ask(m.Update(table.layout.index), deadline_of(timeout), frames)
        answer: m.Updated = expect(call, m.Updated)
        return Update(answer.applied, answer.stale)

    def acknowledge(
        self, table: OpenTable, ids: npt.NDArray[np.int64], consumer: str, timeout: float | None
    ) -> npt.NDArray[np.int8]:
        """A consumer is done with items."""
        frames = (np.ascontiguousarray(ids, np.int64).tobytes(),)
        with self._talking() as talk:
            call = talk.ask(m.Acknowledge(table.layout.index, consumer), deadline_of(timeout), frames)
        expect(call, m.Acknowledged)
        outcomes = array(call.frames[0], np.int8, m.MAX_ITEMS, "Acknowledged")
        if len(outcomes) != len(ids):
            raise ProtocolError(f"expected what became of {len(ids)} items, got {len(outcomes)}")
        return outcomes

    # The whole

    def scan(self, table: OpenTable, cursor: bytes, most: int, timeout: float | None) -> tuple[Page, bytes]:
        """The next page of a listing, and the cursor of the one behind it."""
        with self._talking() as talk:
            call = talk.ask(m.Scan(table.layout.index, cursor, most), deadline_of(timeout))
        answer: m.Scanned = expect(call, m.Scanned)
        return page_of(answer, call.frames[0]), answer.cursor

    def reset(self, table: OpenTable, timeout: float | None) -> None:
        """Drop every trajectory of the table."""
        with self._talking() as talk:
            talk.ask(m.Reset(table.layout.index), deadline_of(timeout))

    def checkpoint(self, timeout: float | None, progress: Callable[[int, int], None] | None = None) -> Checkpoint:
        """Save all tables to the server's disk."""
        from gear.transport.saving import save

        return save({0: self}, 1, timeout, progress)

    def info(self, timeout: float | None) -> dict[str, Any]:
        """Figures of the server and of each table."""
        with self._talking() as talk:
            answer: m.Informed = expect(talk.ask(m.Info(), deadline_of(timeout)), m.Informed)
        try:
            return {"path": self.path, **msgspec.msgpack.decode(answer.info, type=dict[str, Any])}
        except msgspec.DecodeError as error:
            raise ProtocolError(f"expected figures from the server: {error}") from None


def _commits(count: int) -> str:
    return "the commit was" if count == 1 else f"the {count} commits were"

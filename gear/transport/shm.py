"""The `shm` data path: a server on the same host, rows written and read straight in its shared segments.

A `RemoteSession` sends small messages over the control channel and maps the segments; bulk bytes never
travel.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gear import schema
from gear.batch import Selection, Update
from gear.errors import ConnectionLost, DeadlineExceeded, PinLost, ProtocolError
from gear.storage import memory
from gear.storage.layout import Grant, Layout
from gear.transport import messages as m
from gear.transport.base import OpenTable
from gear.transport.conversation import Call, Conversation
from gear.transport.discovery import discover, endpoint_of, parse_address
from gear.transport.outbox import WINDOW, Outbox
from gear.transport.remote import LEAST, Remote, deadline_of
from gear.transport.wire import array, page_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gear.page import Page
    from gear.query import Plan
    from gear.schema import Table


def connect(address: str, token: str | None = None, timeout: float | None = 10.0) -> RemoteSession:
    """A session with the server at ``host:port``; the token defaults to the variable ``GEAR_TOKEN``.

    Raises
    ------
    ConnectionLost, AuthenticationError, ProtocolError
    """
    deadline = deadline_of(timeout)
    token = os.environ.get("GEAR_TOKEN", "") if token is None else token
    found = discover(address, token, timeout)
    if len(found.shards) != 1:
        raise ProtocolError(f"the server at {address} has {len(found.shards)} shards; this release connects to one")
    endpoint = endpoint_of(found.shards[0], parse_address(address)[0])
    return RemoteSession(endpoint, token, found.heartbeat, max(1.0, deadline - time.monotonic()))


class RemoteSession(Remote):
    """A `Session` with one shard; see `Remote` for its life."""

    path = "shm"

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
        answer: m.Opened = _expect(call, m.Opened)
        table = schema.from_bytes(answer.table)
        opened = self._opened.get(table.name)
        if opened is None:
            layout = Layout(table, answer.index, answer.shard)
            path = Path(answer.segment)
            assert self._door is not None
            if layout.nbytes != answer.nbytes or path.parent != self._door.directory:
                raise ProtocolError(
                    f"table {table.name!r}: expected a segment of {layout.nbytes} bytes in {self._door.directory}, the "
                    f"server offers {answer.nbytes} bytes in {path}; install the same release at both ends"
                )
            try:
                segment = memory.attach(path, layout.nbytes)
            except OSError as error:
                raise ConnectionLost(f"the segment of table {table.name!r} cannot be mapped: {error}") from None
            opened = self._opened[table.name] = OpenTable(table, layout, segment)
            self._boxes[answer.index] = Outbox(talk, opened)
        return opened

    # Leases

    def lease(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Up to that many, at once; first those that came with acknowledgements."""
        with self._talking() as talk:
            box = self._boxes[table.layout.index]
            if box.flying:
                talk.look()
            box.asked = min(blocks, WINDOW)
            mine, slot = box.spare(blocks, slots)
            if len(mine) == blocks and len(slot) == slots:
                return Grant(np.array(mine, np.int32), np.array(slot, np.int32))
            box.post()  # what is committed before the shard looks makes room in this client's share
            body = m.Lease(box.index, blocks - len(mine), slots - len(slot))
            try:
                more = _grant(talk.ask(body, deadline_of(timeout), undo=lambda call: _keep(box, call)))
            except BaseException:
                box.keep(mine, slot)
                raise
            mine += more.blocks.tolist()
            slot += more.slots.tolist()
            came = box.spare(blocks - len(mine), slots - len(slot))  # with the acknowledgements before the answer
            return Grant(np.array(mine + came[0], np.int32), np.array(slot + came[1], np.int32))

    def allocate(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Exactly that many, for a commit that follows."""
        with self._talking() as talk:
            box = self._boxes[table.layout.index]
            body = m.Allocate(box.index, blocks, slots, timeout)
            return _grant(talk.ask(body, deadline_of(timeout), undo=lambda call: _keep(box, call)))

    def give_back(self, table: OpenTable, grant: Grant) -> None:
        """Return unused leases."""
        with self._talking():
            self._boxes[table.layout.index].give_back(grant.blocks, grant.slots)

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
    ) -> int:
        """Queue one commit entry."""
        talk = self._talk or self._begin(LEAST)
        with talk.lock:
            box = self._boxes[table.layout.index]
            if box.sequence - box.settled >= WINDOW:
                self._wait_for(talk, box, lambda: box.sequence - box.settled < WINDOW, timeout)
            sequence = box.add(slot, blocks, length, flags, priorities)
            if box.count == 0:
                if box.flying > 1:  # a full batch left while others are on their way: take in what came
                    talk.look()
            elif self._attendant.dozing:  # type: ignore[union-attr]
                self._attendant.wake()  # type: ignore[union-attr]
            return sequence

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
            reason = _expect(talk.ask(m.Explain(box.index), time.monotonic()), m.Explained).text
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
                    f"{error}; the server is silent, so whether entries {first} to {last} were committed is unknown; "
                    "they are withdrawn if it has not committed them when it answers again"
                ) from None
            answer: m.Withdrawn = _expect(call, m.Withdrawn)
            return dropped + answer.dropped

    def committed(self, table: OpenTable) -> int:
        """Highest sequence number known to be committed."""
        with self._talking() as talk:
            box = self._boxes[table.layout.index]
            box.post()
            talk.look()
            return box.committed

    # Draws

    def select(self, table: OpenTable, size: int, timeout: float | None, parties: int, ttl: float) -> Selection:
        """Draw and pin `size` items."""
        talk = self._talk or self._begin(LEAST)
        with talk.lock:
            index = table.layout.index
            body = m.Select(index, size, parties, min(ttl, 1e10), None if timeout is None else max(0.0, timeout))
            call = talk.ask(body, deadline_of(timeout), undo=lambda call: self._unwanted(index, call))
        answer: m.Selected = _expect(call, m.Selected)
        buffer = bytearray(call.frames[0])
        n, rest = divmod(len(buffer), 28)
        if rest:
            raise ProtocolError(f"expected 28 bytes for each selected item, got {len(buffer)} bytes")
        return Selection(
            table.table.name,
            np.frombuffer(buffer, np.int64, n),
            np.frombuffer(buffer, np.float64, n, 8 * n),
            np.frombuffer(buffer, np.int64, n, 16 * n),
            np.frombuffer(buffer, np.int32, n, 24 * n),
            answer.smallest,
            answer.pin,
            answer.parties,
            answer.deadline,
        )

    def _unwanted(self, index: int, call: Call) -> None:
        """A selection came after its caller had given up."""
        assert self._talk is not None
        self._talk.releases.append((index, call.answer.pin, False))

    def sample(self, table: OpenTable, size: int, plan: Plan, out: npt.NDArray[np.uint8]) -> Selection | None:
        """Never: the shard draws, this process gathers."""
        return None

    def hold(self, table: OpenTable, selection: Selection) -> None:
        """Join the pin of a selection."""
        index = table.layout.index
        with self._talking() as talk:
            if (index, selection.pin) in self._revoked:
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
        return (table.layout.index, selection.pin) in self._revoked

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
        answer: m.Updated = _expect(call, m.Updated)
        return Update(answer.applied, answer.stale)

    # The whole

    def scan(self, table: OpenTable, cursor: bytes, most: int, timeout: float | None) -> tuple[Page, bytes]:
        """The next page of a listing, and the cursor of the one behind it."""
        with self._talking() as talk:
            call = talk.ask(m.Scan(table.layout.index, cursor, most), deadline_of(timeout))
        answer: m.Scanned = _expect(call, m.Scanned)
        return page_of(answer, call.frames[0]), answer.cursor

    def reset(self, table: OpenTable, timeout: float | None) -> None:
        """Drop every trajectory of the table."""
        with self._talking() as talk:
            talk.ask(m.Reset(table.layout.index), deadline_of(timeout))

    def info(self, timeout: float | None) -> dict[str, Any]:
        """Figures of the server and of each table."""
        with self._talking() as talk:
            answer: m.Informed = _expect(talk.ask(m.Info(), deadline_of(timeout)), m.Informed)
        try:
            return {"path": self.path, **msgspec.msgpack.decode(answer.info, type=dict[str, Any])}
        except msgspec.DecodeError as error:
            raise ProtocolError(f"expected figures from the server: {error}") from None


def _expect(call: Call, kind: Any) -> Any:
    if type(call.answer) is not kind:
        raise ProtocolError(f"expected {kind.__name__} from the server, got {type(call.answer).__name__}")
    return call.answer


def _grant(call: Call) -> Grant:
    _expect(call, m.Granted)
    return Grant(*(array(frame, np.int32, m.MAX_ROWS, "leases") for frame in call.frames))


def _keep(box: Outbox, call: Call) -> None:
    """Leases came after their caller had given up: the next caller gets them."""
    blocks, slots = _grant(call)
    box.keep(blocks.tolist(), slots.tolist())

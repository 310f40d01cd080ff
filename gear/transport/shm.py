"""The `shm` data path: a server on the same host, rows written and read straight in its shared segments.

A `RemoteSession` sends small messages over the control channel and maps the segments; bulk bytes never
travel. A fork's child starts afresh at its first call: identity, connection and leases are the parent's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gear import schema
from gear.batch import Selection, Update
from gear.errors import Closed, ConnectionLost, DeadlineExceeded, GearError, PinLost, ProtocolError
from gear.storage import memory
from gear.storage.layout import Grant, Layout
from gear.transport import messages as m
from gear.transport.attendant import PROMPT, Attendant
from gear.transport.base import OpenTable
from gear.transport.conversation import Call, Conversation
from gear.transport.discovery import discover, parse_address
from gear.transport.door import Door
from gear.transport.outbox import WINDOW, Outbox
from gear.transport.wire import array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from gear.schema import Table

FOREVER = float("inf")
_LEAST = 10.0
_REVOKED = 1 << 16

_sessions: weakref.WeakSet[RemoteSession] = weakref.WeakSet()


def connect(address: str, token: str | None = None, timeout: float | None = 10.0) -> RemoteSession:
    """A session with the server at ``host:port``; the token defaults to the variable ``GEAR_TOKEN``.

    Raises
    ------
    ConnectionLost, AuthenticationError, ProtocolError
    """
    deadline = _deadline(timeout)
    token = os.environ.get("GEAR_TOKEN", "") if token is None else token
    found = discover(address, token, timeout)
    if len(found.shards) != 1:
        raise ProtocolError(f"the server at {address} has {len(found.shards)} shards; this release connects to one")
    shard = found.shards[0]
    local = shard.socket and os.path.exists(shard.socket)
    endpoint = f"ipc://{shard.socket}" if local else f"tcp://{parse_address(address)[0]}:{shard.port}"
    return RemoteSession(endpoint, token, found.heartbeat, max(_LEAST / 10, deadline - time.monotonic()))


class RemoteSession:
    """A `Session` with one shard.

    Parameters
    ----------
    endpoint : str
        ``ipc://`` or ``tcp://`` address of the shard.
    token : str
    heartbeat : float
        Seconds of silence after which a connection counts as broken.
    timeout : float, optional
        For the connection.
    """

    path = "shm"

    def __init__(self, endpoint: str, token: str, heartbeat: float, timeout: float | None) -> None:
        self._endpoint, self._token, self._heartbeat = endpoint, token, heartbeat
        self._closed = False
        self._start_afresh()
        _sessions.add(self)
        self._begin(timeout)

    def _start_afresh(self) -> None:
        self._talk: Conversation | None = None
        self._door: Door | None = None
        self._attendant: Attendant | None = None
        self._beginning = threading.Lock()
        self._boxes: dict[int, Outbox] = {}
        self._revoked: dict[tuple[int, int], bool] = {}
        if not hasattr(self, "_opened"):
            self._opened: dict[str, OpenTable] = {}
        for opened in self._opened.values():
            opened.lost.clear()
            opened.reading.clear()

    def _begin(self, timeout: float | None) -> Conversation:
        """Greet the shard under a new identity and prove that memory is shared."""
        with self._beginning:
            if self._talk is not None:
                return self._talk
            if self._closed:
                raise Closed("this client is closed; make a new one")
            deadline = _deadline(timeout)
            identity = secrets.token_bytes(16)
            weak = weakref.ref(self)

            def pushed(body: Any) -> None:
                if (session := weak()) is not None:
                    session._pushed(body)

            def alive() -> bool:
                session = weak()
                return session is None or session._door is None or session._door.alive

            talk = Conversation(self._endpoint, self._heartbeat, identity, self._token, alive, pushed)
            try:
                with talk.lock:
                    if not talk.until(lambda: talk.link.up, deadline):
                        raise ConnectionLost(f"the shard at {self._endpoint} did not answer within {timeout:g} s")
                    assert talk.link.welcome is not None
                    self._door = Door(talk.link.welcome.directory)
                    self._door.enter(identity)
                    talk.ask(m.Attach(self._door.nonce), deadline)
            except BaseException:
                with talk.lock:
                    talk.close()
                if self._door is not None:
                    self._door.leave()
                    self._door = None
                raise
            self._boxes = {t.layout.index: Outbox(talk, t) for t in self._opened.values()}
            self._talk = talk
            self._attendant = Attendant(self)
            return talk

    @contextlib.contextmanager
    def _talking(self) -> Iterator[Conversation]:
        talk = self._talk or self._begin(_LEAST)
        with talk.lock:
            yield talk

    # Tables

    def create_table(self, table: Table, timeout: float | None) -> OpenTable:
        """Create, or find an equal one."""
        with self._talking() as talk:
            return self._open(talk, talk.ask(m.CreateTable(schema.to_bytes(table)), _deadline(timeout)))

    def open_table(self, name: str | None, timeout: float | None) -> OpenTable:
        """The table of that name, or the only one."""
        known = self._opened.get(name) if name is not None else None
        if known is not None and not self._closed:
            return known
        with self._talking() as talk:
            return self._open(talk, talk.ask(m.OpenTable(name), _deadline(timeout)))

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
            body = m.Lease(box.index, blocks - len(mine), slots - len(slot))
            try:
                more = _grant(talk.ask(body, _deadline(timeout), undo=lambda call: _keep(box, call)))
            except BaseException:
                box.keep(mine, slot)
                raise
            return Grant(*(np.concatenate([np.array(a, np.int32), b]) for a, b in zip((mine, slot), more, strict=True)))

    def allocate(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Exactly that many, for a commit that follows."""
        with self._talking() as talk:
            box = self._boxes[table.layout.index]
            body = m.Allocate(box.index, blocks, slots, timeout)
            return _grant(talk.ask(body, _deadline(timeout), undo=lambda call: _keep(box, call)))

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
        talk = self._talk or self._begin(_LEAST)
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
        if talk.until(ready, _deadline(timeout)):
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
            answer: m.Withdrawn = _expect(talk.ask(m.Withdraw(box.index, first, last), FOREVER), m.Withdrawn)
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
        talk = self._talk or self._begin(_LEAST)
        with talk.lock:
            index = table.layout.index
            body = m.Select(index, size, parties, min(ttl, 1e10), None if timeout is None else max(0.0, timeout))
            call = talk.ask(body, _deadline(timeout), undo=lambda call: self._unwanted(index, call))
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

    def hold(self, table: OpenTable, selection: Selection) -> None:
        """Join the pin of a selection."""
        index = table.layout.index
        with self._talking() as talk:
            if (index, selection.pin) in self._revoked:
                raise PinLost(f"pin {selection.pin} of table {selection.table!r} was taken back; select again")
            undo = lambda call: talk.releases.append((index, selection.pin, False))
            talk.ask(m.Hold(index, selection.pin), _deadline(_LEAST), undo=undo)

    def release(self, table: OpenTable, selection: Selection, delivered: bool) -> None:
        """End this party's hold; travels with the next message."""
        talk = self._talk or self._begin(_LEAST)
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
            call = talk.ask(m.Update(table.layout.index), _deadline(timeout), frames)
        answer: m.Updated = _expect(call, m.Updated)
        return Update(answer.applied, answer.stale)

    # The whole

    def reset(self, table: OpenTable, timeout: float | None) -> None:
        """Drop every trajectory of the table."""
        with self._talking() as talk:
            talk.ask(m.Reset(table.layout.index), _deadline(timeout))

    def info(self, timeout: float | None) -> dict[str, Any]:
        """Figures of the server and of each table."""
        with self._talking() as talk:
            answer: m.Informed = _expect(talk.ask(m.Info(), _deadline(timeout)), m.Informed)
        try:
            return {"path": self.path, **msgspec.msgpack.decode(answer.info, type=dict[str, Any])}
        except msgspec.DecodeError as error:
            raise ProtocolError(f"expected figures from the server: {error}") from None

    def close(self) -> None:
        """Send what is gathered, give everything back and end."""
        if self._closed:
            return
        self._closed = True
        talk, attendant, door = self._talk, self._attendant, self._door
        if attendant is not None:
            attendant.stop()
        if talk is None:
            return
        with talk.lock:
            with contextlib.suppress(GearError):
                for box in self._boxes.values():
                    box.post()
                talk.until(lambda: not any(b.flying for b in self._boxes.values()), time.monotonic() + 1.0)
                talk.ask(m.Goodbye(), time.monotonic() + 1.0)
            talk.close()
        if door is not None:
            door.leave()

    # Behind the scenes

    def attend(self) -> bool:
        """Called by the attendant: send what no call has taken along, hear what came."""
        talk = self._talk
        if talk is None:
            return False
        with talk.lock:
            if not talk.led:
                talk.look()
            if talk.releases and time.monotonic() - talk.used >= PROMPT and talk.link.up:
                talk.post(m.Releases())
            return bool(talk.releases) or any(box.count for box in self._boxes.values())

    def _pushed(self, body: m.Recall | m.Revoke) -> None:
        assert self._talk is not None
        box = self._boxes.get(body.table)
        if box is None:
            return
        if isinstance(body, m.Recall):
            blocks, slots = box.spare(body.blocks, body.blocks)
            box.asked = 0
            box.give_back(np.array(blocks, np.int32), np.array(slots, np.int32))
            return
        for pin in body.pins:
            reading = pin in box.table.reading
            if (body.table, pin) not in self._revoked:
                # Marked before it is let go of: who gathers now asks `revoked` afterwards.
                self._revoked[body.table, pin] = not reading
                if not reading:
                    self._talk.releases.append((body.table, pin, False))
        while len(self._revoked) > _REVOKED:
            del self._revoked[next(iter(self._revoked))]


def _deadline(timeout: float | None) -> float:
    return FOREVER if timeout is None else time.monotonic() + timeout


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


def _close_all() -> None:
    for session in list(_sessions):
        session.close()


def _after_fork() -> None:
    for session in list(_sessions):
        _inherited.append((session._talk, session._door, session._attendant))
        session._start_afresh()


_inherited: list[object] = []
"""What a child got from its parent and must neither use nor close."""

atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

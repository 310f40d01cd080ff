"""What is published on a shard: the latest version of each name, those being sent, those still being read.

A version is immutable once sealed and takes the place of the one before in one assignment. All of them count against
the memory the server may take. Who reads a version that has been replaced keeps it until it has all of it, unless a
newer one needs the memory: then it is told, and starts again with the newest. It knows clients and no socket.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq

from gear.arrays import Entry, late, lay_out
from gear.errors import DataError, DeadlineExceeded, GearError, InsufficientMemory, PinLost, ProtocolError
from gear.server.bulk import MOST_PIECES, Refuse, Send
from gear.server.clients import Client
from gear.storage.deadlines import Deadlines
from gear.storage.memory import check_room, size_text
from gear.storage.saving import Parcel
from gear.transport import messages as m
from gear.transport.pieces import split

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.server.budget import MemoryBudget
    from gear.transport.channel import Buffer

logger = logging.getLogger(__name__)

MOST_TICKETS = 64
"""Versions that one client may be sending or reading at a time."""

MOST_NAMES = 1024


@dataclass(eq=False, slots=True)
class _Version:
    name: str
    number: int
    entries: tuple[Entry, ...]
    memory: npt.NDArray[np.uint8]


@dataclass(eq=False, slots=True)
class _Upload:
    """A version being sent, and which pieces have come: bytes by offset."""

    client: Client
    version: _Version
    pieces: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Reading:
    client: Client
    version: _Version | None
    """None once it had to make room."""


@dataclass(eq=False, slots=True)
class _Waiting:
    client: Client
    request: int
    name: str
    newer_than: int
    over: bool = False


class Weights:
    """The published arrays of a shard.

    Parameters
    ----------
    budget : what they and the tables may take together.
    send, refuse : see `bulk`.
    era : how often the shard was started before.
    """

    def __init__(self, budget: MemoryBudget, send: Send, refuse: Refuse, era: int = 0) -> None:
        self._before = era << 32  # whoever waits for something newer than before a restart gets what comes after it
        self._budget, self._send, self._refuse = budget, send, refuse
        budget.taken_by(lambda: self.nbytes)
        self._latest: dict[str, _Version] = {}
        self._uploads: dict[int, _Upload] = {}
        self._readings: dict[int, _Reading] = {}
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._deadlines: Deadlines[_Waiting] = Deadlines(lambda waiting: waiting.over)
        self._tickets = itertools.count(1)
        self.handlers: dict[type, Callable[[Client, int, Any, list[Buffer]], None]] = {
            m.Publish: self._publish,
            m.Store: self._store,
            m.Install: self._seal,
            m.Fetch: self._fetch,
            m.Read: self._read,
            m.Discard: self._discard,
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all versions: latest, being sent, and still read."""
        versions = {id(v): len(v.memory) for v in self._latest.values()}
        versions |= {id(u.version): len(u.version.memory) for u in self._uploads.values()}
        versions |= {id(r.version): len(r.version.memory) for r in self._readings.values() if r.version is not None}
        return sum(versions.values())

    def info(self) -> dict[str, Any]:
        """Version, bytes and waiting readers of each name. Plain data."""
        names = {*self._latest, *self._waiting}
        return {
            name: {
                "version": self._latest[name].number if name in self._latest else 0,
                "bytes": len(self._latest[name].memory) if name in self._latest else 0,
                "waiting_readers": sum(not waiting.over for waiting in self._waiting.get(name, ())),
            }
            for name in sorted(names)
        }

    def parcels(self) -> list[Parcel]:
        """The latest versions: immutable."""
        return [
            Parcel(v.name, v.number, v.entries, lay_out(v.entries)[0], v.memory) for v in self._latest.values()
        ]  # fmt: skip

    def put_back(self, name: str, number: int, entries: tuple[Entry, ...], memory: npt.NDArray[np.uint8]) -> None:
        """What was published before this shard was started."""
        self._latest[name] = _Version(name, number, entries, memory)

    # In

    def _publish(self, client: Client, request: int, body: m.Publish, parts: list[Buffer]) -> None:
        _, nbytes = lay_out(body.entries)
        self._number_of(body.name, body.version)
        if body.name not in self._latest and len(self._latest) >= MOST_NAMES:
            raise DataError(f"{MOST_NAMES} names are published, the most there can be; reuse one")
        came = sum(len(part) for part in parts[1:])
        if came not in (0, nbytes):
            raise ProtocolError(f"Publish: expected {nbytes} bytes of arrays or none, got {came}")
        self._make_room(body.name, nbytes)
        version = _Version(body.name, body.version, body.entries, np.empty(nbytes, np.uint8))
        if came == nbytes:
            at = 0
            for part in parts[1:]:
                version.memory[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
            self._replace(client, request, version)
            return
        self._send(client, request, m.Staged(self._ticket(client, self._uploads, _Upload(client, version))), [])

    def _ticket(self, client: Client, of: dict[int, Any], what: _Upload | _Reading) -> int:
        under_way: list[_Upload | _Reading] = [*self._uploads.values(), *self._readings.values()]
        mine = sum(one.client is client for one in under_way)
        if mine >= MOST_TICKETS:
            raise ProtocolError(f"{MOST_TICKETS} versions are under way to or from this client, the most there may be")
        number = next(self._tickets)
        of[number] = what
        return number

    def _number_of(self, name: str, asked: int) -> int:
        there = self._latest[name].number if name in self._latest else 0
        if asked and asked <= there:
            raise DataError(f"version {asked} of {name!r} is not newer than version {there}, which is published")
        return asked or max(there, self._before) + 1

    def _make_room(self, name: str, nbytes: int) -> None:
        """Have readers of replaced versions start again where their memory is needed.

        Raises
        ------
        InsufficientMemory
            If it does not fit beside the version there is.
        """
        latest = {id(version) for version in self._latest.values()}
        for reading in self._readings.values():
            if self._budget.left >= nbytes:
                break
            if reading.version is not None and id(reading.version) not in latest:
                reading.version = None
        left = max(0, self._budget.left)
        if nbytes > left:
            raise InsufficientMemory(
                f"publishing {name!r} needs {size_text(nbytes)} ({nbytes} bytes), but of the "
                f"{size_text(self._budget.limit)} allowed by --memory {size_text(left)} ({left} bytes) are left; the "
                "version before stays until the new one is complete; raise --memory"
            )
        check_room(nbytes, f"publishing {name!r}", shared=False)

    def _store(self, client: Client, request: int, body: m.Store, parts: list[Buffer]) -> None:
        upload = self._uploads.get(body.ticket)
        if upload is None or upload.client is not client:
            raise ProtocolError(f"Store: nothing is being published under ticket {body.ticket}; publish again")
        part = np.frombuffer(parts[1], np.uint8)
        if body.offset % m.PIECE or len(part) != min(m.PIECE, max(0, len(upload.version.memory) - body.offset)):
            raise ProtocolError(f"Store: {len(part)} bytes at {body.offset} are no piece of what is being published")
        upload.version.memory[body.offset : body.offset + len(part)] = part
        upload.pieces[body.offset] = len(part)
        self._send(client, request, m.Done(), [])

    def _seal(self, client: Client, request: int, body: m.Install, parts: list[Buffer]) -> None:
        upload = self._uploads.get(body.ticket)
        if upload is None or upload.client is not client:
            raise ProtocolError(f"Install: nothing is being published under ticket {body.ticket}; publish again")
        del self._uploads[body.ticket]
        came = sum(upload.pieces.values())
        if came != len(upload.version.memory):
            raise ProtocolError(
                f"Install: expected {len(upload.version.memory)} bytes, {came} have come; publish again"
            )
        self._replace(client, request, upload.version)

    def _replace(self, client: Client, request: int, version: _Version) -> None:
        version.number = self._number_of(version.name, version.number)
        self._latest[version.name] = version
        self._send(client, request, m.Published(version.number), [])
        parked = self._waiting.pop(version.name, None)
        for waiting in parked or ():
            if waiting.over:
                continue
            if version.number > waiting.newer_than:
                waiting.over = True
                try:
                    self._give(waiting.client, waiting.request, version)
                except GearError as error:
                    self._refuse(waiting.client, waiting.request, error, 0)
            else:
                self._waiting.setdefault(version.name, deque()).append(waiting)

    # Out

    def _fetch(self, client: Client, request: int, body: m.Fetch, parts: list[Buffer]) -> None:
        version = self._latest.get(body.name)
        if version is not None and version.number > body.newer_than:
            self._give(client, request, version)
            return
        parked = self._waiting.setdefault(body.name, deque())
        # After a break of its connection a client asks again for what it may not have got.
        for same in parked:
            same.over |= same.client is client and same.request == request
        waiting = _Waiting(client, request, body.name, body.newer_than)
        self._waiting[body.name] = deque((*(w for w in parked if not w.over), waiting))
        if body.timeout is not None:
            self._deadlines.add(time.monotonic() + body.timeout, waiting)

    def _give(self, client: Client, request: int, version: _Version) -> None:
        """Tell a reader of a version; one that fits into a piece comes along."""
        rows = version.memory
        if len(rows) <= m.PIECE:
            answer = m.Fetched(version.number, version.entries, 0)
            self._send(client, request, answer, [], self._frames(client, rows), kept=False)
        else:
            ticket = self._ticket(client, self._readings, _Reading(client, version))
            self._send(client, request, m.Fetched(version.number, version.entries, ticket), [])

    def _read(self, client: Client, request: int, body: m.Read, parts: list[Buffer]) -> None:
        reading = self._readings.get(body.ticket)
        if reading is None or reading.client is not client:
            raise ProtocolError(f"Read: nothing is being read under ticket {body.ticket}; fetch again")
        if reading.version is None:
            raise PinLost("the version that was being read made room for newer ones; fetch again")
        rows = reading.version.memory[body.offset : body.offset + body.nbytes]
        if len(rows) != body.nbytes or body.nbytes > m.PIECE:
            raise ProtocolError(f"Read: {body.nbytes} bytes at {body.offset} are no piece of what is being read")
        self._send(client, request, m.Gathered(), [], self._frames(client, rows), kept=False)

    def _frames(self, client: Client, rows: npt.NDArray[np.uint8]) -> list[zmq.Frame]:
        client.sending = [tracker for tracker in client.sending if not tracker.done]
        if client.gathering + len(client.sending) >= MOST_PIECES:
            raise ProtocolError(f"{MOST_PIECES} pieces are under way to this client; take them in before asking again")
        frames = [zmq.Frame(part, copy=False, track=True) for part in split(rows.data)]
        client.sending += [frame.tracker for frame in frames]
        return frames

    def _discard(self, client: Client, request: int, body: m.Discard, parts: list[Buffer]) -> None:
        for of in (self._uploads, self._readings):
            if body.ticket in of and of[body.ticket].client is client:  # type: ignore[attr-defined]
                del of[body.ticket]  # type: ignore[attr-defined]
        self._send(client, request, m.Done(), [])

    # Time, and the end of clients

    @property
    def next_deadline(self) -> float | None:
        """Earliest deadline of a waiting reader, by `time.monotonic()`."""
        return self._deadlines.next

    def expire(self, now: float) -> None:
        """End the waits whose deadline passed."""
        for waiting in self._deadlines.due(now):
            waiting.over = True
            self._leave(waiting.name)
            version = self._latest.get(waiting.name)
            error = DeadlineExceeded(late(waiting.name, waiting.newer_than, version.number if version else None))
            self._refuse(waiting.client, waiting.request, error, 0)

    def forget(self, client: Client) -> None:
        """Drop what a client that is gone was sending, reading or waiting for."""
        self._uploads = {n: upload for n, upload in self._uploads.items() if upload.client is not client}
        self._readings = {n: reading for n, reading in self._readings.items() if reading.client is not client}
        for name, parked in list(self._waiting.items()):
            for waiting in parked:
                waiting.over |= waiting.client is client
            self._leave(name)

    def _leave(self, name: str) -> None:
        """Forget a name that nobody waits for any more: there is no end of names that never come."""
        if all(waiting.over for waiting in self._waiting.get(name, ())):
            self._waiting.pop(name, None)

"""The clients of a shard: who speaks on which connection, what was answered, who fell silent, who is dead.

A client is known by the identity it chose. Its connection may break and come back; the requests it numbers
are then done once, because answers are remembered until it says that it has them. Silence frees nothing of one
that maps the tables: only the free lock of its file proves that it can touch them no more.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from gear.errors import InsufficientMemory, ProtocolError
from gear.transport.door import CLIENTS, NONCE_BYTES, is_held
from gear.transport.lane import Lane
from gear.transport.messages import Hello, Void

if TYPE_CHECKING:
    from gear.server.peer import Peer

MOST_CLIENTS = 4096
MOST_STRANGERS = 1024
"""Connections at most on which nobody has greeted; the oldest gives way, as a client greets at once."""

_EACH = 3
"""Descriptors that a client takes: its connection, its lane, its lock."""

_OURS = 128
"""Descriptors for everything else."""

KEY_BYTES = 16
MOST_ANSWERS = 4096
MOST_ANSWER_BYTES = 1 << 26
"""Bytes of answers that are kept for a client; the oldest beyond that are not found again."""

MOST_WAITING = 1 << 12
"""Requests of one client that wait for an event; it sends a thousand commits ahead at most."""

_FIRST_CHECK, _LONGEST_CHECK = 0.002, 0.25


@dataclass(eq=False, slots=True)
class Client:
    """One client.

    Attributes
    ----------
    route : routing id of its connection, kept after it broke.
    descriptor : of its connection, -1 while it is silent.
    attempt : number of that connection.
    last : highest request number received.
    answers, kept_bytes : by request number, until the client has them; how large they are.
    parked : by request number without an answer yet, what counts its kind's latencies and when it came (ns).
    rows : its number in each table it uses.
    told : (table, pin) it was told to let go of, until it does.
    lock : descriptor of its lock file, None unless it proved shared memory.
    peer : its queue pair, None unless it reads and writes by RDMA.
    lane : where it is spoken to, None unless by its connection.
    key : what opens a lane for its connection, once.
    cut_off : whether its lane ended: answers that were on it must not be overtaken, so it gets none until it is back.
    forgotten : the number below which all answers were dropped.
    gathering, sending : pieces of batches that are being made, and those that are on their way to it.
    untracked : bytes of copied pieces that may be on their way to it since the last of `sending`.
    kept : it was there before this shard was started, and has not said anything since.
    before : requests up to this number may have been done by the shard that died.
    void : what of them was withdrawn.
    granted : those of them for which leases were granted anew.
    """

    identity: bytes
    route: bytes = b""
    descriptor: int = -1
    attempt: int = 0
    last: int = 0
    answers: dict[int, list[bytes]] = field(default_factory=dict)
    kept_bytes: int = 0
    parked: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    told: set[tuple[int, int]] = field(default_factory=set)
    lock: int | None = None
    peer: Peer | None = None
    lane: Lane | None = None
    key: bytes = b""
    cut_off: bool = False
    forgotten: int = 0
    gathering: int = 0
    sending: list[zmq.MessageTracker] = field(default_factory=list)
    untracked: int = 0
    check_at: float = 0.0
    patience: float = _FIRST_CHECK
    kept: bool = False
    before: int = 0
    void: list[Void] = field(default_factory=list)
    granted: set[int] = field(default_factory=set)

    @property
    def reaches(self) -> bool:
        """Whether it may read and write memory of the tables without asking."""
        return self.lock is not None or self.peer is not None

    @property
    def silent(self) -> bool:
        """Whether it has no connection now."""
        return self.descriptor < 0

    def remember(self, request: int, parts: list[bytes]) -> None:
        """Keep an answer for the case that its connection breaks before it arrives."""
        self.answers[request] = parts
        for part in parts:
            self.kept_bytes += len(part)
        while len(self.answers) > MOST_ANSWERS or (self.kept_bytes > MOST_ANSWER_BYTES and len(self.answers) > 1):
            self._drop(next(iter(self.answers)))

    def _drop(self, request: int) -> None:
        for part in self.answers.pop(request):
            self.kept_bytes -= len(part)

    def forget_all(self) -> None:
        """Drop all answers: it never comes back for them."""
        self.answers.clear()
        self.kept_bytes = 0

    def forget_answered(self, answered: int) -> None:
        """Drop the answers below that number."""
        if answered <= self.forgotten:  # a request that waits for long keeps the answers of all later ones
            return
        self.forgotten, answers = answered, self.answers
        if len(answers) == 1:  # as a rule: the one that the last request got
            if next(iter(answers)) < answered:
                answers.clear()
                self.kept_bytes = 0
        elif answers:
            for number in [n for n in answers if n < answered]:
                self._drop(number)


def limits(descriptors: int) -> tuple[int, int]:
    """Most clients and most strangers of a process that may have so many descriptors: it must never run out of them.

    ZeroMQ, and whoever else waits for connections, would turn in a circle.
    """
    strangers = min(MOST_STRANGERS, descriptors // 4)
    return max(1, min(MOST_CLIENTS, (descriptors - strangers - _OURS) // _EACH)), strangers


class Clients:
    """All clients of a shard.

    Parameters
    ----------
    directory : Path
        The shard's directory, which holds the clients' lock files.
    nonce : bytes
        What a client reads there.
    patience : float
        Seconds of silence after which a client that maps no memory is dead.
    era : int
        How often the shard was started before: then clients come back that it does not know.
    most : int
        Of clients that may be there.
    """

    def __init__(self, directory: Path, nonce: bytes, patience: float, era: int = 0, most: int = MOST_CLIENTS) -> None:
        self.era, self._most = era, most
        self._directory, self._nonce, self._patience = directory / CLIENTS, nonce, patience
        self._by_identity: dict[bytes, Client] = {}
        self._by_route: dict[bytes, Client] = {}
        self._by_descriptor: dict[int, Client] = {}
        self._silent: set[Client] = set()
        self.hang_up: Callable[[Client], None] = lambda client: None
        """Called with a client whose connection is no more."""

    def __len__(self) -> int:
        return len(self._by_identity)

    def __iter__(self) -> Iterator[Client]:
        return iter([*self._by_identity.values()])

    def of_lane(self, identity: bytes, attempt: int, key: bytes) -> Client | None:
        """Whose lane it is that was opened with that greeting, and no other from now on; None for a stranger's."""
        client = self._by_identity.get(identity)
        if client is None or client.silent or client.attempt != attempt or not hmac.compare_digest(client.key, key):
            return None
        client.key = b""
        return client

    @property
    def silent(self) -> int:
        """How many have no connection."""
        return len(self._silent)

    def find(self, route: bytes) -> Client | None:
        """The client that speaks on that connection."""
        return self._by_route.get(route)

    def hello(self, hello: Hello, route: bytes, descriptor: int) -> tuple[Client, Client | None, bool] | None:
        """A client greets on a connection.

        Returns it, a client whose connection is thereby known to be gone, and whether it was known before; None
        if the client has since greeted on a later connection.

        Raises
        ------
        InsufficientMemory
            If there are too many.
        """
        client = self._by_identity.get(hello.client)
        resumed = client is not None or (self.era > 0 and hello.attempt > 1)
        if client is not None and hello.attempt <= client.attempt:
            return None
        gone = self.lost(descriptor)
        if client is None:
            if len(self) >= self._most:
                raise InsufficientMemory(
                    f"the server has {self._most} clients, the most it can have; close some, or raise its limit "
                    f"of open files (ulimit -n) if that is below {MOST_CLIENTS}"
                )
            client = self._by_identity[hello.client] = Client(hello.client, kept=resumed)
        self._leave_route(client)
        self._by_descriptor.pop(client.descriptor, None)
        self._silent.discard(client)
        self.hang_up(client)
        client.attempt, client.patience, client.cut_off = hello.attempt, _FIRST_CHECK, False
        client.key = secrets.token_bytes(KEY_BYTES)
        if client.kept:
            client.before, client.void = hello.sent, hello.void
        client.route, client.descriptor = route, descriptor
        self._by_route[route] = self._by_descriptor[descriptor] = client
        return client, gone if gone is not client else None, resumed

    def _leave_route(self, client: Client) -> None:
        if self._by_route.get(client.route) is client:  # another one may have greeted on the same connection since
            del self._by_route[client.route]

    def attach(self, client: Client, nonce: bytes) -> None:
        """A client proves that it shares memory and holds its lock.

        Raises
        ------
        ProtocolError
            If it does not.
        """
        if client.lock is not None:
            return
        if not hmac.compare_digest(nonce, self._nonce):
            raise ProtocolError("attach: the nonce is not the one in this shard's shared memory")
        try:
            lock = os.open(self._directory / client.identity.hex(), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ProtocolError(f"attach: expected a lock file of the client: {error.strerror}") from None
        if not is_held(lock):
            os.close(lock)
            raise ProtocolError("attach: the client's lock file is not locked")
        client.lock = lock

    def keep(self, identity: bytes, rows: dict[int, int]) -> Client | None:
        """A client of before this shard was started, with its numbers in the tables; None if it is dead for certain.

        One that holds no lock may map nothing and come back.
        """
        path = self._directory / identity.hex()
        client = Client(identity, rows=rows, kept=True)
        with contextlib.suppress(OSError):
            client.lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            if not is_held(client.lock):
                os.close(client.lock)
                path.unlink(missing_ok=True)
                return None
        client.check_at = time.monotonic() + self._patience if client.lock is None else 0.0
        self._by_identity[identity] = client
        self._silent.add(client)
        return client

    @property
    def locked(self) -> list[bytes]:
        """Identities of those that have a lock file."""
        return [bytes.fromhex(path.name) for path in self._directory.iterdir() if len(path.name) == 2 * NONCE_BYTES]

    def lost(self, descriptor: int) -> Client | None:
        """A connection is gone; the client that spoke on it has fallen silent."""
        client = self._by_descriptor.pop(descriptor, None)
        if client is not None:
            client.descriptor = -1
            self.hang_up(client)
            # One that maps nothing can do no harm, and may come back for its answers.
            client.check_at = time.monotonic() + self._patience if client.lock is None else 0.0
            self._silent.add(client)
        return client

    def remove(self, client: Client) -> None:
        """Forget a client that can touch nothing any more."""
        self.hang_up(client)
        self._by_identity.pop(client.identity, None)
        self._leave_route(client)
        if self._by_descriptor.get(client.descriptor) is client:
            del self._by_descriptor[client.descriptor]
        self._silent.discard(client)
        if client.lock is not None:
            os.close(client.lock)
            client.lock = None
        client.forget_all()  # whoever still knows it, as a deadline that is over does for a while, keeps no more
        (self._directory / client.identity.hex()).unlink(missing_ok=True)

    def dead(self, now: float) -> list[Client]:
        """Silent clients found dead; looks at those whose turn it is."""
        found = []
        for client in self._silent:
            if client.check_at > now:
                continue
            if client.lock is None or not is_held(client.lock):
                found.append(client)
            else:
                client.check_at = now + client.patience
                client.patience = min(2 * client.patience, _LONGEST_CHECK)
        return found

    def next_check(self) -> float | None:
        """`time.monotonic()` at which `dead` has something to look at."""
        return min((client.check_at for client in self._silent), default=None)

    def close(self) -> None:
        """Close the lock files."""
        for client in self._by_identity.values():
            if client.lock is not None:
                os.close(client.lock)

"""The lanes of a shard: clients on its host speak over Unix sockets, as what they are on their ZeroMQ connection.

That connection greets, proves and lives; when it breaks the lane ends with it. Whoever names a client's identity and
the number of its connection is that client: the socket is the server's user's alone, and identities are secret.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import time
from typing import TYPE_CHECKING

from gear.transport.lane import GREETING, Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gear.server.clients import Client, Clients
    from gear.transport.channel import Buffer

logger = logging.getLogger(__name__)

MOST_UNSENT = 1 << 28
"""Bytes of answers that a client leaves unread before its lane ends; it may come back and ask for them."""

MOST_KEPT = 1 << 16
"""The same in pieces, each of which costs memory beside its bytes."""

_ROUND = 64
"""Messages of one client that are handled before another's turn."""

_STRANGERS = 256
"""Lanes at most on which nobody has said who he is; the oldest gives way, as a client says it at once."""

_CALLS = 64
"""Lanes that are taken in before those that speak have their turn."""

_AGAIN = 0.1
"""Seconds after which lanes are taken in again that the process had no descriptor for, when anything happens."""

_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Lanes:
    """Listens, takes in what comes, and knows whose lane is whose.

    Parameters
    ----------
    path : Path
        Of the socket.
    clients : Clients
    handle : (Client, parts) -> None
        Called with each message.
    poll : select.epoll
        Where descriptors are waited for; `hear` is told of those that it knows.
    """

    def __init__(
        self, path: Path, clients: Clients, handle: Callable[[Client, list[Buffer]], None], poll: select.epoll
    ) -> None:
        self._clients, self._handle, self._poll = clients, handle, poll
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        os.chmod(path, 0o600)
        self._listener.listen(1024)
        self.listening = self._listener.fileno()
        self._strangers: dict[int, Lane] = {}
        self._known: dict[int, tuple[Lane, Client]] = {}
        self._left: set[int] = set()
        self._more = 0.0  # when to take in lanes that have not been, 0 if there are none
        # Once for each that comes: while there is no descriptor for it nothing would be gained by being told of it.
        poll.register(self.listening, select.EPOLLIN | select.EPOLLET)

    @property
    def busy(self) -> bool:
        """Whether messages that have arrived wait for `resume`."""
        return bool(self._left) or (self._more > 0.0 and time.monotonic() >= self._more)

    def hear(self, descriptor: int, events: int) -> bool:
        """Do what a descriptor signals; False if it is no lane."""
        known = self._known.get(descriptor)
        if known is not None:
            lane, client = known
            if events & select.EPOLLOUT:
                self._flush(lane, client)
            self._receive(lane, client)
        elif descriptor == self.listening:
            self._accept()
        elif descriptor in self._strangers:
            self._introduce(self._strangers[descriptor])
        else:
            return False
        return True

    def resume(self) -> None:
        """Go on with the lanes whose turn was over, and with those that were not taken in."""
        if self._more and time.monotonic() >= self._more:
            self._accept()
        for descriptor in [*self._left]:
            if descriptor in self._known:
                self._receive(*self._known[descriptor])
        self._left &= self._known.keys()

    def _accept(self) -> None:
        for _ in range(_CALLS):
            try:
                lane = Lane(self._listener.accept()[0])
            except OSError as error:
                if error.errno in _SHORT:
                    self._run_short(error)
                else:
                    self._more = 0.0
                return
            if len(self._strangers) >= _STRANGERS:
                self._drop(self._strangers.pop(next(iter(self._strangers))))
            self._strangers[lane.descriptor] = lane
            self._poll.register(lane.descriptor, select.EPOLLIN)
            self._introduce(lane)
        self._more = time.monotonic()

    def _run_short(self, error: OSError) -> None:
        """There is no descriptor for who calls: it waits, and strangers give way."""
        if not self._more:
            logger.warning("cannot take in a client's lane: %s; raise the limit of open files", error.strerror)
        self._more = time.monotonic() + _AGAIN
        while self._strangers:
            self._drop(self._strangers.pop(next(iter(self._strangers))))

    def _introduce(self, lane: Lane) -> None:
        """Read who speaks on a new lane."""
        greeting = lane.read(GREETING.size)
        if not greeting and not lane.broken:
            return
        del self._strangers[lane.descriptor]
        client = None
        if len(greeting) == GREETING.size:  # written in one piece
            identity, attempt = GREETING.unpack(greeting)
            client = self._clients.named(identity)
            if client is not None and (client.silent or client.attempt != attempt or client.lock is None):
                client = None
        if client is None:
            self._drop(lane)
            return
        self.leave(client)
        client.lane = lane
        self._known[lane.descriptor] = lane, client
        self._receive(lane, client)

    def _receive(self, lane: Lane, client: Client) -> None:
        handle = self._handle
        for _ in range(_ROUND):
            parts = lane.receive()
            if parts is None:
                self._left.discard(lane.descriptor)
                break
            handle(client, parts)
        else:
            self._left.add(lane.descriptor)
        if lane.broken:
            self._end(lane, client)

    def send(self, client: Client, lane: Lane, parts: Sequence[Buffer]) -> None:
        """Send an answer over a client's lane."""
        waited = lane.unsent
        lane.send(parts)
        if lane.unsent > MOST_UNSENT or lane.kept > MOST_KEPT:
            lane.broken = True
        if lane.broken:
            self._end(lane, client)
        elif lane.unsent and not waited:
            self._poll.modify(lane.descriptor, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, lane: Lane, client: Client) -> None:
        lane.flush()
        if not lane.unsent and not lane.broken:
            self._poll.modify(lane.descriptor, select.EPOLLIN)

    def leave(self, client: Client) -> None:
        """A client's connection is gone, or it is itself: its lane ends."""
        if client.lane is not None:
            self._end(client.lane, client)

    def _end(self, lane: Lane, client: Client) -> None:
        if client.lane is not lane:
            return  # it has ended, and its descriptor may be another's
        client.lane, client.cut_off = None, True
        del self._known[lane.descriptor]
        self._left.discard(lane.descriptor)
        self._drop(lane)

    def _drop(self, lane: Lane) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._poll.unregister(lane.descriptor)
        lane.close()

    def close(self) -> None:
        """End everything."""
        for lane in [*self._strangers.values(), *(lane for lane, _ in self._known.values())]:
            lane.close()
        self._listener.close()

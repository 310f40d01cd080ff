"""The lanes of a shard: streams that clients open beside their ZeroMQ connection, and what goes over them.

That connection greets, proves and lives; when it breaks the lane ends with it. On it the client gets the key that opens
its lane, once. Clients of this host come by a Unix socket, others over TCP; who says nothing costs nobody anything.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import time
from typing import TYPE_CHECKING, cast

from gear.server.flows import Flow, Flows
from gear.transport.lane import GREETING, Lane
from gear.transport.messages import CUT

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
        Of the socket for clients of this host.
    host : str, optional
        Where others are listened for, on any free port; nowhere if None, as where everything must be encrypted.
    clients : Clients
    welcome : Client -> None
        Called when its lane is there, to be the first to say something on it.
    handle : (Client, parts) -> None
        Called with each message.
    poll : select.epoll
        Where descriptors are waited for; `hear` is told of those that it knows.
    wake : () -> None
        Called from a thread when `finish` has something to do.

    Attributes
    ----------
    port : where others are listened for, 0 for nowhere.
    """

    def __init__(
        self,
        path: Path,
        host: str | None,
        clients: Clients,
        welcome: Callable[[Client], None],
        handle: Callable[[Client, list[Buffer]], None],
        poll: select.epoll,
        wake: Callable[[], None],
    ) -> None:
        self._clients, self._welcome, self._handle, self._poll = clients, welcome, handle, poll
        self._listeners = [_at_path(path)] + ([] if host is None else [_at_host(host)])
        self.port: int = 0 if host is None else self._listeners[1].getsockname()[1]
        self._listening = {listener.fileno(): listener for listener in self._listeners}
        self._strangers: dict[int, Lane] = {}
        self._known: dict[int, tuple[Lane, Client]] = {}
        self._left: set[int] = set()
        self._flows = Flows(wake)
        self._more: dict[socket.socket, float] = {}
        """Listeners that somebody may still wait at, and when to look again."""
        for listener in self._listeners:
            listener.setblocking(False)
            listener.listen(1024)
            # Once for each that comes: while there is no descriptor for it nothing would be gained by being told of it.
            poll.register(listener.fileno(), select.EPOLLIN | select.EPOLLET)

    @property
    def busy(self) -> bool:
        """Whether messages that have arrived wait for `resume`."""
        return bool(self._left) or bool(self._more and time.monotonic() >= min(self._more.values()))

    def hear(self, descriptor: int, events: int) -> bool:
        """Do what a descriptor signals; False if it is no lane."""
        known = self._known.get(descriptor)
        if known is not None:
            lane, client = known
            if events & select.EPOLLOUT:
                self._flush(lane, client)
            self._receive(lane, client)
        elif descriptor in self._listening:
            self._accept(self._listening[descriptor])
        elif descriptor in self._strangers:
            self._introduce(self._strangers[descriptor])
        else:
            return False
        return True

    def resume(self) -> None:
        """Go on with the lanes whose turn was over, and with those that were not taken in."""
        if self._more:
            now = time.monotonic()
            for listener in [one for one, when in self._more.items() if now >= when]:
                self._accept(listener)
        for descriptor in [*self._left]:
            if descriptor in self._known:
                self._receive(*self._known[descriptor])
        self._left &= self._known.keys()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_CALLS):
            try:
                lane = Lane(listener.accept()[0])
            except BlockingIOError:
                self._more.pop(listener, None)
                return
            except OSError as error:
                if error.errno in _SHORT:
                    self._run_short(listener, error)
                    return
                continue  # who called has hung up; nobody tells of those behind
            if len(self._strangers) >= _STRANGERS:
                self._drop(self._strangers.pop(next(iter(self._strangers))))
            self._strangers[lane.descriptor] = lane
            self._poll.register(lane.descriptor, select.EPOLLIN)
            self._introduce(lane)
        self._more[listener] = time.monotonic()

    def _run_short(self, listener: socket.socket, error: OSError) -> None:
        """There is no descriptor for who calls: it waits, and strangers give way."""
        if listener not in self._more:
            logger.warning("cannot take in a client's lane: %s; raise the limit of open files", error.strerror)
        self._more[listener] = time.monotonic() + _AGAIN
        while self._strangers:
            self._drop(self._strangers.pop(next(iter(self._strangers))))

    def _introduce(self, lane: Lane) -> None:
        """Read who speaks on a new lane."""
        greeting = lane.read(GREETING.size)
        if not greeting and not lane.broken:
            return
        del self._strangers[lane.descriptor]
        # Written in one piece, it comes in one.
        client = self._clients.of_lane(*GREETING.unpack(greeting)) if len(greeting) == GREETING.size else None
        if client is None:
            self._drop(lane)
            return
        self.leave(client)
        client.lane = lane
        self._known[lane.descriptor] = lane, client
        self._welcome(client)
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

    # Out

    def send(self, client: Client, lane: Lane, parts: Sequence[Buffer], flow: Flow | None = None) -> None:
        """Send an answer over a client's lane; rows that are gathered on their way last."""
        if flow is None:
            lane.send(parts)
        else:
            lane.send_flow(parts, flow, len(CUT))
            if lane.flow is flow:  # nothing is before it
                self._go_on(lane)
        if lane.unsent or lane.waits or lane.broken:
            self._look_after(lane, client)

    def _flush(self, lane: Lane, client: Client) -> None:
        lane.flush()
        if lane.flow is not None:
            self._go_on(lane)
        self._look_after(lane, client)

    def _go_on(self, lane: Lane) -> None:
        """Send the flow that is next, and what is behind it."""
        while not (lane.lent or lane.broken) and (flow := lane.flow) is not None:
            self._flows.start(lane, cast("Flow", flow))
            if not lane.lent and not lane.broken:
                lane.flowed()
                lane.flush()

    def finish(self) -> None:
        """Go on with the lanes whose flows threads have sent."""
        for lane in self._flows.finished():
            lane.lent = False
            known = self._known.get(lane.descriptor)
            if known is None or known[0] is not lane:  # it has ended meanwhile
                lane.close()
            elif lane.broken:  # what is behind the flow would be taken for its rows
                self._look_after(*known)
            else:
                lane.flowed()
                self._flush(*known)

    def _look_after(self, lane: Lane, client: Client) -> None:
        """Hear of it when there is room for what is unsent; end a lane that is broken or not read."""
        if lane.unsent > MOST_UNSENT or lane.kept > MOST_KEPT:
            lane.broken = True
        if lane.broken:
            self._end(lane, client)
        elif (lane.unsent > 0 and not lane.lent) is not lane.waits:
            lane.waits = not lane.waits
            self._poll.modify(lane.descriptor, select.EPOLLIN | select.EPOLLOUT if lane.waits else select.EPOLLIN)

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
        if lane.lent:  # closed by `finish`: the thread must not write to another's descriptor
            lane.hang_up()
        else:
            lane.close()

    def close(self) -> None:
        """End everything."""
        lanes = [*self._strangers.values(), *(lane for lane, _ in self._known.values())]
        for lane in lanes:
            if lane.lent:
                lane.hang_up()
        for lane in [*lanes, *self._flows.close()]:
            lane.close()
        for listener in self._listeners:
            listener.close()


def _at_path(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    os.chmod(path, 0o600)
    return listener


def _at_host(host: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((host, 0))
    return listener

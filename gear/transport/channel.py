"""One connection from a client to a shard: a DEALER socket and the monitor that tells when it broke.

A channel connects once and never again by itself: whoever owns it opens another one and decides what is
sent anew, so that nothing is ever sent twice behind the owner's back. Its calls never wait; callers hold
the owner's lock, only `wait` may run without it.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from typing import TYPE_CHECKING

import zmq

from gear.transport.keys import secure
from gear.transport.messages import MAX_FRAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gear.transport.keys import ClientKeys
    from gear.transport.lane import Lane

Buffer = bytes | memoryview
"""Part of a message; a memoryview is bulk, which is sent and received without a copy."""

HANDSHAKE_MS = 5000
NEVER_MS = 3_600_000
"""Until a broken socket would connect again by itself; it is closed as soon as the break is noticed."""

BULK = 1 << 14
"""Bytes from which a received part is handed on where ZeroMQ has put it."""

_BROKEN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)  # as enumerations they cost ten times the call

_context: zmq.Context | None = None
_guard = threading.Lock()
_inherited: list[object] = []


def context() -> zmq.Context:
    """The context of this process; never the parent's, whose I/O thread a fork does not copy."""
    global _context
    with _guard:
        if _context is None:
            _context = zmq.Context()
        return _context


def _after_fork() -> None:
    global _context, _guard
    _inherited.append(_context)  # kept, so that nothing of the parent's is closed by the child
    _context, _guard = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received now; also takes note of what the socket's descriptor signalled."""
    return socket.getsockopt(_EVENTS) & _POLLIN != 0  # type: ignore[operator]


def receive_parts(socket: zmq.Socket[bytes], bulk: bool) -> list[Buffer]:
    """The parts of the next message; large ones as memoryviews of ZeroMQ's own memory where `bulk` may come.

    Raises
    ------
    zmq.Again
        If there is none.
    """
    if not bulk:  # parts as objects cost a control message a microsecond each
        return socket.recv_multipart(zmq.NOBLOCK)  # type: ignore[return-value]
    frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
    return [frame.bytes if len(frame) < BULK else frame.buffer for frame in frames]


class Channel:
    """A connection to `endpoint`.

    Parameters
    ----------
    endpoint : str
        ``ipc://...`` or ``tcp://...``.
    heartbeat : float
        Seconds of silence after which the connection counts as broken.
    bell : int
        Descriptor of an eventfd that ends `wait`.
    bulk : bool
        Whether bulk may come.
    keys : ClientKeys, optional
        With which a connection over TCP is encrypted.
    """

    def __init__(
        self, endpoint: str, heartbeat: float, bell: int, bulk: bool = False, keys: ClientKeys | None = None
    ) -> None:
        self.endpoint, self._bulk = endpoint, bulk
        self._socket: zmq.Socket[bytes] = context().socket(zmq.DEALER)
        s = self._socket
        s.linger = 0
        # Not -1: libzmq then ends the endpoint from its I/O thread, which can meet a pipe that is gone already when the
        # socket is closed at that moment, and aborts the process (libzmq issue 2780).
        s.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        s.setsockopt(zmq.SNDHWM, 0)
        s.setsockopt(zmq.RCVHWM, 0)
        s.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
        s.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        s.setsockopt(zmq.HEARTBEAT_IVL, max(1, int(heartbeat * 1000 / 3)))
        s.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(1, int(heartbeat * 1000)))
        self._monitor = s.get_monitor_socket(_BROKEN)
        # A monitored socket that is closed while nobody receives its events blocks the I/O thread of the whole
        # process: what is dropped without `close` must not leave that to the order in which objects die.
        self._closing = weakref.finalize(self, _close, s, self._monitor)
        self._closing.atexit = False
        self._bell = bell
        self._poll = select.poll()
        self._monitor_descriptor: int = self._monitor.fd
        self._socket_descriptor = int(s.fd)
        self.descriptors: tuple[int, ...] = (self._socket_descriptor, self._monitor_descriptor)
        for descriptor in (*self.descriptors, bell):
            self._poll.register(descriptor, select.POLLIN)
        secure(s, endpoint, keys)
        s.connect(endpoint)
        # A socket's descriptor signals only what comes after somebody has found nothing.
        self._broken = readable(self._monitor)
        self.lane: Lane | None = None
        self._signalled = False

    def take(self, lane: Lane) -> None:
        """Send by that lane from now on; what comes over it is heard at once, what comes by ZeroMQ when it signals."""
        self.lane = lane
        self.descriptors = (*self.descriptors, lane.descriptor)
        self._poll.register(lane.descriptor, select.POLLIN)
        self._signalled = True

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Queue a message; the memory of its bulk must stay as it is until the message is answered.

        Returns whether something waits for `receive` or `wait` to send it.
        """
        if self.lane is not None:
            self.lane.send(parts)
            return self.lane.unsent > 0
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=type(parts[-1]) is bytes)
        except zmq.ZMQError:
            self._broken = True
        return False

    def receive(self) -> list[Buffer] | None:
        """The next message, None if there is none now."""
        lane = self.lane
        if lane is not None:
            if lane.unsent:
                lane.flush()
            if (parts := lane.receive()) is not None or not self._signalled:
                return parts
        if not readable(self._socket):
            self._signalled = False
            return None
        try:
            return receive_parts(self._socket, self._bulk or lane is not None)
        except zmq.Again:
            return None

    def forget(self, into: Sequence[memoryview]) -> None:
        """Have nothing come there any more."""
        if self.lane is not None:
            self.lane.forget(into)

    @property
    def lane_broken(self) -> bool:
        """Whether there is a lane that is known to be gone."""
        return self.lane is not None and self.lane.broken

    def heed(self) -> None:
        """Have `receive` look for what came by ZeroMQ, whether or not somebody was told that there is something."""
        self._signalled = True

    @property
    def broken(self) -> bool:
        """Whether the connection is known to be gone."""
        if not self._broken and (readable(self._monitor) or self.lane_broken):
            self._broken = True
        return self._broken

    def wait(self, seconds: float) -> bool:
        """Sleep until something may have arrived, the connection broke or the bell rang; whether to ask `broken`.

        One thread at a time.
        """
        lane, poll, ask = self.lane, self._poll, False
        stuck = lane is not None and lane.unsent > 0
        if lane is not None and lane.broken:
            return True
        if lane is not None and stuck:
            poll.modify(lane.descriptor, select.POLLIN | select.POLLOUT)
        for descriptor, _ in poll.poll(min(seconds, 3600.0) * 1000):
            if descriptor == self._bell:
                try:
                    os.eventfd_read(descriptor)
                except BlockingIOError:
                    pass
            elif descriptor == self._monitor_descriptor:
                ask = True
            elif descriptor == self._socket_descriptor:
                self._signalled = True
        if lane is not None and stuck:
            poll.modify(lane.descriptor, select.POLLIN)
        return ask

    def close(self) -> None:
        """Drop the connection and what is still queued; `wait` then hears nothing but the bell."""
        lane, self.lane = self.lane, None
        if lane is not None:
            lane.close()
        self._poll = select.poll()  # closed descriptors would end every sleep at once
        self._poll.register(self._bell, select.POLLIN)
        self._closing()


def _close(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    if not socket.closed:
        socket.disable_monitor()
    monitor.close(0)
    socket.close(0)

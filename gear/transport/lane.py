"""Messages between a client and a shard, straight from socket to socket: what both ends of a lane do.

ZeroMQ keeps the connection (greetings, heartbeats), but each of its messages passes an I/O thread at either end: four
threads have to be woken for a request and its answer, and rows are copied once more. Over a lane, a stream socket, it
is two, and rows go straight to where they are wanted. A message is ``<QI`` (bytes of its parts, their number), the
length of each part as ``<I``, and the parts. Nothing here waits: what the kernel does not take is kept and sent by
`flush`. The owner serialises the calls.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Protocol

from gear.transport.arriving import NOWHERE, Arriving, Destination
from gear.transport.channel import BULK
from gear.transport.messages import MAX_FRAME, MAX_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gear.transport.channel import Buffer

LANE = "lane"
"""The name of the socket in a shard's directory."""

GREETING = struct.Struct("<16sq16s")
"""First on a lane: the client's identity, the number of the connection that it greeted on, the key it got there."""

MOST_PARTS = 1 << 13

LARGE = 1 << 16
"""Bytes from which a message is received part by part, each in memory of its own."""

_ROOM = 1 << 16
_JOINED = 1 << 16
"""Bytes up to which a message is copied into one piece: cheaper than telling the kernel of several."""

_BUFFER = 1 << 20
_TCP = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # What lies between may forget a connection that is idle; heartbeats keep only that of ZeroMQ.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 40_000),
)
"""Options of a lane over TCP, so that one that leads nowhere breaks within a minute."""

_HEAD, _ONE, _TWO = struct.Struct("<QI"), struct.Struct("<QII"), struct.Struct("<QIII")


class Flow(Protocol):
    """A part of a message that is made while it is sent, by whoever owns the lane."""

    nbytes: int


class Lane:
    """One end of a lane.

    Parameters
    ----------
    connected : socket.socket
        A stream socket; it is the lane's from now on.
    destination : see `arriving.Destination`

    Attributes
    ----------
    descriptor : of the socket.
    broken : whether the other end is gone, or sent what is no message.
    unsent : bytes that the kernel has not taken yet, without flows.
    lent : somebody else sends the flow at the head of what is kept, so nothing is sent here.
    waits : whether its owner waits for room in the kernel.
    """

    def __init__(self, connected: socket.socket, destination: Destination = NOWHERE) -> None:
        connected.setblocking(False)
        if connected.family == socket.AF_UNIX:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        else:  # the kernel finds the best size of its buffers
            for level, option, value in _TCP:
                connected.setsockopt(level, option, value)
        self.socket, self.descriptor = connected, connected.fileno()
        self.broken = self.lent = self.waits = False
        self.unsent = self.flows = 0
        self.push: Callable[[Buffer], int] = connected.send
        """Hands bytes to the kernel; returns how many it took."""
        self._recv, self._destination = connected.recv, destination
        self._out: deque[memoryview | Flow] = deque()
        self._in = b""
        self._arriving: Arriving | None = None
        self._came: deque[list[Buffer]] = deque()
        self._emptied = False

    @property
    def kept(self) -> int:
        """In how many pieces what is unsent is kept."""
        return len(self._out)

    # Out

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a message, or keep what there is no room for; its memory must stay as it is until it is answered."""
        count = len(parts)
        if count == 1:
            total = len(parts[0])
            head = _ONE.pack(total, 1, total)
        elif count == 2:
            first, second = len(parts[0]), len(parts[1])
            total = first + second
            head = _TWO.pack(total, 2, first, second)
        else:
            total, head = _head([len(part) for part in parts])
        if total <= _JOINED:
            self.send_bytes(b"".join((head, *parts)))
        else:
            self._keep(head)
            for part in parts:
                self._keep(part)
            self.flush()

    def send_flow(self, parts: Sequence[Buffer], flow: Flow, last: int) -> None:
        """Send a message that ends with a flow: one part, and another of `last` bytes."""
        self.send_bytes(b"".join((_head([*map(len, parts), flow.nbytes - last, last])[1], *parts)))
        self._out.append(flow)
        self.flows += 1

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        if not self._out:
            try:
                sent = self.push(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.broken = True
                return
            if sent == len(data):
                return
            self._keep(memoryview(data)[sent:])
        else:
            self._keep(data)
            self.flush()

    def _keep(self, part: Buffer) -> None:
        view = memoryview(part).cast("B") if len(part) else memoryview(b"")
        if len(view):
            self._out.append(view)
            self.unsent += len(view)

    def flush(self) -> None:
        """Send what was kept, as far as there is room now and no flow comes first."""
        out = self._out
        try:
            while views := self._next():
                sent = self.socket.sendmsg(views)
                self.unsent -= sent
                for view in views:
                    if sent < len(view):
                        out[0] = view[sent:]
                        break
                    sent -= len(view)
                    out.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True

    def _next(self) -> list[memoryview]:
        """What is kept before the next flow, as much as one call of the kernel takes."""
        if self.lent:
            return []
        if not self.flows:
            return list(islice(self._out, 64))  # type: ignore[arg-type]
        return list(takewhile(lambda one: type(one) is memoryview, islice(self._out, 64)))  # type: ignore[arg-type]

    @property
    def flow(self) -> Flow | None:
        """The flow that is to be sent next."""
        return None if not self.flows or type(self._out[0]) is memoryview else self._out[0]  # type: ignore[return-value]

    def flowed(self) -> None:
        """That flow was sent whole."""
        self._out.popleft()
        self.flows -= 1

    # In

    def receive(self) -> list[Buffer] | None:
        """The next message, None if there is none now."""
        came = self._came
        if came:
            return came.popleft()
        if self._emptied:  # the read before took everything there was: whoever asks once more has been told
            self._emptied = False
            return None
        while not self.broken:
            if self._arriving is not None:
                return self._go_on(self._arriving)
            data = self.read()
            if not data:
                return None
            self._take(data)
            if came:
                self._emptied = len(data) < _ROOM and self._arriving is None
                return came.popleft()
        return None

    def read(self, most: int = _ROOM) -> bytes:
        """Bytes that have arrived, none if there are none now."""
        try:
            data = self._recv(most)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.broken = True
        return data

    def _go_on(self, arriving: Arriving) -> list[Buffer] | None:
        """Take in more of a large message; the message when it is whole."""
        try:
            if not arriving.receive(self.socket):
                return None
        except OSError:
            self.broken = True
            return None
        self._arriving = None
        return arriving.parts

    def forget(self, into: Sequence[memoryview]) -> None:
        """Nobody wants rows there any more: what is still to come of them goes nowhere."""
        if self._arriving is not None:
            self._arriving.forget(into)

    def _take(self, data: bytes) -> None:
        """Cut what has arrived into messages."""
        if self._in:
            data = self._in + data
            self._in = b""
        at, end = 0, len(data)
        while end - at >= _ONE.size:
            total, count, first = _ONE.unpack_from(data, at)
            start = at + _HEAD.size + 4 * count
            if not 1 <= count <= MOST_PARTS or total > min(count * MAX_FRAME, MAX_MESSAGE + MAX_FRAME):
                self.broken = True
                return
            if start + total > end and (total < LARGE or start > end):
                break
            if count == 1 and first == total < BULK:
                self._came.append([data[start : start + total]])
            elif count == 2 and first <= total < BULK and _TWO.unpack_from(data, at)[3] == total - first:
                self._came.append([data[start : start + first], data[start + first : start + total]])
            else:
                sizes = struct.unpack_from(f"<{count}I", data, at + _HEAD.size)
                if sum(sizes) != total or max(sizes) > MAX_FRAME:
                    self.broken = True
                    return
                if start + total > end:  # a large one
                    self._arriving = Arriving(sizes, data[start:], self._destination)
                    return
                self._came.append(_cut(data, start, sizes))
            at = start + total
        if at < end:
            self._in = data[at:]

    def hang_up(self) -> None:
        """End the connection, and keep the descriptor until `close`: whoever it is lent to is told.

        What came and nobody took is dropped at once.
        """
        self.broken = True
        self._came.clear()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Drop the lane, what is still kept and what came and nobody took."""
        self.broken = True
        self._came.clear()
        self._out.clear()
        self._arriving = None
        self.unsent = self.flows = 0
        self.socket.close()


def _head(sizes: Sequence[int]) -> tuple[int, bytes]:
    total = sum(sizes)
    return total, _HEAD.pack(total, len(sizes)) + struct.pack(f"<{len(sizes)}I", *sizes)


def _cut(data: bytes, at: int, sizes: tuple[int, ...]) -> list[Buffer]:
    parts: list[Buffer] = []
    for size in sizes:
        parts.append(data[at : at + size] if size < BULK else memoryview(data)[at : at + size])
        at += size
    return parts

"""Messages between two processes of one host, straight from socket to socket: what both ends of a lane do.

ZeroMQ keeps the connection (greetings, heartbeats, bulk), but each of its messages passes an I/O thread at either end:
four threads have to be woken for a request and its answer. Over a lane, a connected Unix stream socket, it is two.
A message is ``<QI`` (bytes of its parts, their number), the length of each part as ``<I``, and the parts. Nothing here
waits: what the kernel does not take is kept and sent by `flush`. The owner serialises the calls.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from gear.transport.channel import BULK
from gear.transport.messages import MAX_FRAME, MAX_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gear.transport.channel import Buffer

LANE = "lane"
"""The name of the socket in a shard's directory."""

GREETING = struct.Struct("<16sq")
"""First on a lane: the client's identity, and the number of the connection that it greeted on."""

MOST_PARTS = 1 << 13

_ROOM = 1 << 16
_JOINED = 1 << 15
"""Bytes up to which a message is copied into one piece: cheaper than telling the kernel of several."""

_BUFFER = 1 << 20
_HEAD, _ONE, _TWO = struct.Struct("<QI"), struct.Struct("<QII"), struct.Struct("<QIII")


class Lane:
    """One end of a lane.

    Parameters
    ----------
    connected : socket.socket
        A Unix stream socket; it is the lane's from now on.

    Attributes
    ----------
    descriptor : of the socket.
    broken : whether the other end is gone, or sent what is no message.
    unsent : bytes that the kernel has not taken yet.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self.socket, self.descriptor = connected, connected.fileno()
        self.broken = False
        self.unsent = 0
        self._send, self._recv = connected.send, connected.recv
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self._missing = 0  # bytes until there can be a whole message, as far as is known
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
            sizes = [len(part) for part in parts]
            total = sum(sizes)
            head = _HEAD.pack(total, count) + struct.pack(f"<{count}I", *sizes)
        if total <= _JOINED:
            self.send_bytes(b"".join((head, *parts)))
        else:
            self._keep(head)
            for part in parts:
                self._keep(part)
            self.flush()

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        if not self.unsent:
            try:
                sent = self._send(data)
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
        """Send what was kept, as far as there is room now."""
        out = self._out
        try:
            while out:
                sent = self.socket.sendmsg(list(islice(out, 64)))
                self.unsent -= sent
                while out and sent >= len(out[0]):
                    sent -= len(out.popleft())
                if sent:
                    out[0] = out[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True

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
            data = self.read()
            if not data:
                return None
            self._take(data)
            if came:
                self._emptied = len(data) < _ROOM
                return came.popleft()
        return None

    def read(self, most: int = 0) -> bytes:
        """Bytes that have arrived, none if there are none now."""
        try:
            data = self._recv(most or max(_ROOM, min(self._missing, 1 << 22)))
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.broken = True
        return data

    def _take(self, data: bytes) -> None:
        """Cut what has arrived into messages."""
        if self._in:
            self._in += data
            if len(data) < self._missing:
                self._missing -= len(data)
                return
            data = bytes(self._in)
            self._in = bytearray()
        at, end = 0, len(data)
        self._missing = 0
        while end - at >= _ONE.size:
            total, count, first = _ONE.unpack_from(data, at)
            start = at + _HEAD.size + 4 * count
            if not 1 <= count <= MOST_PARTS or total > min(count * MAX_FRAME, MAX_MESSAGE + MAX_FRAME):
                self.broken = True
                return
            if start + total > end:
                self._missing = start + total - end
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
                self._came.append(_cut(data, start, sizes))
            at = start + total
        if at < end:
            self._in += data[at:] if at else data

    def close(self) -> None:
        """Drop the lane, what is still kept and what came and nobody took."""
        self.broken = True
        self._came.clear()
        self._out.clear()
        self.unsent = 0
        self.socket.close()


def _cut(data: bytes, at: int, sizes: tuple[int, ...]) -> list[Buffer]:
    parts: list[Buffer] = []
    for size in sizes:
        parts.append(data[at : at + size] if size < BULK else memoryview(data)[at : at + size])
        at += size
    return parts


def connect(path: str, identity: bytes, attempt: int) -> Lane | None:
    """A lane to the shard whose socket this is; None if there cannot be one now."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.connect(path)
    except OSError:
        one.close()
        return None
    lane = Lane(one)
    lane.send_bytes(GREETING.pack(identity, attempt))
    return lane

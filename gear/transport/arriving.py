"""A large message on its way in over a lane: each part goes into memory of its own, rows to where they are wanted."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from gear.transport.channel import BULK, Buffer

Destination = Callable[[Buffer, int], "Sequence[memoryview] | None"]
"""Where rows are to go: given the header of their message and their bytes, pieces of memory to be filled in turn.

None: to memory of their own.
"""

NOWHERE: Destination = lambda header, nbytes: None

PLACED = b"placed"
"""Stands for a part that went to its destination."""

_VIEWS = 64
"""Pieces of memory that are filled at a time."""

_GULP = 4 << 20
"""Bytes after which somebody else has a turn."""


class Arriving:
    """Parts of these sizes, of which the first bytes have come.

    Attributes
    ----------
    parts : those that are whole; `PLACED` for one that went to its destination.
    """

    def __init__(self, sizes: Sequence[int], came: bytes, destination: Destination) -> None:
        self.parts: list[Buffer] = []
        self._sizes, self._destination = sizes, destination
        self._part: Buffer = b""
        self._left: deque[memoryview] = deque()  # to be filled
        self._given: Sequence[memoryview] | None = None
        self._begin()
        view = memoryview(came)
        while len(view):
            target = self._left[0]
            count = min(len(target), len(view))
            target[:count] = view[:count]
            view = view[count:]
            self._filled(count)

    def _begin(self) -> None:
        """Find memory for the next part that has any bytes."""
        sizes, parts = self._sizes, self.parts
        while len(parts) < len(sizes) and not sizes[len(parts)]:
            parts.append(b"")
        if len(parts) == len(sizes):
            return
        size = sizes[len(parts)]
        # Rows are the last part but one.
        self._given = self._destination(parts[0], size) if parts and len(parts) == len(sizes) - 2 else None
        if self._given is None:
            self._part = np.empty(size, np.uint8).data
            self._left = deque([self._part])
        else:
            self._part = PLACED
            self._left = deque(self._given)

    def _filled(self, count: int) -> None:
        """So many more bytes of the part have come."""
        left = self._left
        while left and count >= len(left[0]):
            count -= len(left.popleft())
        if count:
            left[0] = left[0][count:]
        if not left:
            part = self._part
            self.parts.append(part if len(part) >= BULK or part is PLACED else bytes(part))
            self._given = None
            self._begin()

    def receive(self, connected: socket.socket) -> bool:
        """Take in what there is, and no more than this message; whether it is whole.

        Raises
        ------
        OSError
            If the other end is gone.
        """
        gulp = _GULP
        while len(self.parts) < len(self._sizes):
            if gulp <= 0:
                return False
            try:
                if len(self._left) == 1:
                    count = connected.recv_into(self._left[0])
                else:
                    count = connected.recvmsg_into(list(islice(self._left, _VIEWS)))[0]
            except BlockingIOError:
                return False
            if not count:
                raise ConnectionResetError("closed by the other end")
            gulp -= count
            self._filled(count)
        return True

    def forget(self, into: Sequence[memoryview]) -> None:
        """Nobody wants rows there any more: what is still to come of them goes elsewhere."""
        if self._given is into:
            self._left = deque([memoryview(bytearray(sum(map(len, self._left))))])
            self._given = None

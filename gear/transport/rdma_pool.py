"""Registered buffers that are used again: what is read into one is gathered from, then it goes back.

Sizes are powers of two, so that after a few batches nothing is registered any more. A buffer that a broken connection
may still write to comes back only when its queue pair is destroyed; that is the business of who took it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gear.storage import memory

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LEAST = 1 << 20
"""Bytes of a buffer at least."""

KEPT = 256 << 20


class Buffer(NamedTuple):
    """Memory, uint8[N], and its registration."""

    memory: npt.NDArray[np.uint8]
    region: Any


class Pool:
    """Thread-safe.

    Parameters
    ----------
    register : uint8[N] -> region
        Called once for each buffer that is made; the region has a method `close`.
    kept : int
        Bytes of idle buffers kept at most; they are locked in memory.
    """

    def __init__(self, register: Callable[[npt.NDArray[np.uint8]], Any], kept: int = KEPT) -> None:
        self._register, self._kept, self._lock = register, kept, threading.Lock()
        self._idle: list[Buffer] = []
        self.made = 0
        """Buffers that were registered so far."""

    def take(self, nbytes: int) -> Buffer:
        """A buffer of that many bytes or more, the smallest that is idle, else a new one."""
        with self._lock:
            fitting = [buffer for buffer in self._idle if len(buffer.memory) >= nbytes]
            if fitting:
                best = min(fitting, key=lambda buffer: len(buffer.memory))
                self._idle = [buffer for buffer in self._idle if buffer is not best]
                return best
            self.made += 1
        size = max(LEAST, 1 << max(0, nbytes - 1).bit_length())
        made = memory.anonymous(size, "a buffer for rows that come by RDMA")
        made[:: 1 << 12] = 0  # pages that are there are pinned in a hundredth of the time
        return Buffer(made, self._register(made))

    def put(self, buffer: Buffer) -> None:
        """Give back a buffer that nothing is read into any more; the largest idle ones go where too many are kept."""
        with self._lock:
            self._idle.append(buffer)
            self._idle.sort(key=lambda one: len(one.memory))
            gone = []
            while self.idle > self._kept and len(self._idle) > 1:
                gone.append(self._idle.pop())
        for one in gone:
            one.region.close()

    @property
    def idle(self) -> int:
        """Bytes of the buffers that nobody uses."""
        return sum(len(buffer.memory) for buffer in self._idle)

    def close(self) -> None:
        """Unregister what is idle."""
        with self._lock:
            gone, self._idle = self._idle, []
        for one in gone:
            one.region.close()

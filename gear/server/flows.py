"""Rows that are gathered while they are sent over a lane, a grain at a time.

The shard's loop begins, which is all there is to do for a moderate batch; of a larger one threads send the rest while
the first bytes travel. A thread takes whichever lane the kernel has room for and leaves it when it has none: a reader
that is slow holds up nobody and costs one grain of memory. Kernels let go of the interpreter's lock, as sending does.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from gear.transport.message import BAD, CUT

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from gear.server.grains import Grain
    from gear.transport.channel import Buffer
    from gear.transport.lane import Lane

logger = logging.getLogger(__name__)

THREADS = 2

FIRST = 1 << 19
"""Bytes that the shard's loop sends before a thread goes on: that takes as long as it takes a thread to wake."""

TURN = 1 << 20
"""Bytes of a lane that a thread sends before another lane's turn."""

_SPARE = 8
_LARGEST_SPARE = 4 << 20
"""Bytes of memory that is kept for the next flow at most: a grain is one item at least, however large that is."""

_GOING, _DONE, _BROKEN = range(3)
_ROOM = select.EPOLLOUT | select.EPOLLONESHOT

_spare: deque[npt.NDArray[np.uint8]] = deque(maxlen=_SPARE)


class Flow:
    """The rows of a batch, and the word on them, while they are sent; by one thread at a time.

    Parameters
    ----------
    segment, starts, lengths, neighbours : see `kernels.collect`
    grains : of the batch.
    good : () -> bool
        Asked when all was gathered: whether it is what was asked for. From any thread.
    gather : what gathers them, see `kernels.collect`.

    Attributes
    ----------
    nbytes : of the rows and of what is said of them.
    """

    def __init__(
        self,
        segment: npt.NDArray[np.uint8],
        grains: list[Grain],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        neighbours: npt.NDArray[np.int32],
        good: Callable[[], bool],
        gather: Callable[..., None],
    ) -> None:
        self.nbytes = sum(grain.plan.nbytes for grain in grains) + len(CUT)
        self._segment, self._grains, self._good = segment, grains, good
        self._starts, self._lengths, self._neighbours = starts, lengths, neighbours
        self._by, self._next = gather, 0
        self._memory: npt.NDArray[np.uint8] | None = None
        self._ready: Buffer = b""

    def send(self, push: Callable[[Buffer], int], most: int) -> int:
        """Send about so many bytes, or what the kernel has room for; what has become of it."""
        try:
            while True:
                ready = self._ready
                if len(ready):
                    sent = push(ready)
                    most -= sent
                    self._ready = ready[sent:]
                    if sent < len(ready):
                        return _GOING
                if self._next > len(self._grains):
                    return _DONE
                if most <= 0:
                    return _GOING
                self._ready = self._gather()
                self._next += 1
        except BlockingIOError:
            return _GOING
        except OSError:
            return _BROKEN
        except Exception:  # a bug of ours must not end the thread
            logger.exception("gathering %d items failed", len(self._starts))
            return _BROKEN

    def _gather(self) -> Buffer:
        """The next grain, or the word on all of them."""
        if self._next == len(self._grains):
            if self._memory is not None:
                if len(self._memory) <= _LARGEST_SPARE:
                    _spare.append(self._memory)
                self._memory = None
            return CUT if self._good() else BAD
        plan, begin, end, gaps = self._grains[self._next]
        nbytes = plan.nbytes
        if self._memory is None or len(self._memory) < nbytes:
            self._memory = _memory(nbytes)
        out = self._memory[:nbytes]
        for first, last in gaps:
            out[first:last] = 0
        self._by(self._segment, plan, self._starts[begin:end], self._lengths[begin:end], self._neighbours, out)
        return out.data


def _memory(nbytes: int) -> npt.NDArray[np.uint8]:
    try:
        memory = _spare.pop()
    except IndexError:
        return np.empty(nbytes, np.uint8)
    return memory if len(memory) >= nbytes else np.empty(nbytes, np.uint8)


class Flows:
    """The flows that threads are sending.

    Parameters
    ----------
    wake : () -> None
        Called from a thread when `finished` has something.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._going: dict[int, tuple[Lane, Flow]] = {}
        self._finished: deque[Lane] = deque()
        self._threads: list[threading.Thread] = []
        self._poll: select.epoll | None = None
        self._bell = -1

    def start(self, lane: Lane, flow: Flow) -> None:
        """Send the flow at the head of a lane: some at once, the rest, if any, by the threads."""
        outcome = flow.send(lane.push, FIRST)
        if outcome == _BROKEN:
            lane.broken = True
        elif outcome == _GOING:
            if self._poll is None:
                self._begin()
            assert self._poll is not None
            lane.lent = True
            self._going[lane.descriptor] = lane, flow
            self._poll.register(lane.descriptor, _ROOM)

    def _begin(self) -> None:
        self._poll, self._bell = select.epoll(), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._bell, select.EPOLLIN)
        self._threads = [threading.Thread(target=self._run, name="flow", daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        poll = self._poll
        assert poll is not None
        while True:
            for descriptor, _ in poll.poll(maxevents=1):
                if descriptor == self._bell:
                    return
                lane, flow = self._going[descriptor]
                outcome = flow.send(lane.push, TURN)
                if outcome == _GOING:
                    poll.modify(descriptor, _ROOM)
                    continue
                lane.broken |= outcome == _BROKEN
                poll.unregister(descriptor)
                self._finished.append(lane)
                self._wake()

    def finished(self) -> list[Lane]:
        """The lanes that are given back."""
        lanes = []
        while self._finished:
            lane = self._finished.popleft()
            del self._going[lane.descriptor]
            lanes.append(lane)
        return lanes

    def close(self) -> list[Lane]:
        """End the threads; the lanes that they had."""
        if self._poll is not None:
            os.eventfd_write(self._bell, 1)
            for thread in self._threads:
                thread.join()
            self._poll.close()
            os.close(self._bell)
        return [lane for lane, _ in self._going.values()]

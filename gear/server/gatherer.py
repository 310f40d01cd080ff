"""Threads that gather pieces of batches for clients that have no lane, so that a shard's loop never does.

The kernel lets go of the interpreter's lock while it copies. A piece's memory is used again once ZeroMQ has sent it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import zmq

from gear.errors import GearError
from gear.plan import ALIGN
from gear.transport.messages import PIECE
from gear.transport.pieces import split

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.plan import Plan

logger = logging.getLogger(__name__)

THREADS = 2
AT_ONCE = 1 << 19
"""Bytes up to which gathering takes about as long as handing over to a thread and back."""

SHARED = 1 << 20
"""Bytes from which a piece is gathered by all threads together: nothing of it is sent before it is whole."""

COPIED = 1 << 17
"""Bytes up to which ZeroMQ copies a piece: a thread that is told when it was sent costs more."""

TRACKED = 4 << 20
"""Bytes of copied pieces after which one is sent with a tracker: what waits for a slow reader is known."""

_SPARE = 8
"""Buffers kept for later use at most."""
_ROOM = 2 * PIECE + (PIECE >> 2)
"""Bytes of a buffer that is kept: the most that goes at once, and what its columns' alignment adds."""

Then = Callable[["npt.NDArray[np.uint8] | GearError"], None]


class Job(NamedTuple):
    """What to gather, and by what; `then` gets the bytes, or an error, from `finish` if they are not there at once.

    into : part of a larger array; None for memory of the gatherer's own.
    """

    segment: npt.NDArray[np.uint8]
    plan: Plan
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    neighbours: npt.NDArray[np.int32]
    then: Then
    collect: Callable[..., None]
    into: npt.NDArray[np.uint8] | None = None


class _Work:
    """A job under way: its memory, the shares of it that are not done yet, and what went wrong."""

    def __init__(self, job: Job, out: npt.NDArray[np.uint8], shares: int) -> None:
        self.job, self.out, self.left = job, out, shares
        self.error: GearError | None = None


class Gatherer:
    """The threads, and the memory they fill.

    Parameters
    ----------
    wake : () -> None
        Called from a thread when `finish` has something to do.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._shares: queue.SimpleQueue[tuple[_Work, int, int]] = queue.SimpleQueue()
        self._finished: deque[_Work] = deque()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._used: list[tuple[npt.NDArray[np.uint8], list[zmq.MessageTracker]]] = []

    def gather(self, job: Job) -> npt.NDArray[np.uint8] | GearError | None:
        """Gather at once if it is little, and return it; else soon: None, and `then` gets it."""
        plan = job.plan
        size = len(job.starts)
        shares = min(THREADS, size) if plan.nbytes >= SHARED else 1
        work = _Work(job, self._memory(plan.nbytes) if job.into is None else job.into, shares)
        if plan.nbytes <= AT_ONCE:
            _gather(work, 0, size)
            return work.error or work.out
        while len(self._threads) < THREADS:
            thread = threading.Thread(target=self._run, name="gather", daemon=True)
            thread.start()  # it may fail: then one is started for the next piece
            self._threads.append(thread)
        for share in range(shares):
            self._shares.put((work, size * share // shares, size * (share + 1) // shares))
        return None

    def finish(self) -> None:
        """Hand over what has been gathered."""
        while self._finished:
            work = self._finished.popleft()
            work.job.then(work.error or work.out)

    def frames(self, rows: npt.NDArray[np.uint8]) -> list[zmq.Frame]:
        """Gathered bytes as buffers of a message, in the memory where they are; each has a tracker."""
        frames = [zmq.Frame(part, copy=False, track=True) for part in split(rows.data)]
        if rows.base is not None and len(rows.base) == _ROOM:
            with self._lock:
                if len(self._used) < _SPARE:
                    self._used.append((rows.base, [frame.tracker for frame in frames]))
        return frames

    def _run(self) -> None:
        while True:
            work, begin, end = self._shares.get()
            _gather(work, begin, end)
            with self._lock:
                work.left -= 1
                whole = not work.left
            if whole:
                self._finished.append(work)
                self._wake()

    def _memory(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory for a piece; what was used before costs no page faults."""
        if nbytes > _ROOM:
            return np.zeros(nbytes, np.uint8)
        with self._lock:
            for at, (memory, trackers) in enumerate(self._used):
                if all(tracker.done for tracker in trackers):
                    del self._used[at]
                    return memory[:nbytes]
        return np.empty(_ROOM, np.uint8)[:nbytes]


def _gather(work: _Work, begin: int, end: int) -> None:
    """Gather items begin..end of a job to their places."""
    job, out = work.job, work.out
    plan, starts, lengths = job.plan, job.starts, job.lengths
    try:
        if begin:
            plan = plan.behind(begin, plan.steps_of(lengths[:begin]))
        elif out.base is not None:
            for field in plan.regions:  # what lies between columns was this process's memory
                gap = field.offset + field.nbytes
                out[gap : min(len(out), -(-gap // ALIGN) * ALIGN)] = 0
        if end - begin < len(starts):
            starts, lengths = starts[begin:end], lengths[begin:end]
        job.collect(job.segment, plan, starts, lengths, job.neighbours, out)
    except Exception as error:  # a bug of ours must not end the thread
        logger.exception("gathering %d items of table %s failed", plan.size, plan.table.name)
        work.error = GearError(f"internal error of the server: {error!r}; see its log")

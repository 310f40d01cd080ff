"""Threads that gather pieces of batches for clients that map no memory, so that a shard's loop never does.

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
AT_ONCE = 1 << 17
"""Bytes up to which gathering takes less time than handing over to a thread."""

_SPARE = 8
"""Buffers kept for later use at most."""
_ROOM = PIECE + (PIECE >> 2)
"""Bytes of a buffer that is kept: a piece and what its columns' alignment adds."""

Then = Callable[["npt.NDArray[np.uint8] | GearError"], None]


class Job(NamedTuple):
    """What to gather; `then` gets the bytes, or an error, on the thread that calls `finish`."""

    segment: npt.NDArray[np.uint8]
    plan: Plan
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    neighbours: npt.NDArray[np.int32]
    then: Then


class Gatherer:
    """The threads, and the memory they fill.

    Parameters
    ----------
    wake : () -> None
        Called from a thread when `finish` has something to do.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._finished: deque[tuple[Job, npt.NDArray[np.uint8] | GearError]] = deque()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._used: list[tuple[npt.NDArray[np.uint8], list[zmq.MessageTracker]]] = []

    def gather(self, job: Job) -> None:
        """Gather at once if it is little, else soon."""
        if job.plan.nbytes <= AT_ONCE:
            job.then(_gathered(job, np.empty(job.plan.nbytes, np.uint8)))
            return
        if not self._threads:
            self._threads = [threading.Thread(target=self._run, name="gather", daemon=True) for _ in range(THREADS)]
            for thread in self._threads:
                thread.start()
        self._jobs.put(job)

    def finish(self) -> None:
        """Hand over what has been gathered."""
        while self._finished:
            job, result = self._finished.popleft()
            job.then(result)

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
            job = self._jobs.get()
            self._finished.append((job, _gathered(job, self._memory(job.plan.nbytes))))
            self._wake()

    def _memory(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory for a piece; what was used before costs no page faults."""
        if nbytes > _ROOM:
            return np.empty(nbytes, np.uint8)
        with self._lock:
            for at, (memory, trackers) in enumerate(self._used):
                if all(tracker.done for tracker in trackers):
                    del self._used[at]
                    return memory[:nbytes]
        return np.empty(_ROOM, np.uint8)[:nbytes]


def _gathered(job: Job, out: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | GearError:
    from gear.kernels.collect import collect

    try:
        for field in job.plan.regions:  # what lies between columns was this process's memory
            end = field.offset + field.nbytes
            out[end : min(len(out), -(-end // ALIGN) * ALIGN)] = 0
        collect(job.segment, job.plan, job.starts, job.lengths, job.neighbours, out)
    except Exception as error:  # a bug of ours must not end the thread
        logger.exception("gathering %d items of table %s failed", job.plan.size, job.plan.table.name)
        return GearError(f"internal error of the server: {error!r}; see its log")
    return out

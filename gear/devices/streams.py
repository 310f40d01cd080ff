"""The stream on which batches are gathered, and what waits for it: consumers by events, pins by a thread.

One stream for each device of a process. A consumer's current stream of torch waits for a batch's event, never the host;
the batch's memory is written again only after an event of the consumer's, and torch is told who uses it
(`record_stream`). What the host has to do once kernels are through (let pins go) a thread does that waits for an event.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gear.devices import seam

logger = logging.getLogger(__name__)

Action = Callable[[], None]


class _Done:
    """An event in the simulator, where everything has happened when the call returns."""

    def record(self, stream: Any = None) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class Stream:
    """A stream of one device, and the thread that acts when it has come so far.

    Parameters
    ----------
    number : of the device, in this process.

    Attributes
    ----------
    device : torch's, the CPU in the simulator.
    numba : the stream as kernels are launched on it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.device = torch.device("cpu") if seam.SIMULATED else torch.device("cuda", number)
        self._torch: Any = None
        self.numba: Any = 0
        if not seam.SIMULATED:
            from numba import cuda

            self._torch = torch.cuda.Stream(self.device)
            with cuda.gpus[number]:  # not the device that this thread has used before
                self.numba = cuda.external_stream(self._torch.cuda_stream)
        self._waiting: queue.SimpleQueue[tuple[Any, Action]] = queue.SimpleQueue()
        self._events: list[Any] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def here(self) -> Any:
        """Let this thread launch and allocate on the stream."""
        if seam.SIMULATED:
            yield
            return
        from numba import cuda

        with cuda.gpus[self.number], torch.cuda.stream(self._torch):
            yield

    def event(self) -> Any:
        """A new event; the host sleeps when it waits for it."""
        return _Done() if seam.SIMULATED else torch.cuda.Event(blocking=True)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """uint8[nbytes] on the device."""
        with self.here():
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    @staticmethod
    def page_locked(nbytes: int) -> torch.Tensor:
        """uint8[nbytes] of the host that is copied to the device without waiting."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=not seam.SIMULATED)

    # Between this stream and the consumer's

    def record(self, event: Any) -> None:
        """The event is everything launched here so far."""
        event.record(self._torch)

    def follow(self, event: Any) -> None:
        """What is launched here from now on waits for the event."""
        if not seam.SIMULATED:
            self._torch.wait_event(event)

    def mark_consumer(self, event: Any) -> None:
        """The event is everything on the calling thread's current stream so far."""
        if not seam.SIMULATED:
            event.record(torch.cuda.current_stream(self.device))

    def hand_over(self, event: Any, tensor: torch.Tensor) -> None:
        """Let the calling thread's current stream wait for the event and use the tensor."""
        if not seam.SIMULATED:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)
            tensor.record_stream(current)

    # What the host does afterwards

    def after(self, action: Action) -> None:
        """Call `action`, on a thread of the stream's, once everything launched here so far is through."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gear-stream", daemon=True)
                self._thread.start()
            event = self._events.pop() if self._events else self.event()
            self.record(event)
            self._waiting.put((event, action))

    def drain(self) -> None:
        """Wait until all that was asked for by `after` is done."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        done = threading.Event()
        self.after(done.set)
        done.wait()

    def _run(self) -> None:
        while True:
            event, action = self._waiting.get()
            try:
                event.synchronize()
            except Exception:  # they run no more: what is let go of now is read by nobody
                logger.exception("kernels failed")
            try:
                action()
            except Exception:
                logger.exception("what was to follow kernels failed")
            with self._lock:
                self._events.append(event)
            del action  # and the table that it is about


_streams: dict[int, Stream] = {}
_making = threading.Lock()


def stream_of(number: int) -> Stream:
    """The stream of a device."""
    with _making:  # two of them would share what one orders: pins would go while the other reads
        if number not in _streams:
            _streams[number] = Stream(number)
        return _streams[number]


def drain_all() -> None:
    """Wait until all that was to follow kernels is done."""
    for stream in list(_streams.values()):
        stream.drain()


def for_kernels(tensor: torch.Tensor) -> Any:
    """A tensor as kernels are given it."""
    if not seam.SIMULATED:
        return tensor
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    return FakeCUDAArray(np.asarray(tensor.numpy()))


def as_table(tensor: torch.Tensor) -> Any:
    """A tensor as kernels take an array that they index; it is written behind the stream that they are launched on."""
    if seam.SIMULATED:
        return for_kernels(tensor)
    from numba import cuda

    return cuda.as_cuda_array(tensor, sync=False)


def _begin_anew() -> None:
    """In a child: neither the threads nor CUDA survive a fork, and the lock may be held by one of them."""
    global _making
    _making = threading.Lock()
    _streams.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)

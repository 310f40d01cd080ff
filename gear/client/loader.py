"""Batches kept ready by a thread, in a ring of buffers that are used again and again.

What the thread has fetched counts as sampled only when it is handed out; the rest is released undelivered,
so prefetching never eats the limiter's credit. The thread knows the loader's state, not the loader: a
loader that nobody holds any more ends its thread.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from gear.errors import Closed, DeadlineExceeded, GearError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from gear.batch import Batch, Selection

    Fetch = Callable[[float, "Batch | None"], Batch]
    Release = Callable[[Selection, bool], None]

LOOK_EVERY = 0.1
"""Seconds a fetch waits for items before the thread looks whether it should stop."""


class _Ring:
    """What the thread and the loader share."""

    def __init__(self, fetch: Fetch, release: Release, buffers: int, copy: bool) -> None:
        self.fetch, self.release, self.copy = fetch, release, copy
        self.changed = threading.Condition()
        self.ready: deque[Batch] = deque()
        self.free: deque[Batch | None] = deque([None] * buffers)
        self.error: BaseException | None = None
        self.obstacle = "no batch is ready yet"
        self.stopped = ""

    def run(self) -> None:
        """Fetch until stopped; what goes wrong is kept for the consumer."""
        try:
            while True:
                with self.changed:
                    while not self.free and not self.stopped:
                        self.changed.wait()
                    if self.stopped:
                        return
                    buffer = self.free.popleft()
                batch = self._next(buffer)
                if batch is None:
                    return
                if not self.copy:
                    batch.lend()
                with self.changed:
                    self.ready.append(batch)
                    self.changed.notify_all()
        except BaseException as error:
            with self.changed:
                self.error = error
                self.changed.notify_all()
                while self.ready and not self.stopped:  # the consumer first takes what is there
                    self.changed.wait()
        finally:
            self._give_up()

    def _next(self, buffer: Batch | None) -> Batch | None:
        while not self.stopped:
            try:
                return self.fetch(LOOK_EVERY, buffer)
            except DeadlineExceeded as error:
                self.obstacle = str(error)
        return None

    def stop(self, why: str) -> None:
        """End the thread at its next look; the thread gives back what is left (this may run inside a collection)."""
        with self.changed:
            self.stopped = self.stopped or why
            self.changed.notify_all()

    def _give_up(self) -> None:
        """Release what is ready and will not be handed out any more."""
        with self.changed:
            left, self.ready = self.ready, deque()
        for batch in left:
            try:
                self.release(batch.selection, False)
            except GearError:  # the session is gone, and the pins with it
                return


class Loader:
    """An endless iterator over batches; made by `Client.loader`.

    A batch is valid until the next one is asked for, unless ``copy=True``. Use it as a context manager or
    call `close` to stop its thread; a loader that is garbage collected stops by itself.
    """

    def __init__(self, fetch: Fetch, release: Release, prefetch: int, copy: bool, timeout: float | None) -> None:
        self._ring = _Ring(fetch, release, prefetch + 1, copy)
        self._timeout = timeout
        self._last: Batch | None = None
        self._out = False
        self._thread = threading.Thread(target=self._ring.run, name="gear-loader", daemon=True)
        self._finalizer = weakref.finalize(self, self._ring.stop, "the loader was garbage collected")
        self._thread.start()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        ring = self._ring
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        with ring.changed:
            if self._out:
                self._out = False
                if self._last is not None:
                    self._last.taken_back()
                ring.free.append(None if ring.copy else self._last)
                self._last = None
                ring.changed.notify_all()
            while not ring.ready:
                if ring.error is not None:
                    raise ring.error
                if ring.stopped:
                    if ring.stopped == "closed":
                        raise StopIteration
                    raise Closed(ring.stopped)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise DeadlineExceeded(f"no batch within {self._timeout:g} s: {ring.obstacle}")
                ring.changed.wait(left)
            batch = ring.ready.popleft()
            ring.changed.notify_all()
            self._out, self._last = True, None if ring.copy else batch
        batch.handed()
        ring.release(batch.selection, True)
        return batch

    def close(self) -> None:
        """Stop the thread and give back what it fetched and did not deliver. Idempotent."""
        self._ring.stop("closed")
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def forget(self) -> None:
        """Refuse further use, in the child of a fork: the thread stayed in the parent."""
        self._finalizer.detach()
        self._ring.changed = threading.Condition()
        self._ring.ready.clear()
        self._ring.stopped = "this loader was made before a fork; make one in the child process"

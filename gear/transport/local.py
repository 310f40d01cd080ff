"""Tables of this process and the threads that wait for them: what an `InprocSession` is built on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gear.batch import Selection
from gear.errors import Closed, DeadlineExceeded, GearError
from gear.storage.layout import Grant
from gear.storage.queue import RequestQueue
from gear.transport.base import OpenTable

if TYPE_CHECKING:
    from gear.storage.table import StoredTable

_REVOKED = 1 << 16
"""Pins taken back that are remembered; their selections are long past their deadline by then."""


class Local:
    """One table with its queue, and what the client of this process holds of it."""

    def __init__(self, stored: StoredTable, key: bytes) -> None:
        self.stored = stored
        self.queue = RequestQueue(stored)
        self.open = OpenTable(stored.table, stored.layout, stored.segment, arena=stored.arena)
        self.client = stored.attach(key)
        self.sequence = 0
        self.pending = 0
        self.errors: dict[int, GearError] = {}
        self.revoked: dict[int, None] = {}
        self.served = stored.table.lines > 0
        """Whether items are claimed, in turn."""
        self.readers: set[threading.Condition] = set()
        """Selects that sleep: each is woken by its own result, not by whatever happens."""
        self.due = float("inf")
        """`time.time()` until which they sleep at most."""


class LocalSession:
    """The tables, the lock that guards them, and waiting for what they will do."""

    def __init__(self) -> None:
        self._key = os.urandom(16)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False
        self._tables: dict[str, Local] = {}
        self._by_open: dict[int, Local] = {}

    def _local(self, table: OpenTable) -> Local:
        self._check_open()
        return self._by_open[id(table)]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client is closed; make a new one")

    # Waiting; the lock is held in all of these.

    def _advance(self, local: Local) -> None:
        local.queue.advance()
        if self._waiting:
            self._changed.notify_all()

    def _await(
        self, local: Local, deadline: float, request: Callable[[Callable[[Any], None]], None], reads: bool = False
    ) -> Any:
        """Make a request of the queue and return its result, or raise it; `reads`: it waits for nothing but that."""
        results: list[Any] = []
        bell = threading.Condition(self._lock) if reads else self._changed

        def done(result: Any) -> None:
            results.append(result)
            if reads:
                bell.notify()

        request(done)
        if self._waiting:
            self._changed.notify_all()
        try:
            while not results:
                if self._closed:
                    raise Closed("the client was closed while a call was waiting")
                if not reads and local.queue.starved:
                    self._revoke(local)
                    if results:
                        break
                now = time.monotonic()
                if now >= deadline:
                    local.queue.expire(now)
                    continue
                local.due = _next_event(local)
                seconds = min(deadline - now, max(0.0, local.due - time.time()) + 1e-3)
                if reads:
                    local.readers.add(bell)
                try:
                    self._sleep(seconds, bell)
                finally:
                    local.readers.discard(bell)
                self._expire(local)
        except BaseException:  # Ctrl-C while waiting: nobody takes what would come
            local.queue.cancel(done)
            if results and isinstance(results[0], Grant):
                local.stored.end_leases(local.client, results[0].blocks, results[0].slots)
            elif results and isinstance(results[0], Selection):
                local.stored.pins.release(local.client, results[0].pin, False)
            raise
        if isinstance(results[0], GearError):
            raise results[0]
        return results[0]

    def _sleep_until(self, local: Local, condition: Callable[[], bool], deadline: float) -> None:
        """Sleep until entries of an insert have been committed."""
        while not condition():
            self._check_open()
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(f"insert timed out: {local.queue.insert_obstacle()}")
            event = local.queue.next_event  # what is dropped then may make room
            until = left if event is None else min(left, max(0.0, event - time.monotonic()) + 1e-3)
            self._sleep(until, self._changed)
            if event is not None:
                self._expire(local)

    def _sleep(self, seconds: float, bell: threading.Condition) -> None:
        bounded = None if seconds == float("inf") else min(seconds, threading.TIMEOUT_MAX)
        changes = bell is self._changed
        self._waiting += changes
        try:
            bell.wait(bounded)
        finally:
            self._waiting -= changes

    def _keep_time(self, local: Local) -> None:
        """Something may be due sooner than the readers that sleep know of: one of them is to wake for it."""
        if local.readers and _next_event(local) < local.due:
            next(iter(local.readers)).notify()

    def _expire(self, local: Local) -> None:
        now = time.time()
        if local.stored.pins.next_expiry <= now:
            self._tell(local, local.stored.pins.expire(now))
            self._advance(local)
        if local.stored.growing.expire(now):
            self._advance(local)
        late = local.queue.next_event
        if late is not None and late <= time.monotonic():
            local.queue.expire(time.monotonic())
            self._advance(local)

    def _revoke(self, local: Local) -> None:
        self._tell(local, local.stored.reclaim())
        self._advance(local)  # pins that nobody had joined are gone at once

    def _tell(self, local: Local, told: list[tuple[int, int]]) -> None:
        """Mark pins as ended; those that nobody is reading are let go of at once."""
        for client, pin in told:
            local.revoked[pin] = None
            if pin not in local.open.reading:
                local.stored.pins.release(client, pin, False)
        while len(local.revoked) > _REVOKED:
            del local.revoked[next(iter(local.revoked))]
        if told:
            self._advance(local)


def _next_event(local: Local) -> float:
    """`time.time()` at which a pin, an open trajectory or the wait for a group ends."""
    due = min(local.stored.pins.next_expiry, local.stored.growing.next_expiry)
    late = local.queue.next_event
    return due if late is None else min(due, time.time() + late - time.monotonic())


def deadline_of(timeout: float | None) -> float:
    """`time.monotonic()` at which a timeout ends."""
    return float("inf") if timeout is None else time.monotonic() + timeout

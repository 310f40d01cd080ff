"""Threads of this process that wait for tables: each sleeps until its own request is answered, or an event is due.

The lock of the session guards everything here and is held in all of it. Nothing polls: a sleeper wakes at its deadline,
at the next end of a pin or deadline of a group, or when somebody else's call has made its request possible.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from gear.batch import Selection
from gear.errors import Closed, DeadlineExceeded, GearError
from gear.storage.layout import Grant
from gear.storage.queue import RequestQueue
from gear.storage.table import StoredTable
from gear.transport.base import OpenTable

_NEVER = float("inf")
_REVOKED = 1 << 16
"""Pins taken back that are remembered; their selections are long past their deadline by then."""


class Local:
    """One table with its queue and this session's place in it."""

    def __init__(self, stored: StoredTable, key: bytes) -> None:
        self.stored = stored
        self.queue = RequestQueue(stored)
        self.open = OpenTable(stored.table, stored.layout, stored.segment)
        self.client = stored.attach(key)
        self.sequence = 0
        self.pending = 0
        self.errors: dict[int, GearError] = {}
        self.revoked: dict[int, None] = {}
        self.sleeping: set[threading.Condition] = set()
        self.served = stored.table.lines > 0  # items are claimed, in turn
        self.alarm = _NEVER  # when the first of them wakes by itself


class InprocWaiting:
    """The part of an in-process `Session` that waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client is closed; make a new one")

    def _advance(self, local: Local) -> None:
        local.queue.advance()
        self._told(local)

    def _told(self, local: Local) -> None:
        """Something happened: wake who waits for a commit, and who must look at an earlier moment than it sleeps for.

        Who waits for a request is woken by its result.
        """
        if self._waiting:
            self._changed.notify_all()
        if local.sleeping and (local.queue.starved or self._next_event(local) < local.alarm):
            for bell in local.sleeping:
                bell.notify()

    def _next_event(self, local: Local) -> float:
        """`time.monotonic()` at which a pin ends or a group is late."""
        event = local.queue.next_event
        expiry = local.stored.pins.next_expiry
        pin = _NEVER if expiry == _NEVER else time.monotonic() + max(0.0, expiry - time.time()) + 1e-3
        return pin if event is None else min(pin, event)

    def _await(self, local: Local, deadline: float, request: Callable[[Callable[[Any], None]], None]) -> Any:
        """Make a request of the queue and return its result, or raise it."""
        results: list[Any] = []
        bell = threading.Condition(self._lock)

        def done(result: Any) -> None:
            results.append(result)
            bell.notify()

        request(done)
        self._told(local)
        try:
            while not results:
                if self._closed:
                    raise Closed("the client was closed while a call was waiting")
                if local.queue.starved:
                    self._revoke(local)
                    if results:
                        break
                now = time.monotonic()
                if now >= deadline:
                    local.queue.expire(now)
                    continue
                self._doze(local, bell, deadline)
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

    def _doze(self, local: Local, bell: threading.Condition, deadline: float) -> None:
        """Sleep until the bell rings, the deadline, or the next event, which is then done."""
        until = min(deadline, self._next_event(local))
        local.alarm = min(local.alarm, until)
        local.sleeping.add(bell)
        try:
            _wait(bell, until - time.monotonic())
        finally:
            local.sleeping.discard(bell)
            local.alarm = _NEVER  # those who still sleep may be woken once too often
        self._expire(local)

    def _sleep_until(
        self, local: Local, condition: Callable[[], bool], deadline: float, obstacle: Callable[[], str]
    ) -> None:
        while not condition():
            self._check_open()
            now = time.monotonic()
            if now >= deadline:
                raise DeadlineExceeded(f"insert timed out: {obstacle()}")
            event = local.queue.next_event
            self._waiting += 1
            try:
                _wait(self._changed, min(deadline, _NEVER if event is None else event) - now)
            finally:
                self._waiting -= 1
            self._expire(local)

    def _expire(self, local: Local) -> None:
        """Do what is due by now: pins that end, groups that are late."""
        now = time.time()
        if local.stored.pins.next_expiry <= now:
            self._tell(local, local.stored.pins.expire(now))
        event = local.queue.next_event
        if event is not None and event <= time.monotonic():
            local.queue.expire(time.monotonic())
            self._told(local)

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


def _wait(bell: threading.Condition, seconds: float) -> None:
    bell.wait(None if seconds == _NEVER else min(max(0.0, seconds), threading.TIMEOUT_MAX))

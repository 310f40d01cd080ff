"""The background thread of a remote session: it sends what waits when no call comes, and hears pushes.

While calls come they carry everything themselves. `PROMPT` seconds after the last one the attendant takes
over; when nothing is pending it looks about `1 / IDLE` times a second, and when nothing has come for long it sleeps
until something does: a thousand idle clients cost nothing. It never keeps a session alive.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import weakref
from typing import Protocol

from gear.errors import GearError

PROMPT = 0.002
IDLE = 0.05
_LINGER = 20
"""Rounds that it stays prompt after something was pending, so that busy callers need not wake it."""

_QUIET = -40
"""Rounds without anything after which it sleeps until the connection has something to hear."""

_ASLEEP = 1.0
"""Seconds of that sleep at most: the connection is looked after."""

logger = logging.getLogger(__name__)


class Attended(Protocol):
    """What the attendant asks of a session."""

    def attend(self) -> bool:
        """Do what is due; whether something is still pending."""
        ...

    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when there is something to hear; none while the connection is broken."""
        ...


class Attendant:
    """A daemon thread for one session."""

    def __init__(self, session: Attended) -> None:
        self.dozing = False
        self._asleep = False  # on the connection, where only the alarm ends it
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._alarm).atexit = False
        self._bell = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(weakref.ref(session),), name="gear", daemon=True)
        self._thread.start()

    def _run(self, session: weakref.ref[Attended]) -> None:
        rounds = 0
        while not self._stopped:
            self.dozing = rounds <= 0
            if rounds <= _QUIET:
                if (attended := session()) is None:
                    return
                descriptors = attended.descriptors()
                del attended
                rounds = 0 if not descriptors or self._sleep(descriptors) else _QUIET
            elif self._bell.wait(IDLE if rounds <= 0 else PROMPT):
                rounds = _LINGER  # whoever rang may have sent it by now, and will soon have more
            self._bell.clear()
            self.dozing = False
            if self._stopped or (attended := session()) is None:
                return
            try:
                rounds = _LINGER if attended.attend() else rounds - 1
            except GearError:  # callers meet it themselves
                rounds = 0
            except Exception:
                logger.exception("the background thread of a session failed")
                return
            del attended

    def _sleep(self, descriptors: tuple[int, ...]) -> bool:
        """Sleep until there is something to hear or somebody rings; whether that came."""
        poll = select.poll()
        for descriptor in (self._alarm, *descriptors):
            poll.register(descriptor, select.POLLIN)
        self._asleep = True
        try:
            return self._bell.is_set() or bool(poll.poll(_ASLEEP * 1000))
        finally:
            self._asleep = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._alarm)

    def wake(self) -> None:
        """Something is pending; call it when `dozing`."""
        self._bell.set()
        if self._asleep:
            os.eventfd_write(self._alarm, 1)

    def stop(self) -> None:
        """End the thread; it may be the caller."""
        self._stopped = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

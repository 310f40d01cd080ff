"""The background thread of a remote session: it sends what waits when no call comes, and hears pushes.

While calls come they carry everything themselves. `PROMPT` seconds after the last one the attendant takes
over; when nothing is pending it looks about `1 / IDLE` times a second. It never keeps a session alive.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Protocol

from gear.errors import GearError

PROMPT = 0.002
IDLE = 0.05
_LINGER = 20
"""Rounds that it stays prompt after something was pending, so that busy callers need not wake it."""

logger = logging.getLogger(__name__)


class Attended(Protocol):
    """What the attendant asks of a session."""

    def attend(self) -> bool:
        """Do what is due; whether something is still pending."""
        ...


class Attendant:
    """A daemon thread for one session."""

    def __init__(self, session: Attended) -> None:
        self.dozing = False
        self._bell = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(weakref.ref(session),), name="gear", daemon=True)
        self._thread.start()

    def _run(self, session: weakref.ref[Attended]) -> None:
        rounds = 0
        while not self._stopped:
            self.dozing = rounds <= 0
            if self._bell.wait(IDLE if rounds <= 0 else PROMPT):
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

    def wake(self) -> None:
        """Something is pending; call it when `dozing`."""
        self._bell.set()

    def stop(self) -> None:
        """End the thread; it may be the caller."""
        self._stopped = True
        self._bell.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

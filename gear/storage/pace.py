"""The pace of work that is done beside others': it keeps off a processor in the measure in which it must queue for it.

The kernel says how long a thread stood ready to run without a core (`schedstat`). Where cores are free that is nothing,
and nothing is waited for. Where they are short, whoever queues makes others queue as long; so the thread rests for a
multiple of that time, and its share shrinks with their need. It does not lower its priority instead: it shares the
interpreter's lock with who serves clients, who would then wait for it to be given a core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

REST = 3.0
"""Seconds of rest for each second in the queue: beside one other at a core it takes a fifth of it, not the half. Bytes
cost it a quarter of the processor's time of those through the page cache, and it keeps up with these."""

MOST = 0.25
"""Seconds of rest at once, however long the queue was."""


class Pace:
    """The pace of the thread that makes it.

    Parameters
    ----------
    queued : () -> float, optional
        Seconds so far that the thread stood ready without a core. Default: as the kernel says.
    sleep : (seconds) -> None
    """

    def __init__(self, queued: Callable[[], float] | None = None, sleep: Callable[[float], None] = time.sleep) -> None:
        self._queued, self._sleep = queued or _queued, sleep
        self._before = self._queued()

    def rest(self, hurry: bool = False) -> bool:
        """A piece of the work is done: rest as long as is due, or not at all where there is no time for it.

        Returns whether it rested.
        """
        now = self._queued()
        waited, self._before = now - self._before, now
        if waited <= 0 or hurry:
            return False
        self._sleep(min(REST * waited, MOST))
        self._before = self._queued()  # that it was late to wake up is nothing that its work did
        return True


def _queued() -> float:
    """Seconds that this thread stood ready without a core; 0 where the kernel does not say."""
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        return int(os.read(descriptor, 128).split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0
    finally:
        os.close(descriptor)

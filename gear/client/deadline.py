"""Deadlines of calls, and waits that somebody may end early: the verbs of asyncio run on threads.

A thread cannot be interrupted, so what may be cancelled waits in parts and looks in between. A cancelled wait ends
exactly as at its deadline: whatever undoes a call that timed out undoes one that was cancelled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from gear.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Result = TypeVar("Result")

LOOK_FIRST, LOOK_AT_LEAST = 0.05, 0.5
"""Seconds of the first part of a wait, doubled from part to part, and of the longest."""


class Patience:
    """Whether a call may go on waiting; `end` may be called from any thread."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended = False

    def end(self) -> None:
        """Have every wait of the call end at its next look."""
        self.ended = True


class _Mine(threading.local):
    patience: Patience | None = None


_mine = _Mine()


def until(timeout: float | None) -> float | None:
    """The moment at which `timeout` seconds from now are over."""
    return None if timeout is None else time.monotonic() + timeout


def left(deadline: float | None) -> float | None:
    """Seconds until then, never negative."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


@contextlib.contextmanager
def waiting_with(patience: Patience) -> Iterator[None]:
    """Let the waits of this thread end when `patience` does."""
    _mine.patience = patience
    try:
        yield
    finally:
        _mine.patience = None


def patiently(wait: Callable[..., Result], *arguments: Any, timeout: float | None) -> Result:
    """``wait(*arguments, timeout)``, which changes nothing when it raises `DeadlineExceeded`.

    Raises
    ------
    DeadlineExceeded
        At the timeout, or soon after the thread's patience has ended.
    """
    patience = _mine.patience
    if patience is None:
        return wait(*arguments, timeout)
    deadline, part = until(timeout), LOOK_FIRST
    while True:
        rest = left(deadline)
        try:
            return wait(*arguments, part if rest is None else min(part, rest))
        except DeadlineExceeded:
            if patience.ended or (rest is not None and rest <= part):
                raise
        part = min(2 * part, LOOK_AT_LEAST)

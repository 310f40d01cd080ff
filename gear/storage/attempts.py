"""Requests that are tried again when something has changed: opening, appending to and sealing open trajectories.

Each is tried by itself, whatever waits before it: they are of different trajectories. Not thread-safe: the owner
serialises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gear.errors import GearError
from gear.storage.growing import Waits

Run = Callable[[], Any]


@dataclass(eq=False, slots=True)
class Attempt:
    """`run` returns a result, says what it waits for, or raises; `done` gets the result or the error."""

    client: int
    what: str
    run: Run
    deadline: float
    done: Callable[[Any], None]
    waits: Waits = Waits.OPEN
    over: bool = False


class Attempts:
    """Those of one table that wait."""

    def __init__(self) -> None:
        self.waiting: list[Attempt] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Any:
        return iter(self.waiting)

    @property
    def hungry(self) -> bool:
        """Whether one waits for blocks that are still read."""
        return any(attempt.waits is Waits.MEMORY for attempt in self.waiting)

    def add(self, attempt: Attempt) -> None:
        """Try at once, or let it wait."""
        if not _done(attempt):
            self.waiting.append(attempt)

    def serve(self) -> bool:
        """Try all; whether one is done."""
        if not self.waiting:
            return False
        waiting, self.waiting = self.waiting, []
        left = [attempt for attempt in waiting if not _done(attempt)]
        self.waiting = left + self.waiting
        return len(left) < len(waiting)

    def take(self, which: Callable[[Attempt], bool]) -> list[Attempt]:
        """Take those out of which that is true."""
        taken = [attempt for attempt in self.waiting if which(attempt)]
        for attempt in taken:
            attempt.over = True
        if taken:
            self.waiting = [attempt for attempt in self.waiting if not which(attempt)]
        return taken


def _done(attempt: Attempt) -> bool:
    try:
        result = attempt.run()
    except GearError as error:
        result = error
    if isinstance(result, Waits):
        attempt.waits = result
        return False
    attempt.over = True
    attempt.done(result)
    return True

"""Deadlines of whatever is parked, the earliest at hand at once.

A heap with lazy deletion: what is over stays in it until it comes up or until most of the heap is over, so that
parking and ending cost O(log n), and asking for the next deadline nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Things with a deadline by `time.monotonic()`; infinity is never due.

    Parameters
    ----------
    over : T -> bool
        Whether a thing waits no more.
    """

    def __init__(self, over: Callable[[T], bool]) -> None:
        self._over = over
        self._heap: list[tuple[float, int, T]] = []
        self._numbers = itertools.count()
        self._enough = 64

    def add(self, deadline: float, thing: T) -> None:
        """Note when a thing is due."""
        if deadline == float("inf"):
            return
        if len(self._heap) >= self._enough:
            self._heap = [entry for entry in self._heap if not self._over(entry[2])]
            heapq.heapify(self._heap)
            self._enough = 64 + 2 * len(self._heap)
        heapq.heappush(self._heap, (deadline, next(self._numbers), thing))

    @property
    def next(self) -> float | None:
        """The earliest deadline of a thing that still waits."""
        heap = self._heap
        while heap and self._over(heap[0][2]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[T]:
        """Take out what is due and still waits, the earliest first."""
        found: list[T] = []
        while (deadline := self.next) is not None and deadline <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found

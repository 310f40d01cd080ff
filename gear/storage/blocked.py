"""How long requests of one kind were parked, all together: the integral over time of how many there were."""

from __future__ import annotations

from time import monotonic_ns


class Blocked:
    """Counts only when the number changes; a request that is served at once costs nothing.

    Attributes
    ----------
    count : how many are parked now.
    """

    __slots__ = ("_last", "_nanoseconds", "count")

    def __init__(self) -> None:
        self.count = self._nanoseconds = self._last = 0

    def become(self, count: int) -> None:
        """That many are parked from now on."""
        now = monotonic_ns()
        self._nanoseconds += self.count * (now - self._last)
        self._last, self.count = now, count

    @property
    def seconds(self) -> float:
        """Time that requests were parked until now, those parked still included."""
        return (self._nanoseconds + self.count * (monotonic_ns() - self._last)) * 1e-9

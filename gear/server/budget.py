"""How much memory a shard may take, and what is left of it beside everything that takes some."""

from __future__ import annotations

from collections.abc import Callable


class MemoryBudget:
    """Bytes that tables and published arrays of a shard may take together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._takers: list[Callable[[], int]] = []

    def taken_by(self, taker: Callable[[], int]) -> None:
        """Count what `taker` says it takes, each time somebody asks."""
        self._takers.append(taker)

    @property
    def left(self) -> int:
        """Bytes that are not taken; negative if more are taken than allowed."""
        return self.limit - sum(taker() for taker in self._takers)

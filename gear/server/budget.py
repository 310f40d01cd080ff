"""How much memory a shard may take, and what is left of it beside everything that takes some."""

from __future__ import annotations

from collections.abc import Callable

from gear.errors import InsufficientMemory
from gear.storage.memory import memory_there, size_text

LEAST = 1 << 20
"""Bytes below which no table that anybody wants fits: a unit was left out."""


def check_memory(nbytes: int) -> int:
    """The size of ``--memory``, refused where it cannot have been meant.

    Raises
    ------
    InsufficientMemory
        If it is more than this machine could ever give, or too little for any table.
    """
    most, what = memory_there()
    if nbytes > most:
        raise InsufficientMemory(
            f"--memory {size_text(nbytes)} ({nbytes} bytes): expected at most {size_text(most)}, {what}; give less, or "
            "enlarge that"
        )
    if nbytes < LEAST:
        raise InsufficientMemory(
            f"--memory {size_text(nbytes)}: expected at least {size_text(LEAST)}; a number without a unit is bytes, "
            f"give a size like {nbytes}GiB"
        )
    return nbytes


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

"""Leases of an exact size that wait for blocks: for commits that follow, in the order in which they were asked for.

Not thread-safe: the owner serialises.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gear.errors import GearError

if TYPE_CHECKING:
    from gear.storage.layout import Grant
    from gear.storage.table import StoredTable


@dataclass(eq=False, slots=True)
class Allocate:
    """`done` gets a Grant or an error, once."""

    client: int
    blocks: int
    slots: int
    deadline: float
    done: Callable[[Any], None]
    over: bool = False


class Allocates:
    """Those of one table that wait.

    Attributes
    ----------
    waiting : in order.
    """

    def __init__(self, stored: StoredTable) -> None:
        self._stored = stored
        self.waiting: list[Allocate] = []

    def serve(self, committing: Container[int]) -> bool:
        """Serve the first that can be; whether one was.

        Who has commits parked (`committing`) is passed over: what it got would evict data and lie idle.
        """
        for at, request in enumerate(self.waiting):
            if request.client in committing:
                continue
            try:
                result: Grant | GearError | None = self._stored.allocate(request.client, request.blocks, request.slots)
            except GearError as error:
                result = error
            if result is None:
                return False
            del self.waiting[at]
            request.over = True
            request.done(result)
            return True
        return False

    def take(self, which: Callable[[Allocate], bool]) -> list[Allocate]:
        """Take those out of which that is true."""
        taken = [request for request in self.waiting if which(request)]
        if taken:
            self.waiting = [request for request in self.waiting if not which(request)]
            for request in taken:
                request.over = True
        return taken

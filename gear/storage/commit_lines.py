"""Commits that wait, of each client in its order: for the limiter, or for a place for the rows that came with them.

Not thread-safe: the owner serialises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gear.errors import GearError, ProtocolError
from gear.storage import fields as f
from gear.storage.entry import adds_up

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.arrival import Arrival, Growing
    from gear.storage.table import StoredTable


class CommitDone(NamedTuple):
    """Entries up to `sequence` are committed; `lost` names slots whose open trajectory had been evicted."""

    sequence: int
    lost: list[int]


Done = Callable[[Any], None]

_WHOLE = f.BEGIN | f.END


@dataclass(eq=False, slots=True)
class Commit:
    """Entries of one message that are not committed; `done` gets a CommitDone or an error, once."""

    client: int
    entries: npt.NDArray[np.void]
    blocks: npt.NDArray[np.int32]
    priorities: npt.NDArray[np.float64]
    done: Done
    lost: list[int]
    arrival: Arrival | None = None
    """Entries that follow, with rows that have no place yet."""

    @property
    def left(self) -> int:
        """Entries that are not committed."""
        return len(self.entries) + (self.arrival.count if self.arrival is not None else 0)


class CommitLines:
    """The commits of one table, and whose wait.

    Attributes
    ----------
    waiting : by client.
    hungry : clients whose rows wait for blocks.
    copying : clients whose rows are being copied to their place: `serve` goes on with them.
    """

    def __init__(self, stored: StoredTable) -> None:
        self._stored = stored
        self.waiting: dict[int, deque[Commit]] = {}
        self.hungry: set[int] = set()
        self.copying: set[int] = set()
        self._growing: dict[int, Growing] = {}

    def add(self, request: Commit) -> bool:
        """Commit what can be committed now, the rest waits; whether anything was tried."""
        waiting = self.waiting.get(request.client)
        if waiting is not None:  # earlier entries wait: these can only be checked once those are committed
            if adds_up(request.entries, request.blocks, request.priorities):
                waiting.append(request)
            else:
                request.done(ProtocolError("commit: the entries do not name as many blocks and priorities as came"))
            return False
        if not self._try(request):
            self.waiting[request.client] = deque([request])
        return True

    def _try(self, request: Commit) -> bool:
        """Commit what the limiter lets pass; whether the request is finished."""
        stored, client, arrival = self._stored, request.client, request.arrival
        while True:
            if arrival is not None and not len(request.entries) and not self._land(request, arrival):
                return False
            try:
                stored.check(client, request.entries, request.blocks, request.priorities)
            except GearError as error:
                if arrival is not None:  # its leases are no business of the client's
                    begun = request.entries["flags"] & f.BEGIN != 0
                    stored.end_leases(client, request.blocks, request.entries["slot"][begun])
                    arrival.refused()
                request.done(error)
                return True
            n, n_blocks, n_priorities, lost = stored.commit(client, request.entries, request.blocks, request.priorities)
            over = n == len(request.entries)
            if lost:
                request.lost += lost if arrival is None else [arrival.name(slot) for slot in lost]
            if over and arrival is None:
                request.done(CommitDone(stored.committed(client), request.lost))
                return True
            request.entries = request.entries[n:]
            request.blocks = request.blocks[n_blocks:]
            request.priorities = request.priorities[n_priorities:]
            if not over:
                return False
            if arrival is None or not arrival.count:
                request.done(CommitDone(stored.committed(client), request.lost))
                return True

    def _land(self, request: Commit, arrival: Arrival) -> bool:
        """Give the next rows of a message a place; False if there is none now."""
        if not arrival.count:
            self.hungry.discard(request.client)
            return True
        admitted = self._stored.admits
        landed = arrival.land(admitted)
        if landed is not None:
            request.entries, request.blocks, request.priorities = landed
        waits = landed is None and arrival.count > 0
        (self.copying.add if arrival.copying else self.copying.discard)(request.client)
        (self.hungry.add if waits and admitted and not arrival.copying else self.hungry.discard)(request.client)
        return not waits

    def serve(self) -> bool:
        """Each client in turn; who got something goes to the end, so that none is starved by another."""
        moved = False
        for client, waiting in list(self.waiting.items()):
            served = False
            while waiting:
                n = waiting[0].left
                if not self._try(waiting[0]):
                    served |= waiting[0].left != n
                    break
                waiting.popleft()
                served = True
            if not waiting:
                del self.waiting[client]
            elif served:
                self.waiting[client] = self.waiting.pop(client)
            moved |= served
        return moved

    @property
    def left(self) -> int:
        """Entries that wait."""
        return sum(request.left for waiting in self.waiting.values() for request in waiting)

    def growing(self, client: int) -> Growing:
        """The open trajectories of a client whose rows arrive."""
        return self._growing.setdefault(client, {})

    def unplaced(self, client: int) -> int:
        """Bytes of rows of the client that wait for a place."""
        waiting = self.waiting.get(client, ())
        return sum(request.arrival.nbytes for request in waiting if request.arrival is not None)

    def withdraw(self, client: int, first: int, last: int) -> int:
        """Drop the client's uncommitted entries first..last and end their leases; returns how many there were.

        Raises
        ------
        ProtocolError
            If one of them is only a part of its trajectory: what follows it could not be committed.
        """
        found = []
        for request in self.waiting.get(client, ()):
            if request.arrival is not None and request.arrival.copying:
                landed = request.arrival.finish()
                assert landed is not None
                request.entries, request.blocks, request.priorities = landed
                self.copying.discard(client)
            leaving = (request.entries["sequence"] >= first) & (request.entries["sequence"] <= last)
            arrival = request.arrival
            partial = arrival is not None and arrival.partial(first, last)
            if partial or (request.entries["flags"][leaving] & _WHOLE != _WHOLE).any():
                raise ProtocolError(f"of commits {first} to {last} only whole trajectories can be withdrawn")
            found.append((request, leaving))
        dropped: set[int] = set()
        for request, leaving in found:
            entries = request.entries
            of_block = np.repeat(leaving, entries["blocks"])
            of_priority = np.repeat(leaving, entries["priorities"])
            blocks = request.blocks[of_block]
            slots = entries["slot"][leaving]
            request.entries = entries[~leaving]
            request.blocks = request.blocks[~of_block]
            request.priorities = request.priorities[~of_priority]
            # A message sent again names the same leases once more: the second time there is nothing to end.
            self._stored.end_leases(client, blocks, slots)
            dropped.update(entries["sequence"][leaving].tolist())
            if request.arrival is not None:
                dropped.update(request.arrival.drop(first, last))
        return len(dropped)

    def forget(self, client: int) -> None:
        """Drop everything of a client that is gone."""
        self.waiting.pop(client, None)
        self._growing.pop(client, None)
        self.hungry.discard(client)
        self.copying.discard(client)

"""What must wait: commits held back by the limiter, selects without items or credit, allocations.

Requests are parked in order and woken by the event they wait for: a commit wakes selects, a delivery wakes
commits, a release wakes allocations. Nothing polls. `done` is called exactly once for each request, with
its result or a GearError, possibly before the call returns. Not thread-safe: the owner serialises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gear.errors import DeadlineExceeded, GearError
from gear.storage import fields as f

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.table import StoredTable


class CommitDone(NamedTuple):
    """Entries up to `sequence` are committed; `lost` names slots whose open trajectory had been evicted."""

    sequence: int
    lost: list[int]


Done = Callable[[Any], None]


@dataclass(eq=False, slots=True)
class _Commit:
    client: int
    entries: npt.NDArray[np.void]
    blocks: npt.NDArray[np.int32]
    priorities: npt.NDArray[np.float64]
    done: Done
    lost: list[int]


@dataclass(eq=False, slots=True)
class _Select:
    client: int
    size: int
    parties: int
    ttl: float
    deadline: float
    done: Done
    credit: int = 0


@dataclass(eq=False, slots=True)
class _Allocate:
    client: int
    blocks: int
    slots: int
    deadline: float
    done: Done


class RequestQueue:
    """The requests of one stored table, served in order per kind (and per client for commits)."""

    def __init__(self, stored: StoredTable) -> None:
        self.stored = stored
        self._commits: dict[int, deque[_Commit]] = {}
        self._selects: deque[_Select] = deque()
        self._allocates: deque[_Allocate] = deque()

    def commit(
        self,
        client: int,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
        done: Done,
    ) -> None:
        """Check and commit entries of one client, in its order; `done` gets a CommitDone when all are in."""
        waiting = self._commits.get(client)
        if waiting is None:
            waiting = self._commits[client] = deque()
        request = _Commit(client, entries, blocks, priorities, done, [])
        if waiting:  # earlier entries wait: these can only be checked once those are committed
            waiting.append(request)
            return
        if self._try_commit(request, check=True):
            self.advance()
        else:
            waiting.append(request)
            self.advance()

    def _try_commit(self, request: _Commit, check: bool) -> bool:
        """Commit what the limiter lets pass; whether the request is finished."""
        stored, client = self.stored, request.client
        if check:
            try:
                stored.check(client, request.entries, request.blocks, request.priorities)
            except GearError as error:
                request.done(error)
                return True
        n, n_blocks, n_priorities, lost = stored.commit(client, request.entries, request.blocks, request.priorities)
        request.lost += lost
        if n < len(request.entries):
            request.entries = request.entries[n:]
            request.blocks = request.blocks[n_blocks:]
            request.priorities = request.priorities[n_priorities:]
            return False
        request.done(CommitDone(stored.committed(client), request.lost))
        return True

    def select(self, client: int, size: int, parties: int, ttl: float, deadline: float, done: Done) -> None:
        """Draw `size` items when there are items and credit; `done` gets a Selection.

        Credit is gathered while waiting, so a batch larger than the limiter's span still comes.
        """
        request = _Select(client, size, parties, ttl, deadline, done)
        if not self._selects and self._try_select(request):
            # Reserved credit counts as sampled: a waiting insert may now pass.
            if self._commits:
                self.advance()
        else:
            self._selects.append(request)
            if self._commits:
                self.advance()

    def _try_select(self, request: _Select) -> bool:
        result = self.stored.select(request.client, request.size, request.parties, request.ttl, request.credit)
        if isinstance(result, int):
            request.credit = result
            return False
        request.done(result)
        return True

    def allocate(self, client: int, blocks: int, slots: int, deadline: float, done: Done) -> None:
        """Lease exactly that many blocks and slots for a commit; `done` gets a Grant."""
        request = _Allocate(client, blocks, slots, deadline, done)
        if self._allocates or not self._try_allocate(request):
            self._allocates.append(request)
        self.advance()

    def _try_allocate(self, request: _Allocate) -> bool:
        try:
            grant = self.stored.allocate(request.client, request.blocks, request.slots)
        except GearError as error:
            request.done(error)
            return True
        if grant is None:
            return False
        request.done(grant)
        return True

    def advance(self) -> None:
        """Serve every parked request that can be served now, until nothing moves."""
        moved = True
        while moved:
            moved = False
            while self._allocates and self._try_allocate(self._allocates[0]):
                self._allocates.popleft()
                moved = True
            for client in list(self._commits):
                waiting = self._commits[client]
                while waiting:
                    n = len(waiting[0].entries)
                    if self._try_commit(waiting[0], check=True):
                        waiting.popleft()
                        moved = True
                    else:
                        moved |= len(waiting[0].entries) != n
                        break
                if not waiting:
                    del self._commits[client]
            while self._selects:
                before = self._selects[0].credit
                if self._try_select(self._selects[0]):
                    self._selects.popleft()
                    moved = True
                else:
                    moved |= self._selects[0].credit != before
                    break

    @property
    def idle(self) -> bool:
        """Whether nothing is parked: a call may then go to the table directly."""
        return not (self._selects or self._commits or self._allocates)

    @property
    def starved(self) -> bool:
        """Whether somebody waits for blocks: time to revoke pins."""
        return bool(self._allocates)

    def withdraw(self, client: int, first: int, last: int) -> int:
        """Drop the client's uncommitted entries first..last and end their leases; returns how many there were.

        `done` of a message that loses entries is called when the rest of it is committed.
        """
        dropped = 0
        for request in self._commits.get(client, ()):
            entries = request.entries
            leaving = (entries["sequence"] >= first) & (entries["sequence"] <= last)
            if leaving.any():
                dropped += int(leaving.sum())
                of_block = np.repeat(leaving, entries["blocks"])
                of_priority = np.repeat(leaving, entries["priorities"])
                self.stored.give_back(client, request.blocks[of_block], entries["slot"][leaving].copy())
                request.entries = entries[~leaving]
                request.blocks = request.blocks[~of_block]
                request.priorities = request.priorities[~of_priority]
        if dropped:
            self.advance()
        return dropped

    def forget(self, client: int) -> None:
        """Drop everything parked of a client that is gone."""
        self._commits.pop(client, None)
        for request in self._selects:
            if request.client == client:
                self.stored.unreserve(request.credit)
        self._selects = deque(r for r in self._selects if r.client != client)
        self._allocates = deque(r for r in self._allocates if r.client != client)
        self.advance()

    def expire(self, now: float) -> None:
        """End requests whose deadline (`time.monotonic()`) passed; the error says what they waited for."""
        late = [r for r in self._selects if r.deadline <= now]
        if late:
            self._selects = deque(r for r in self._selects if r.deadline > now)
            for request in late:
                self.stored.unreserve(request.credit)
                request.done(DeadlineExceeded(f"sample of {request.size} timed out: {self.sample_obstacle()}"))
        expired = [r for r in self._allocates if r.deadline <= now]
        if expired:
            self._allocates = deque(r for r in self._allocates if r.deadline > now)
            for waiting in expired:
                waiting.done(
                    DeadlineExceeded(
                        f"insert of {waiting.blocks} blocks timed out: {self.memory_obstacle()}; nothing was inserted"
                    )
                )
        if late or expired:
            self.advance()

    def next_deadline(self) -> float | None:
        """Earliest deadline of a parked request, by `time.monotonic()`."""
        return min((r.deadline for waiting in (self._selects, self._allocates) for r in waiting), default=None)

    def sample_obstacle(self) -> str:
        """What a sample waits for, in words."""
        counters, table = self.stored.counters, self.stored.table
        items = int(counters[f.ITEM_COUNT])
        least = self.stored.params[f.P_MIN_SIZE]
        if items < least:
            return f"table {table.name!r} holds {items} items and its limiter wants at least {least}; insert more"
        if not self.stored.drawable:
            return f"table {table.name!r} holds {items} items, none of which can be drawn (zero priority or used up)"
        return f"the limiter {table.limiter} of table {table.name!r} waits for inserts ({self._balance()})"

    def insert_obstacle(self) -> str:
        """What an insert waits for, in words."""
        table = self.stored.table
        return f"the limiter {table.limiter} of table {table.name!r} waits for samples ({self._balance()})"

    def memory_obstacle(self) -> str:
        """Who keeps blocks from being reused, in words."""
        stored = self.stored
        info = stored.info()
        names = (
            ", ".join(stored.client_name(client) for client in stored.pins.blocking()) or "writers with leased blocks"
        )
        return (
            f"table {stored.table.name!r} is out of blocks: {info['held_blocks']} evicted ones are still read and "
            f"{info['leased_blocks']} are leased; held by {names}"
        )

    def _balance(self) -> str:
        counters = self.stored.counters
        sampled = int(counters[f.SAMPLED_ITEMS] + counters[f.RESERVED_ITEMS])
        return f"{int(counters[f.INSERTED_ITEMS])} items inserted, {sampled} sampled or promised"

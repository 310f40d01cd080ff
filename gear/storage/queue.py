"""What must wait: commits held back by the limiter, selects without items or credit, allocations.

Requests are parked in order and woken by the event they wait for: a commit wakes selects, a delivery wakes
commits, a release wakes allocations. Nothing polls. `done` is called exactly once for each request, with
its result or a GearError, possibly before the call returns. Not thread-safe: the owner serialises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gear.batch import Selection
from gear.errors import DeadlineExceeded
from gear.storage import fields as f
from gear.storage import obstacles
from gear.storage.allocates import Allocate, Allocates
from gear.storage.attempts import Attempt, Attempts, Run
from gear.storage.blocked import Blocked
from gear.storage.commit_lines import Commit, CommitDone, CommitLines
from gear.storage.credit import Credits
from gear.storage.deadlines import Deadlines
from gear.storage.dropping import drop
from gear.storage.growing import Waits
from gear.storage.ranks import Ranks
from gear.storage.ranks_asks import Ask
from gear.storage.selects import Select, Selects

__all__ = ["CommitDone", "RequestQueue"]

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gear.batch import Update
    from gear.storage.arrival import Arrival, Growing
    from gear.storage.budget import Budget
    from gear.storage.table import StoredTable


Done = Callable[[Any], None]


class RequestQueue:
    """The requests of one stored table, served in order per kind (and per client for commits)."""

    def __init__(self, stored: StoredTable) -> None:
        self.stored = stored
        self._lines = CommitLines(stored)
        self._commits, self.copying = self._lines.waiting, self._lines.copying
        self._selects = Selects(stored)
        self._allocates = Allocates(stored)
        self._attempts = Attempts()
        self._readers, self._writers = Blocked(), Blocked()
        self._deadlines: Deadlines[Any] = Deadlines(lambda request: bool(request.over))
        self.credits = Credits(stored)
        self.ranks = Ranks(self)
        self.elsewhere: Callable[[], str] = str
        """What inserts wait for on another shard, in words; nothing where the table's limiter is this shard's."""

    def commit(
        self,
        client: int,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
        done: Done,
    ) -> None:
        """Check and commit entries of one client, in its order; `done` gets a CommitDone when all are in.

        The arrays stay the queue's until then.
        """
        if self._lines.add(Commit(client, entries, blocks, priorities, done, [])):
            self.advance()

    def insert(self, client: int, arrival: Arrival, done: Done) -> None:
        """The same for entries whose rows came with them; the arrival stays the queue's."""
        if self._lines.add(Commit(client, *arrival.nothing, done, [], arrival)):
            self.advance()

    def growing(self, client: int) -> Growing:
        """The open trajectories of a client whose rows arrive."""
        return self._lines.growing(client)

    def unplaced(self, client: int) -> int:
        """Bytes of rows of the client that wait for a place."""
        return self._lines.unplaced(client)

    def select(
        self,
        client: int,
        size: int,
        parties: int,
        ttl: float,
        deadline: float,
        done: Done,
        which: int = 0,
        reach: tuple[int, int] = (0, 0),
        budget: Budget | None = None,
        consumer: int = -1,
    ) -> None:
        """Draw `size` items of a set when there are items and credit; `done` gets a Selection.

        Credit is gathered while waiting, so a batch larger than the limiter's span still comes. `consumer` claims
        what is drawn (`Table.consumer`).
        """
        self.draw(Select(client, size, parties, ttl, deadline, done, which, reach, budget, consumer))

    def draw(self, request: Select) -> None:
        """Serve a request now or park it."""
        served = self._selects.add(request, self._pressing)
        if not served:
            self._deadlines.add(request.deadline, request)
        # Reserved credit counts as sampled: a waiting insert may now pass. And what was drawn lacks nothing any more.
        if self._commits or (served and self._selects.count):
            self.advance()
        elif not served:
            self._tally()

    def watch(self, ask: Ask) -> None:
        """Have `expire` look at the ranks when one has waited for too long."""
        self._deadlines.add(ask.deadline, ask)

    def undraw(self, request: Select) -> None:
        """Nobody waits any more for a request."""
        self._selects.take(lambda other: other is request)

    def select_at_once(
        self, client: int, size: int, parties: int, ttl: float, reach: tuple[int, int]
    ) -> Selection | None:
        """Draw `size` items of set 0 of a table without consumers, None if a request for them has to wait."""
        if self._selects.count:
            return None
        result = self.stored.select(client, size, parties, ttl, 0, self._pressing, 0, reach)
        if type(result) is int:
            self.stored.unreserve(result)
            return None
        if self._commits:  # reserved credit counts as sampled: a waiting insert may now pass
            self.advance()
        return result  # type: ignore[return-value]

    def select_now(
        self, client: int, size: int, parties: int, ttl: float, reach: tuple[int, int] = (0, 0)
    ) -> Selection:
        """Draw up to `size` items of a part of a table, none where there are none."""
        result = self.stored.select(client, size, parties, ttl, 0, True, reach=reach) if size else 0
        if isinstance(result, int):
            self.stored.unreserve(result)
            return Selection.empty(self.stored.table.name, parties)
        if self._commits:
            self.advance()
        return result

    def credit(self, client: int, amount: int, parties: int, ttl: float, deadline: float, done: Done) -> None:
        """Credit for a batch from several shards, see `Credits.request`."""
        request = self.credits.request(client, amount, parties, ttl, deadline, done)
        self.advance()
        if not request.over:
            self._deadlines.add(deadline, request)

    def await_items(self, client: int, above: int, done: Done) -> None:
        """Call `done` when anything can be drawn, and more than `above` items."""
        self.credits.await_items(client, above, done)
        self.credits.serve()

    @property
    def wanted(self) -> int:
        """Entries that wait for the limiter or for room."""
        sealing = sum(attempt.waits is Waits.CREDIT for attempt in self._attempts)
        return sealing + self._lines.left

    def attempt(self, client: int, what: str, run: Run, deadline: float, done: Done) -> None:
        """Do something with an open trajectory when it can be done; `done` gets what `run` returns or raises."""
        attempt = Attempt(client, what, run, deadline, done)
        self._attempts.add(attempt)
        self.advance()
        if not attempt.over:
            self._deadlines.add(deadline, attempt)

    def set_version(self, version: int) -> int:
        """Raise the table's version, see `StoredTable.set_version`; wakes who waits for it."""
        self._selects.let_go()  # what they have gathered may be for items that leave now
        current = self.stored.set_version(version)
        self.advance()
        return current

    def reset(self) -> None:
        """Empty the table, see `StoredTable.reset`; who waits gathers credit anew, as everything counts anew."""
        self._selects.let_go()
        self.stored.reset()
        self.credits.reset()
        self.advance()

    def drop(self, ids: npt.NDArray[np.int64]) -> Update:
        """Drop trajectories by id, see `dropping.drop`; wakes who waits for it.

        Raises
        ------
        DataError
            As `dropping.drop`.
        """
        self._selects.let_go()
        try:
            return drop(self.stored, ids)
        finally:
            self.advance()

    @property
    def _pressing(self) -> bool:
        """Whether writers wait: a queue may be full before it holds a batch, then a short one makes room for them."""
        return bool(self._commits or self._allocates.waiting or self._attempts.waiting)

    def allocate(self, client: int, blocks: int, slots: int, deadline: float, done: Done) -> None:
        """Lease exactly that many blocks and slots for a commit; `done` gets a Grant."""
        request = Allocate(client, blocks, slots, deadline, done)
        self._allocates.waiting.append(request)
        self.advance()
        if not request.over:
            self._deadlines.add(deadline, request)

    def advance(self) -> None:
        """Serve every parked request that can be served now, until nothing moves."""
        if self.idle and not self.credits.any:
            if self._readers.count or self._writers.count:
                self._tally()
            return
        counters, moved = self.stored.counters, True
        while moved:
            gone = int(counters[f.EVICTED_COUNT])  # who was refused may have made room for somebody else
            moved = self._attempts.serve() | self._allocates.serve(self._commits) | self._lines.serve()
            moved |= self._selects.serve(self._pressing) | self.credits.serve() | self.ranks.serve()
            moved |= int(counters[f.EVICTED_COUNT]) != gone
        self._tally()

    def _tally(self) -> None:
        """Take note of how many wait: selects, and writers' allocations and clients with commits."""
        readers = self._selects.count + len(self.credits) + self.ranks.waiting
        writers = len(self._commits) + len(self._allocates.waiting) + len(self._attempts.waiting)
        if readers != self._readers.count:
            self._readers.become(readers)
        if writers != self._writers.count:
            self._writers.become(writers)

    def info(self) -> dict[str, Any]:
        """How many readers and writers wait, and how many seconds all of them together have waited. Plain data."""
        return {
            "waiting_readers": self._readers.count,
            "waiting_writers": self._writers.count,
            "blocked_reader_seconds": self._readers.seconds,
            "blocked_writer_seconds": self._writers.seconds,
            "lost_parts": self.stored.pins.lost_parts,
        }

    @property
    def idle(self) -> bool:
        """Whether nothing is parked: a call may then go to the table directly."""
        return not (
            self._selects.count
            or self._commits
            or self._allocates.waiting
            or self._attempts.waiting
            or self.ranks.parked
        )

    @property
    def starved(self) -> bool:
        """Whether somebody waits for blocks: time to revoke pins."""
        return bool(self._allocates.waiting or self._lines.hungry or (self._attempts.waiting and self._attempts.hungry))

    def withdraw(self, client: int, first: int, last: int) -> int:
        """Drop the client's uncommitted entries first..last and end their leases; returns how many there were.

        `done` of a message that loses entries is called when the rest of it is committed.

        Raises
        ------
        ProtocolError
            If one of them is only a part of its trajectory: what follows it could not be committed.
        """
        dropped = self._lines.withdraw(client, first, last)
        if dropped:
            self.advance()
        return dropped

    def cancel(self, done: Done) -> None:
        """Drop the parked select or allocation whose `done` this is: nobody waits for it any more."""
        self._selects.take(lambda r: r.done == done)
        self.ranks.cancel(done)
        self._attempts.take(lambda r: r.done == done)
        self._allocates.take(lambda r: r.done == done)
        self.advance()

    def forget(self, client: int) -> None:
        """Drop everything parked of a client that is gone."""
        self.credits.forget(client)
        self._lines.forget(client)
        self.ranks.forget(client)
        self._selects.take(lambda r: r.client == client)
        self._attempts.take(lambda r: r.client == client)
        self._allocates.take(lambda r: r.client == client)
        self.advance()

    def expire(self, now: float) -> None:
        """End requests whose deadline (`time.monotonic()`) passed; the error says what they waited for."""
        if self.stored.groups is not None and self.stored.groups.expire(now):
            self.advance()
        if not self._deadlines.due(now):
            return
        late = self._selects.take(lambda r: r.deadline <= now)
        for request in late:
            reason = obstacles.of_sample(self.stored, request.size, request.which, request.consumer)
            request.done(DeadlineExceeded(f"sample of {request.size} timed out: {reason}"))
        given_up = self._attempts.take(lambda r: r.deadline <= now)
        for attempt in given_up:
            reason = obstacles.of_attempt(self.stored, attempt.waits)
            attempt.done(DeadlineExceeded(f"{attempt.what} timed out: {reason}; nothing was changed"))
        expired = self._allocates.take(lambda r: r.deadline <= now)
        for waiting in expired:
            reason = self.insert_obstacle() if waiting.client in self._commits else obstacles.of_memory(self.stored)
            waiting.done(
                DeadlineExceeded(f"insert of {waiting.blocks} blocks timed out: {reason}; nothing was inserted")
            )
        if self.credits.expire(now) | self.ranks.expire(now) or late or expired or given_up:
            self.advance()

    def next_deadline(self) -> float | None:
        """Earliest deadline of a parked request, by `time.monotonic()`."""
        mine, event = self._deadlines.next, self.next_event
        return mine if event is None or (mine is not None and mine < event) else event

    @property
    def next_event(self) -> float | None:
        """`time.monotonic()` at which `expire` changes the table itself: a group is late."""
        return None if self.stored.groups is None else self.stored.groups.next_deadline

    def insert_obstacle(self) -> str:
        """What an insert waits for, in words."""
        if self._lines.hungry and self.stored.admits:
            return obstacles.of_memory(self.stored)
        return self.elsewhere() or obstacles.of_insert(self.stored, self.credits.ledger)

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

from gear.batch import Selection
from gear.errors import DeadlineExceeded, GearError, ProtocolError
from gear.storage import fields as f
from gear.storage import obstacles
from gear.storage.attempts import Attempt, Attempts, Run
from gear.storage.blocked import Blocked
from gear.storage.credit import Credits
from gear.storage.growing import Waits
from gear.storage.ranks import Ranks
from gear.storage.selects import Select, Selects

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.arrival import Arrival, Growing
    from gear.storage.budget import Budget
    from gear.storage.layout import Grant
    from gear.storage.table import StoredTable


class CommitDone(NamedTuple):
    """Entries up to `sequence` are committed; `lost` names slots whose open trajectory had been evicted."""

    sequence: int
    lost: list[int]


Done = Callable[[Any], None]

_WHOLE = f.BEGIN | f.END


@dataclass(eq=False, slots=True)
class _Commit:
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
        self._selects = Selects(stored)
        self._allocates: deque[_Allocate] = deque()
        self._attempts = Attempts()
        self._readers, self._writers = Blocked(), Blocked()
        self._hungry: set[int] = set()
        self.copying: set[int] = set()
        """Clients whose rows are being copied to their place: `advance` goes on with them."""
        self._growing: dict[int, Growing] = {}
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
        self._enqueue(_Commit(client, entries, blocks, priorities, done, []))

    def insert(self, client: int, arrival: Arrival, done: Done) -> None:
        """The same for entries whose rows came with them; the arrival stays the queue's."""
        nothing = arrival.nothing
        self._enqueue(_Commit(client, *nothing, done, [], arrival))

    def growing(self, client: int) -> Growing:
        """The open trajectories of a client whose rows arrive."""
        return self._growing.setdefault(client, {})

    def unplaced(self, client: int) -> int:
        """Bytes of rows of the client that wait for a place."""
        waiting = self._commits.get(client, ())
        return sum(request.arrival.nbytes for request in waiting if request.arrival is not None)

    def _enqueue(self, request: _Commit) -> None:
        client = request.client
        waiting = self._commits.get(client)
        if waiting is not None:  # earlier entries wait: these can only be checked once those are committed
            waiting.append(request)
            return
        if not self._try_commit(request):
            self._commits[client] = deque([request])
        self.advance()

    def _try_commit(self, request: _Commit) -> bool:
        """Commit what the limiter lets pass; whether the request is finished."""
        stored, client, arrival = self.stored, request.client, request.arrival
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
            request.lost += lost if arrival is None else [arrival.name(slot) for slot in lost]
            over = n == len(request.entries)
            request.entries = request.entries[n:]
            request.blocks = request.blocks[n_blocks:]
            request.priorities = request.priorities[n_priorities:]
            if not over:
                return False
            if arrival is None or not arrival.count:
                request.done(CommitDone(stored.committed(client), request.lost))
                return True

    def _land(self, request: _Commit, arrival: Arrival) -> bool:
        """Give the next rows of a message a place; False if there is none now."""
        if not arrival.count:
            self._hungry.discard(request.client)
            return True
        admitted = self.stored.admits
        landed = arrival.land(admitted)
        if landed is not None:
            request.entries, request.blocks, request.priorities = landed
        waits = landed is None and arrival.count > 0
        (self.copying.add if arrival.copying else self.copying.discard)(request.client)
        (self._hungry.add if waits and admitted and not arrival.copying else self._hungry.discard)(request.client)
        return not waits

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
        # Reserved credit counts as sampled: a waiting insert may now pass. And what was drawn lacks nothing any more.
        if self._commits or (served and self._selects):
            self.advance()
        elif not served:
            self._tally()

    def undraw(self, request: Select) -> None:
        """Nobody waits any more for a request."""
        self._selects.take(lambda other: other is request)

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
        self.credits.request(client, amount, parties, ttl, deadline, done)
        self.advance()

    def await_items(self, client: int, above: int, done: Done) -> None:
        """Call `done` when anything can be drawn, and more than `above` items."""
        self.credits.await_items(client, above, done)
        self.credits.serve()

    @property
    def wanted(self) -> int:
        """Entries that wait for the limiter or for room."""
        sealing = sum(attempt.waits is Waits.CREDIT for attempt in self._attempts)
        return sealing + sum(request.left for waiting in self._commits.values() for request in waiting)

    def attempt(self, client: int, what: str, run: Run, deadline: float, done: Done) -> None:
        """Do something with an open trajectory when it can be done; `done` gets what `run` returns or raises."""
        self._attempts.add(Attempt(client, what, run, deadline, done))
        self.advance()

    def set_version(self, version: int) -> int:
        """Raise the table's version, see `StoredTable.set_version`; wakes who waits for it."""
        self._selects.let_go()  # what they have gathered may be for items that leave now
        current = self.stored.set_version(version)
        self.advance()
        return current

    @property
    def _pressing(self) -> bool:
        """Whether writers wait: a queue may be full before it holds a batch, then a short one makes room for them."""
        return bool(self._commits or self._allocates or self._attempts)

    def allocate(self, client: int, blocks: int, slots: int, deadline: float, done: Done) -> None:
        """Lease exactly that many blocks and slots for a commit; `done` gets a Grant."""
        request = _Allocate(client, blocks, slots, deadline, done)
        self._allocates.append(request)
        self.advance()

    def _serve_allocates(self) -> bool:
        """In order; who has commits parked is passed over: what it got would evict data and lie idle."""
        for at, request in enumerate(self._allocates):
            if request.client in self._commits:
                continue
            try:
                result: Grant | GearError | None = self.stored.allocate(request.client, request.blocks, request.slots)
            except GearError as error:
                result = error
            if result is None:
                return False
            del self._allocates[at]
            request.done(result)
            return True
        return False

    def _serve_commits(self) -> bool:
        """Each client in turn; who got something goes to the end, so that none is starved by another."""
        moved = False
        for client, waiting in list(self._commits.items()):
            served = False
            while waiting:
                n = waiting[0].left
                if not self._try_commit(waiting[0]):
                    served |= waiting[0].left != n
                    break
                waiting.popleft()
                served = True
            if not waiting:
                del self._commits[client]
            elif served:
                self._commits[client] = self._commits.pop(client)
            moved |= served
        return moved

    def advance(self) -> None:
        """Serve every parked request that can be served now, until nothing moves."""
        if self.idle and not self.credits.any:
            self._tally()
            return
        counters, moved = self.stored.counters, True
        while moved:
            gone = int(counters[f.EVICTED_COUNT])  # who was refused may have made room for somebody else
            moved = self._attempts.serve() | self._serve_allocates() | self._serve_commits()
            moved |= self._selects.serve(self._pressing) | self.credits.serve() | self.ranks.serve()
            moved |= int(counters[f.EVICTED_COUNT]) != gone
        self._tally()

    def _tally(self) -> None:
        """Take note of how many wait: selects, and writers' allocations and clients with commits."""
        readers = len(self._selects) + len(self.credits) + self.ranks.waiting
        writers = len(self._commits) + len(self._allocates) + len(self._attempts)
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
        return not (self._selects or self._commits or self._allocates or self._attempts or len(self.ranks))

    @property
    def starved(self) -> bool:
        """Whether somebody waits for blocks: time to revoke pins."""
        return bool(self._allocates or self._hungry or self._attempts.hungry)

    def withdraw(self, client: int, first: int, last: int) -> int:
        """Drop the client's uncommitted entries first..last and end their leases; returns how many there were.

        `done` of a message that loses entries is called when the rest of it is committed.

        Raises
        ------
        ProtocolError
            If one of them is only a part of its trajectory: what follows it could not be committed.
        """
        found = []
        for request in self._commits.get(client, ()):
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
            self.stored.end_leases(client, blocks, slots)
            dropped.update(entries["sequence"][leaving].tolist())
            if request.arrival is not None:
                dropped.update(request.arrival.drop(first, last))
        if dropped:
            self.advance()
        return len(dropped)

    def cancel(self, done: Done) -> None:
        """Drop the parked select or allocation whose `done` this is: nobody waits for it any more."""
        self._selects.take(lambda r: r.done == done)
        self.ranks.cancel(done)
        self._attempts.take(lambda r: r.done == done)
        self._allocates = deque(r for r in self._allocates if r.done != done)
        self.advance()

    def forget(self, client: int) -> None:
        """Drop everything parked of a client that is gone."""
        self.credits.forget(client)
        self.ranks.forget(client)
        self._commits.pop(client, None)
        self._growing.pop(client, None)
        self._hungry.discard(client)
        self.copying.discard(client)
        self._selects.take(lambda r: r.client == client)
        self._attempts.take(lambda r: r.client == client)
        self._allocates = deque(r for r in self._allocates if r.client != client)
        self.advance()

    def expire(self, now: float) -> None:
        """End requests whose deadline (`time.monotonic()`) passed; the error says what they waited for."""
        due = self.next_deadline()
        if due is None or due > now:  # asked after every message
            return
        if self.stored.groups is not None and self.stored.groups.expire(now):
            self.advance()
        late = self._selects.take(lambda r: r.deadline <= now)
        for request in late:
            reason = obstacles.of_sample(self.stored, request.size, request.which, request.consumer)
            request.done(DeadlineExceeded(f"sample of {request.size} timed out: {reason}"))
        given_up = self._attempts.take(lambda r: r.deadline <= now)
        for attempt in given_up:
            reason = obstacles.of_attempt(self.stored, attempt.waits)
            attempt.done(DeadlineExceeded(f"{attempt.what} timed out: {reason}; nothing was changed"))
        expired = [r for r in self._allocates if r.deadline <= now]
        if expired:
            self._allocates = deque(r for r in self._allocates if r.deadline > now)
            for waiting in expired:
                reason = self.insert_obstacle() if waiting.client in self._commits else obstacles.of_memory(self.stored)
                waiting.done(
                    DeadlineExceeded(f"insert of {waiting.blocks} blocks timed out: {reason}; nothing was inserted")
                )
        if self.credits.expire(now) | self.ranks.expire(now) or late or expired or given_up:
            self.advance()

    def next_deadline(self) -> float | None:
        """Earliest deadline of a parked request, by `time.monotonic()`."""
        due = [r.deadline for waiting in (self._selects, self._allocates, self._attempts, self.ranks) for r in waiting]
        due += [d for d in (self.credits.next_deadline(), self.next_event) if d is not None]
        return min(due, default=None)

    @property
    def next_event(self) -> float | None:
        """`time.monotonic()` at which `expire` changes the table itself: a group is late."""
        return None if self.stored.groups is None else self.stored.groups.next_deadline

    def insert_obstacle(self) -> str:
        """What an insert waits for, in words."""
        if self._hungry and self.stored.admits:
            return obstacles.of_memory(self.stored)
        return self.elsewhere() or obstacles.of_insert(self.stored, self.credits.ledger)

"""One table of one shard: lease, commit, evict, draw, release, update.

`StoredTable` owns the segment and is its single writer: whoever holds it serialises the calls (the shard
by its loop, an embedded client by a lock). It never waits; what can not happen now is said by the return
value, and `gear.storage.queue` parks it. It must never hand out a block that somebody may still touch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.batch import NO_NEIGHBOURS, Selection, Update
from gear.errors import DataError, InsufficientMemory, ProtocolError, StaleItems
from gear.kernels.collect import collect
from gear.schema import MaxHeap, MinHeap, Prioritized, Table
from gear.storage import commit as commits
from gear.storage import draw, figures, filling, format, memory, room, sample, seams, settle, versions
from gear.storage import fields as f
from gear.storage import pick as picks
from gear.storage.blocks import end_leases, lease
from gear.storage.budget import Budget, Drawn, fill
from gear.storage.budget_claimed import take_steps
from gear.storage.claims import NOBODY, Claims
from gear.storage.evict import evict, unpin
from gear.storage.groups import GroupBook
from gear.storage.growing import Growing
from gear.storage.layout import Grant, Layout
from gear.storage.passing import insert_passes
from gear.storage.pins import Pins
from gear.storage.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from gear.devices.arena import Arena
    from gear.plan import Plan
    from gear.storage.draws_there import DrawsThere
    from gear.storage.on_device import OnDevice
    from gear.storage.recovery import Found
    from gear.storage.snapshot import Snapshot


@dataclass(eq=False, slots=True)
class Client:
    """What the table knows of one client beside its record in the segment."""

    key: bytes
    suspended: bool = False
    fenced: bool = False


class StoredTable:
    """A table and its memory.

    Parameters
    ----------
    table : Table
    index, shard : int
        Numbers that become part of every id.
    path : Path, optional
        Shared segment to create; None for private memory.
    spread : bool
        See `Layout`.
    origin : Origin, optional
        What the segment is a part of, for whoever finds it.
    kept : bool
        Whether the segment is there already and is taken up (`gear.storage.recovery`).
    era : int
        How often its shard was started before; part of the numbers of pins.
    gpu : str
        UUID of the shard's device, which the segment is mapped for; "" without one.
    arena : Arena, optional
        The blocks of a kept table's columns there: restored ones, for device memory is never kept.

    Attributes
    ----------
    found : what a kept segment held, None for a new one.
    snapshot : what is being saved of it, None while nothing is.
    on_device : what the table has there, None without a device.

    Raises
    ------
    InsufficientMemory
        If the segment does not fit.
    """

    def __init__(
        self,
        table: Table,
        index: int = 0,
        shard: int = 0,
        path: Path | None = None,
        spread: bool = False,
        origin: format.Origin | None = None,
        kept: bool = False,
        era: int = 0,
        gpu: str = "",
        arena: Arena | None = None,
    ) -> None:
        self.table, self.path = table, path
        self.layout = Layout(table, index, shard, spread=spread)
        owner = f"table {table.name!r}"
        size = self.layout.nbytes
        if kept:
            assert path is not None
            self.segment = memory.attach(path, size)
        else:
            self.segment = memory.create(path, size, owner) if path else memory.anonymous(size, owner)
            format.start(self.segment, self.layout, origin)
        self.params = self.layout.params
        self.counters = self.layout.view(self.segment, "counters")
        self._floats = self.layout.view(self.segment, "floats")
        self._blocks = self.layout.view(self.segment, "blocks")
        self._slots = self.layout.view(self.segment, "slots")
        self._versions = self.layout.view(self.segment, "versions") if table.versioned else None
        self.records = self.layout.view(self.segment, "clients")
        self._by_rows = table.publish == "rows"
        self.clients: dict[int, Client] = {}
        self._rows_of: dict[bytes, int] = {}
        self.claims = Claims(self.segment, self.layout) if table.lines else None
        self.groups = GroupBook(self.segment, self.layout, self.claims) if self.claims and table.group_size else None
        self.pins = Pins(self.segment, self.layout, self.claims, era)
        self.growing = Growing(self)
        self.snapshot: Snapshot | None = None
        self.found: Found | None = None
        self.on_device: OnDevice | None = None
        if gpu:
            from gear.storage.on_device import OnDevice

            self.on_device = OnDevice(self.layout, self.segment, gpu, arena)
        if kept:
            self.counters[f.SUMMED_THERE] = 0
            self.take_up()
        if self.on_device is not None and path is not None:  # an embedded table is drawn from in one call, by the host
            self.on_device.start_draws()

    @property
    def arena(self) -> Arena | None:
        """The blocks of its columns on a device, None if it has none."""
        return None if self.on_device is None else self.on_device.arena

    @property
    def collect(self) -> Callable[..., None]:
        """What gathers its rows into memory of the host, as `kernels.collect.collect`."""
        return collect if self.arena is None else self.on_device.collect  # type: ignore[union-attr]

    def take_up(self) -> None:
        """Make all that is not in the segment anew; its clients are silent until they come back."""
        self.found = recover(self)
        known = np.flatnonzero(self.records[:, f.KNOWN])
        for row in range(int(known.max(initial=-1)) + 1):
            parts = (int(self.records[row, at]).to_bytes(8, "little", signed=True) for at in (f.ID_HIGH, f.ID_LOW))
            key = b"".join(parts)
            if not self.records[row, f.KNOWN]:  # the shard died while somebody was given the row of one that had left
                key = b"nobody, row " + row.to_bytes(4, "little")
            self._rows_of[key], self.clients[row] = row, Client(key, suspended=True, fenced=True)
        self.growing.resume()

    # Clients

    def attach(self, key: bytes) -> int:
        """Row of the client with this 16-byte identity, the same for the same identity.

        Raises
        ------
        InsufficientMemory
            If `MAX_CLIENTS` - 1 clients are known and none of them has left.
        """
        row = self._rows_of.get(key)
        if row is None:
            row = self._new_row()
            old = self.clients.pop(row, None)
            if old is not None:
                del self._rows_of[old.key]
            high, low = (int.from_bytes(part, "little", signed=True) for part in (key[:8], key[8:]))
            self.records[row] = 0
            self.records[row, [f.ID_HIGH, f.ID_LOW]] = high, low
            self.records[row, f.KNOWN] = 1
            self._rows_of[key] = row
            self.clients[row] = Client(key)
        self.resume(row)
        return row

    def _new_row(self) -> int:
        if len(self.clients) < f.MAX_CLIENTS - 1:  # the last number is nobody's
            return len(self.clients)
        for row, client in self.clients.items():  # the one known longest of those that left
            if client.fenced:
                return row
        raise InsufficientMemory(
            f"table {self.table.name!r} has {f.MAX_CLIENTS - 1} clients connected, the most it can have"
        )

    def committed(self, client: int) -> int:
        """Highest sequence number committed for the client."""
        return int(self.records[client, f.COMMITTED])

    def silent(self, client: int) -> bool:
        """Whether the client has fallen silent."""
        return client in self.clients and self.clients[client].suspended

    def suspend(self, client: int) -> None:
        """The client fell silent: what it holds is quarantined, nothing is freed."""
        self.clients[client].suspended = True
        if self.claims is not None:
            self.pins.entrust(client, NOBODY)
            self.claims.suspend(client)

    def resume(self, client: int) -> None:
        """The client is back with everything it held."""
        self.clients[client].suspended = self.clients[client].fenced = False
        if self.claims is not None:
            self.claims.resume(client)
            self.pins.entrust(client, client)

    def fence(self, client: int) -> None:
        """The client can not touch memory any more: free its leases, close its open trajectories, end its pins."""
        if self.claims is not None:
            self.pins.entrust(client, NOBODY)
            self.claims.forget(client)
        self.pins.drop(client)
        self.pins.laid(client)
        for slot in np.flatnonzero(self._slots[:, f.WRITER] == client):
            if self._slots[slot, f.STATE] == f.OPEN:
                commits.close_open(self.segment, self.params, int(slot))
            elif self._slots[slot, f.STATE] == f.EVICTED:
                self._slots[slot, f.WRITER] = -1
                unpin(self.segment, self.params, int(slot))
        blocks = np.flatnonzero(self._blocks[:, f.OWNER] == client).astype(np.int32)
        slots = np.flatnonzero((self._slots[:, f.WRITER] == client) & (self._slots[:, f.STATE] == f.LEASED)).astype(
            np.int32
        )
        end_leases(self.segment, self.params, client, blocks, slots)
        self.clients[client].suspended = self.clients[client].fenced = True

    def _share(self) -> int:
        """Blocks (and slots) each connected client may have leased: half the reserve, shared equally."""
        active = sum(not c.suspended for c in self.clients.values())
        return self.layout.reserve_blocks // 2 // max(1, active)

    # Leases

    def lease(self, client: int, blocks: int, slots: int, request: int = 0) -> Grant:
        """Lease up to that many from the reserve; fewer when the client's share is used.

        request: number of the client's request that they answer, 0 if the client is not to know of them.
        """
        share = self._share()
        record = self.records[client]
        blocks = max(0, min(blocks, share - int(record[f.LEASED_BLOCKS]), int(self.counters[f.FREE_BLOCKS])))
        slots = max(0, min(slots, share - int(record[f.LEASED_SLOTS]), int(self.counters[f.FREE_SLOTS])))
        return self._lease(client, blocks, slots, request)

    def allocate(self, client: int, blocks: int, slots: int) -> Grant | None:
        """Lease exactly that many for a commit that follows, evicting for them; None: wait for readers.

        Raises
        ------
        DataError
            If the table could never hold that many.
        """
        longest = self.layout.blocks_for(self.layout.max_length + 1)
        if not 0 <= blocks <= longest or not 0 <= slots <= 1:
            raise DataError(
                f"table {self.table.name!r}: a trajectory takes at most {longest} blocks (max_length "
                f"{self.layout.max_length} steps) and one slot, not {blocks} blocks and {slots} slots"
            )
        if not room.room_for_lease(self.segment, self.params, blocks, slots):
            return None
        return self._lease(client, blocks, slots)

    def _lease(self, client: int, blocks: int, slots: int, request: int = 0) -> Grant:
        grant = Grant(np.empty(blocks, np.int32), np.empty(slots, np.int32))
        if blocks or slots:
            if self.snapshot is not None:
                self.snapshot.before_lease(blocks, slots)
            lease(self.segment, self.params, client, grant.blocks, grant.slots, request & 0x7FFFFFFF)
        return grant

    def mark(self, grant: Grant, request: int) -> None:
        """Note which request of its client a grant answers."""
        self._blocks[grant.blocks, f.ORDINAL] = request & 0x7FFFFFFF
        self._slots[grant.slots, f.SEQUENCE] = request & 0x7FFFFFFF

    def call(self, slots: npt.NDArray[np.int32], handles: npt.NDArray[np.int32]) -> None:
        """Note the numbers that a client which maps no memory has for its slots."""
        self._slots[slots, f.HANDLE] = handles

    def give_back(self, client: int, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> None:
        """End leases that were not used.

        Raises
        ------
        ProtocolError
            If some are not the client's; its own are ended all the same.
        """
        strange = self.end_leases(client, blocks, slots)
        if strange:
            raise ProtocolError(f"{strange} of the blocks and slots given back are not leased to this client")

    def end_leases(self, client: int, blocks: npt.NDArray[np.int32], slots: npt.NDArray[np.int32]) -> int:
        """End those leases that are the client's; returns how many are not."""
        return int(end_leases(self.segment, self.params, client, blocks, slots))

    def retract(self, client: int, request: int) -> None:
        """The client asks again what it asked before a restart: end what it was leased then and never heard of."""
        mine, request = self._blocks[:, f.OWNER] == client, request & 0x7FFFFFFF
        blocks = np.flatnonzero(mine & (self._blocks[:, f.ORDINAL] == request)).astype(np.int32)
        leased = (self._slots[:, f.STATE] == f.LEASED) & (self._slots[:, f.WRITER] == client)
        slots = np.flatnonzero(leased & (self._slots[:, f.SEQUENCE] == request)).astype(np.int32)
        self.end_leases(client, blocks, slots)

    def recall_leases(self) -> list[tuple[int, int]]:
        """(client, blocks beyond its share) for each connected client that should give some back."""
        share = self._share()
        beyond = self.records[: len(self.clients), f.LEASED_BLOCKS] - share
        return [
            (int(row), int(beyond[row])) for row in np.flatnonzero(beyond > 0) if not self.clients[int(row)].suspended
        ]

    # Commit

    def check(
        self,
        client: int,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
    ) -> None:
        """Refuse a batch of commit entries in which anything is wrong; nothing is changed.

        Raises
        ------
        DataError, ProtocolError
            Naming the entry and what is wrong with it.
        """
        fault, entry, detail = commits.check(
            self.segment, self.params, client, self._by_rows, entries, blocks, priorities
        )
        if fault == commits.FINE and not (
            self.groups is not None and (entries["flags"] & (f.CONTINUED | f.CONTINUES)).any()
        ):
            return
        if fault == commits.FINE:
            raise DataError(
                f"table {self.table.name!r}: a trajectory of a group is not stored in pieces; raise max_length (it is "
                f"{self.layout.max_length} steps)"
            )
        name = f"table {self.table.name!r}, commit entry {entry} of {len(entries)}"
        if fault == commits.BAD_PRIORITY:
            before = int(entries["priorities"][:entry].sum())
            raise DataError(
                f"{name}: priority {detail} is {priorities[before + detail]}; priorities must be finite, "
                "not negative and not above 3.4e38; nothing of the message was applied"
            )
        if fault == commits.TOO_LONG:
            raise DataError(f"{name}: the trajectory is longer than the {self.layout.max_length} steps it may have")
        if not len(entries):
            raise ProtocolError(
                f"{name}: blocks or priorities came without an entry; nothing of the message was applied"
            )
        bad = entries[entry]
        problem = {
            commits.BAD_SEQUENCE: f"sequence {bad['sequence']} does not follow the ones before",
            commits.BAD_SLOT: f"slot {bad['slot']} is not leased to this client or not open",
            commits.BAD_BLOCK: "a block is not leased to this client or named twice",
            commits.BAD_LENGTH: f"length {bad['length']} can not be committed with these flags",
            commits.BAD_FLAGS: f"flags {bad['flags']} do not fit publish={self.table.publish!r}",
            commits.BAD_COUNT: "the number of blocks or priorities does not fit the entry",
        }[fault]
        raise ProtocolError(f"{name}: {problem}; nothing of the message was applied")

    def commit(
        self,
        client: int,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
    ) -> tuple[int, int, int, list[int]]:
        """Commit checked entries in order until the limiter holds one back.

        Returns (entries done, blocks and priorities they named, slots whose open trajectory was lost).
        """
        if self.groups is not None:
            return self._commit_grouped(self.groups, client, entries, blocks, priorities)
        lost = np.empty(len(entries), np.int32)
        key = int(self.records[client, f.ID_LOW])
        done, n_blocks, n_priorities, n_lost = commits.apply(
            self.segment, self.params, client, key, entries, blocks, priorities, lost
        )
        return done, n_blocks, n_priorities, lost[:n_lost].tolist()

    def _commit_grouped(
        self,
        groups: GroupBook,
        client: int,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
    ) -> tuple[int, int, int, list[int]]:
        """One after the other: what the next one drives out goes with all its group so far."""
        key, nobody = int(self.records[client, f.ID_LOW]), np.empty(1, np.int32)
        n_blocks = n_priorities = 0
        for k in range(len(entries)):
            before, entry = self.committed(client), entries[k : k + 1]
            done, added, given, _ = commits.apply(
                self.segment, self.params, client, key, entry, blocks[n_blocks:], priorities[n_priorities:], nobody
            )
            if not done:
                return k, n_blocks, n_priorities, []
            n_blocks, n_priorities = n_blocks + added, n_priorities + given
            slot = int(entry["slot"][0])
            if int(entry["sequence"][0]) > before and self._slots[slot, f.STATE] == f.CLOSED:  # else too old already
                groups.arrived(slot)
        return len(entries), n_blocks, n_priorities, []

    # Draw and release

    @property
    def admits(self) -> bool:
        """Whether the limiter lets one more item in."""
        return bool(insert_passes(self.segment, self.params))

    def drawable(self, which: int = 0) -> bool:
        """Whether any item of set number `which` can be drawn now."""
        if which == 0 and self._draws is not None:
            return self._draws.sums()[0] > 0.0
        return bool(draw.drawable(self.segment, self.params, which))

    def mass(self) -> tuple[float, int, float]:
        """Mass of all items, how many can be drawn, smallest non-zero probability; see `draw.mass`."""
        if self._draws is not None:
            total, smallest = self._draws.sums()
            return total, int(self.counters[f.LIVE_ITEMS]), smallest / total if total > 0.0 else 1.0
        total, items, smallest = draw.mass(self.segment, self.params)
        return float(total), int(items), float(smallest)

    @property
    def _draws(self) -> DrawsThere | None:
        """The sum tree on a device, by which set 0 is drawn; None where the host draws."""
        return None if self.on_device is None else self.on_device.draws

    def draw(
        self,
        which: int,
        size: int,
        credit: int,
        hurry: bool,
        ids: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        probabilities: npt.NDArray[np.float64],
    ) -> tuple[int, int, float]:
        """Reserve the credit still missing, draw and pin, on the host or on a device; see `draw.select`."""
        there = self._draws
        if there is None or which > 0 or not size:
            n, credit, smallest = draw.select(
                self.segment, self.params, which, size, credit, hurry, 1, ids, starts, lengths, probabilities
            )
            return int(n), int(credit), float(smallest)
        drawn = there.draw(size)
        if not drawn.total > 0.0:
            return 0, credit, 0.0
        starts[:size], probabilities[:size] = drawn.items, drawn.probabilities
        n, credit = draw.take(self.segment, self.params, size, credit, 1, ids, starts, lengths)
        return int(n), int(credit), drawn.least

    def unreserve(self, credit: int) -> None:
        """Return credit that was reserved and not drawn."""
        self.counters[f.RESERVED_ITEMS] -= credit

    def select(
        self,
        client: int,
        size: int,
        parties: int,
        ttl: float,
        credit: int = 0,
        hurry: bool = False,
        which: int = 0,
        reach: tuple[int, int] = (0, 0),
    ) -> Selection | int:
        """Reserve limiter credit, draw and pin `size` items of a set; the credit so far if that is not possible yet.

        Credit reserved by an earlier attempt is passed in again; what will not be used any more goes back
        by `unreserve`. Fewer items come only where `max_times_sampled` uses them up, where a queue or stack
        holds no more, and from one when somebody waits for room in it (`hurry`). `reach`: rows before and behind
        items that are pinned too where they lie in other pieces of the trajectory.
        """
        ids, starts = np.empty(size, np.int64), np.empty(size, np.int64)
        lengths, probabilities = np.empty(size, np.int32), np.empty(size, np.float64)
        n, credit, smallest = self.draw(which, size, credit, hurry, ids, starts, lengths, probabilities)
        if n == 0:
            return credit
        if n < size:
            ids, starts, lengths, probabilities = ids[:n].copy(), starts[:n], lengths[:n], probabilities[:n]
        return self._pinned(client, Drawn(ids, starts, lengths, probabilities), smallest, parties, ttl, reach, which)

    def claim(
        self,
        client: int,
        consumer: int,
        size: int,
        parties: int,
        ttl: float,
        hurry: bool = False,
        reach: tuple[int, int] = (0, 0),
        budget: Budget | None = None,
        ranks: int = 1,
    ) -> Selection | None:
        """Claim and pin the first `size` units of a consumer's line for each rank; None: there are not as many yet.

        No more than a queue can hold come, and from one on when somebody waits for room in it (`hurry`). With a
        budget as many as fit, from one on.

        Raises
        ------
        DataError
            If a batch may not have so many items, or one is longer than the budget.
        """
        assert self.claims is not None
        most, group = int(self.params[f.P_MOST]), self.table.group_size
        each, size = size, size * ranks
        if most:
            size = min(size, max(1, most // group) if group else most)
        there = self.claims.units(consumer)
        if there and (budget is not None or (most and hurry)):
            size = min(size, there)
        if there < max(size, ranks) or (not group and self.counters[f.ITEM_COUNT] < self.params[f.P_MIN_SIZE]):
            return None
        if budget is None:
            number, ids, starts, lengths = self.claims.take(client, consumer, size)
        else:
            number, ids, starts, lengths = take_steps(self, client, consumer, size, each, budget, ranks)
        return self._pinned(
            client, Drawn(ids, starts, lengths, np.ones(len(ids))), 1.0, parties, ttl, reach, claim=number
        )

    def acknowledge(self, client: int, consumer: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
        """Acknowledge items for a consumer; what became of each (`gear.storage.acknowledge`).

        Raises
        ------
        DataError
            If the table has no consumers by name.
        """
        if self.claims is None or not self.table.consumers:
            raise DataError(f"table {self.table.name!r} declares no consumers: nothing is acknowledged")
        return self.claims.acknowledge(client, consumer, ids)

    def select_steps(
        self,
        client: int,
        size: int,
        parties: int,
        ttl: float,
        which: int,
        reach: tuple[int, int],
        budget: Budget,
        ranks: int = 1,
    ) -> Selection | None:
        """Draw and pin up to `size` items of a set whose steps fit a budget, for each rank; None: not now.

        Raises
        ------
        DataError
            If an item alone does not fit, see `budget.fill`.
        """
        filled = fill(self, which, size, budget, ranks)
        if filled is None:
            return None
        drawn, smallest = filled
        return self._pinned(client, drawn, smallest, parties, ttl, reach, which)

    def pick(
        self, client: int, ids: npt.NDArray[np.int64], parties: int, ttl: float, reach: tuple[int, int]
    ) -> Selection:
        """Pin items by their ids; no draw, so that it costs neither credit nor uses.

        Raises
        ------
        StaleItems
            If some are not stored any more; nothing is pinned then.
        """
        starts, lengths = np.empty(len(ids), np.int64), np.empty(len(ids), np.int32)
        stale = picks.pick(self.segment, self.params, ids, starts, lengths)
        if stale:
            first = int(np.argmax(starts < 0))
            raise StaleItems(
                f"table {self.table.name!r}: {stale} of {len(ids)} ids name items that are not stored any more, the "
                f"first at index {first}; leave those out, or keep items by a larger capacity"
            )
        return self._pinned(client, Drawn(ids, starts, lengths, np.ones(len(ids))), 1.0, parties, ttl, reach, void=True)

    def _pinned(
        self,
        client: int,
        drawn: Drawn,
        smallest: float,
        parties: int,
        ttl: float,
        reach: tuple[int, int],
        which: int = 0,
        claim: int = 0,
        void: bool = False,
    ) -> Selection:
        """Pin what was drawn, its neighbours within reach too, for `parties` readers until `ttl` seconds from now."""
        ids, starts, lengths, probabilities = drawn
        near = NO_NEIGHBOURS if reach == (0, 0) else self.neighbours(starts, lengths, reach, 1)
        pin, deadline = self.pins.add(ids, client, parties, ttl, which, near, claim=claim, void=void)
        return Selection(
            self.table.name,
            ids,
            probabilities,
            starts,
            lengths,
            smallest,
            pin,
            parties,
            deadline,
            (),
            near,
            versions=self.versions_of(starts),
        )

    def neighbours(
        self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], reach: tuple[int, int], pin: int
    ) -> npt.NDArray[np.int32]:
        """Slots of the pieces beside items that they reach, int32[K], pinned where `pin` is 1."""
        near: npt.NDArray[np.int32] = seams.neighbours(self.segment, self.params, starts, lengths, *reach, pin)
        return near

    def sample(self, size: int, plan: Plan, out: npt.NDArray[np.uint8], which: int = 0) -> Selection | None:
        """Select, gather and deliver `size` items of a set in one call; None, with nothing changed, if not now.

        Nothing is pinned: the owner keeps every other call out meanwhile, so nothing can be evicted.
        """
        ids, starts = np.empty(size, np.int64), np.empty(size, np.int64)
        lengths, probabilities = np.empty(size, np.int32), np.empty(size, np.float64)
        drawn = (ids, starts, lengths, probabilities)
        if plan.viewed:
            done, smallest = sample.draw_at_once(self.segment, self.params, which, size, *drawn)
            if done:
                near = self.neighbours(starts, lengths, (plan.before, plan.after), 0)
                collect(self.segment, plan, starts, lengths, near, out)
                settle.settle(self.segment, self.params, which, ids, True)
        else:
            done, smallest = sample.sample(self.segment, self.params, which, size, plan.rows, plan.pads, *drawn, out)
        if not done:
            return None
        selection = Selection(self.table.name, ids, probabilities, starts, lengths, smallest, 0)
        selection.versions = self.versions_of(starts)
        return selection

    def versions_of(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """The policy versions of the trajectories of items, int64[B]; None where the table keeps none."""
        if self._versions is None:
            return None
        found: npt.NDArray[np.int64] = self._versions[self._blocks[starts // self.layout.block_steps, f.SLOT]]
        return found

    def reclaim(self) -> list[tuple[int, int]]:
        """The reserve is exhausted: revoke pins beyond their client's share; (client, pin) to be told."""
        return self.pins.revoke_beyond(self._share())

    def client_name(self, client: int) -> str:
        """A client for people: the beginning of its identity, and whether it is silent."""
        known = self.clients[client]
        return f"client {known.key.hex()[:8]}{' (silent)' if known.suspended else ''}"

    # Priorities and the table as a whole

    @property
    def keeps_priorities(self) -> bool:
        """Whether sampler or remover uses priorities."""
        by_priority = (Prioritized, MaxHeap, MinHeap)
        return isinstance(self.table.sampler, by_priority) or isinstance(self.table.remover, by_priority)

    def update(self, ids: npt.NDArray[np.int64], priorities: npt.NDArray[np.float64]) -> Update:
        """Set raw priorities by id; ids of evicted data are counted as stale.

        Raises
        ------
        DataError
            If a priority is refused (nothing is applied), the lengths differ, or the table keeps none.
        """
        if not self.keeps_priorities:
            raise DataError(
                f"table {self.table.name!r} keeps no priorities (sampler {type(self.table.sampler).__name__}, remover "
                f"{type(self.table.remover).__name__}); declare sampler=gear.Prioritized(...) to update them"
            )
        if ids.shape != priorities.shape or ids.ndim != 1:
            raise DataError(
                f"expected as many priorities as ids, got ids {ids.shape} and priorities {priorities.shape}"
            )
        applied, bad = settle.update(self.segment, self.params, ids, priorities)
        if bad >= 0:
            raise DataError(
                f"priority at index {bad} is {priorities[bad]}; priorities must be finite, not negative and not "
                "above 3.4e38; nothing was applied"
            )
        return Update(applied, len(ids) - applied)

    def fill(
        self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], columns: Mapping[str, filling.Rows]
    ) -> Update:
        """Write late columns; see `filling.fill`."""
        return filling.fill(self, ids, lengths, columns)

    @property
    def version(self) -> int:
        """The policy version that the table was told last."""
        return int(self.counters[f.VERSION])

    def set_version(self, version: int) -> int:
        """Raise the version, which never falls; trajectories that are too old then leave. Returns it."""
        return int(versions.set_version(self.segment, self.params, version))

    def reset(self) -> None:
        """Evict everything; limiter counts start anew. Open trajectories of writers are lost to them."""
        self.pins.reset()
        self.growing.drop_all()
        while self.counters[f.OLDEST] >= 0:
            evict(self.segment, self.params, int(self.counters[f.OLDEST]), False)
        self.counters[[f.INSERTED_ITEMS, f.DELETED_ITEMS, f.SAMPLED_ITEMS, f.RETURNED_ITEMS, f.CREDITED]] = 0
        self.layout.view(self.segment, "floats")[f.MAX_PRIORITY] = 1.0
        if self.claims is not None:
            self.claims.reset()
        if self.groups is not None:
            self.groups.reset()

    def info(self) -> dict[str, Any]:
        """Figures of the table: counts, bytes, leases, quarantine, evictions. Plain data."""
        return figures.of(self)

    def close(self, keep: bool = False) -> None:
        """Forget the segment; a shared one is removed unless `keep`."""
        if self.on_device is not None:
            self.on_device.close()
        if self.path is not None and not keep:
            self.path.unlink(missing_ok=True)

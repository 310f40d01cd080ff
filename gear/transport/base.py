"""The seam between a client and the tables: one interface, one file per data path behind it.

A client never knows whether a table lives in its own process or in a server: it takes leases, writes rows
into leased blocks of `OpenTable.segment`, submits small commit entries, selects, and has the rows gathered.
`inproc` calls the table directly, `shm` sends messages and maps the segment. On `tcp` the segment is a private
stage of the same layout: its rows travel with the commit entries, and gathered ones come as messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gear.errors import TableNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from gear.arrays import Entry, Parcel
    from gear.batch import Selection, Update
    from gear.checkpoint import Checkpoint
    from gear.devices.arena import Arena
    from gear.page import Page
    from gear.plan import Plan
    from gear.schema import Table
    from gear.storage.layout import Grant, Layout
    from gear.transport.message import Share


class Seam(NamedTuple):
    """Where a piece of a trajectory that was split at `max_length` goes on.

    Attributes
    ----------
    steps : steps of the trajectory before the piece.
    follows : sequence number of the entry that ended the piece before, 0 if there is none (any more).
    """

    steps: int
    follows: int


NO_SEAM = Seam(0, 0)


@dataclass(frozen=True, eq=False, slots=True)
class Wanted:
    """What a `select` draws, planned once for as many of them as are alike.

    Attributes
    ----------
    size : items.
    parties : how many will gather them and let go.
    ttl : seconds that their pin lives at most.
    ahead : the plan by which they are gathered next: where rows travel, those of a small batch come along.
    which : number of the set of items.
    reach : rows before items and behind them that may be gathered too, of other pieces of a split trajectory.
    budget : most steps of all items together, and whether an item that is longer comes alone (else DataError).
    consumer : who claims them, where the table has consumers.
    share : they are a rank's part of a draw for all ranks, each of which gets so many.
    into : uint8[ahead.nbytes] or more, where the rows are gathered to next: those that come along may go there at once.
    """

    size: int
    parties: int = 1
    ttl: float = 60.0
    ahead: Plan | None = None
    which: int = 0
    reach: tuple[int, int] = (0, 0)
    budget: tuple[int, bool] | None = None
    consumer: str = ""
    share: Share | None = None
    into: npt.NDArray[np.uint8] | None = None


@dataclass(eq=False)
class OpenTable:
    """A table as one client holds it.

    Attributes
    ----------
    table, layout : the declaration and the geometry made from it.
    segment : uint8[layout.nbytes], writable; leased blocks and slots are written here. Shared with the shard that owns
        the table, or private where rows travel.
    lost : slots of this client whose open trajectory was evicted or closed; its writer starts a new piece.
    reading : pins whose rows are being read from the segment right now (`mapped`), as often as they are; a session
        told that a pin has ended marks it revoked and lets go of it at once unless it is being read.
    recall : set by the client: takes a number of blocks and returns idle leases up to it. A session whose
        shard calls leases back calls it and gives back what it returns.
    row : the number by which the shard knows this client when it opened the table.
    arena : the blocks of its columns on a device, where this client reaches them.
    """

    table: Table
    layout: Layout
    segment: npt.NDArray[np.uint8]
    lost: set[int] = field(default_factory=set)
    reading: list[int] = field(default_factory=list)
    recall: Callable[[int], Grant] | None = None
    row: int = 0
    arena: Arena | None = None

    @cached_property
    def block_records(self) -> npt.NDArray[np.int32]:
        """The records of the blocks, int32[blocks, BLOCK_FIELDS]."""
        return self.layout.view(self.segment, "blocks")

    @property
    def layouts(self) -> dict[int, Layout]:
        """The geometry of the table by the shards that it lies on."""
        return {self.layout.shard: self.layout}


class Service(Protocol):
    """What a client asks of tables, on however many shards they lie. Thread-safe. Timeouts in seconds, None: for ever.

    Every call raises `ConnectionLost` when the server is gone, `DeadlineExceeded` at its timeout (then
    nothing of it has happened), and the errors of `gear.errors` that the shard found.
    """

    path: str
    maps: bool
    """Whether rows are read where they are stored, so that kernels of a GPU can too."""

    def create_table(self, table: Table, timeout: float | None) -> OpenTable:
        """Create, or find an equal one. Raises TableMismatch, InsufficientMemory, DeviceError."""
        ...

    def open_table(self, name: str | None, timeout: float | None) -> OpenTable:
        """The table of that name, or the only one. Raises TableNotFound. Cached after the first call."""
        ...

    def parts(self, table: OpenTable) -> list[tuple[Session, OpenTable]]:
        """The parts of a table that can be inserted into, each with the session of its shard."""
        ...

    def select(self, table: OpenTable, wanted: Wanted, timeout: float | None) -> Selection:
        """Draw and pin items; waits for the limiter and for items."""
        ...

    def acknowledge(
        self, table: OpenTable, ids: npt.NDArray[np.int64], consumer: str, timeout: float | None
    ) -> npt.NDArray[np.int8]:
        """A consumer is done with items; what became of each, as `gear.storage.acknowledge` says it."""
        ...

    def pick(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        parties: int,
        ttl: float,
        reach: tuple[int, int],
        timeout: float | None,
    ) -> Selection:
        """Pin items by their ids; costs neither credit nor uses. Of several shards they come shard by shard.

        Raises StaleItems, and pins nothing, if some are not stored any more.
        """
        ...

    def gather(
        self,
        table: OpenTable,
        selection: Selection,
        plan: Plan,
        out: npt.NDArray[np.uint8],
        first: int = 0,
        steps: int = 0,
    ) -> bool:
        """Collect the rows of a selection that this client holds into `out`, uint8[plan.nbytes] or more.

        They are the items of the batch from number `first` on; `steps`: of the items before, if they are packed.
        False if the pin has been taken back; what `out` holds then is worth nothing.
        """
        ...

    def arrived(self, table: OpenTable, selection: Selection, plan: Plan) -> npt.NDArray[np.uint8] | None:
        """The rows of a selection as `plan` lays them out, uint8[plan.nbytes], where they are there already.

        The memory is the caller's from now on. None: they are to be gathered.
        """
        ...

    def sample(
        self, table: OpenTable, size: int, plan: Plan, out: npt.NDArray[np.uint8], which: int = 0
    ) -> Selection | None:
        """Select, gather by `plan` into `out` and deliver in one go, where the path can do that at once.

        None: not now, or not on this path; nothing has changed, select and gather instead.
        """
        ...

    def hold(self, table: OpenTable, selection: Selection) -> None:
        """Join the pin of a selection made elsewhere, before reading. Raises PinLost."""
        ...

    def release(self, table: OpenTable, selection: Selection, delivered: bool) -> None:
        """End this party's hold; travels with the next message, at most 2 ms later.

        Delivered spends the limiter credit and the items' uses; otherwise both return.
        """
        ...

    def revoked(self, table: OpenTable, selection: Selection) -> bool:
        """Whether the shard has taken the pin back; the rows may then be anything once released."""
        ...

    def update_priorities(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> Update:
        """Set raw priorities; of duplicate ids the last wins; all or nothing."""
        ...

    def scan(self, table: OpenTable, cursor: bytes, most: int, timeout: float | None) -> tuple[Page, bytes]:
        """The next page of a listing of the stored items, and the cursor of the one behind it.

        An empty cursor begins; an empty one that is returned says that this was all. Cursors stay good: an item
        that is stored all the time is listed exactly once, whatever is inserted or evicted between the pages.
        A page may be shorter than `most`, even empty, before the end.
        """
        ...

    def reset(self, table: OpenTable, timeout: float | None) -> None:
        """Drop every trajectory of the table; counters of the limiter start anew."""
        ...

    def publish(self, name: str, parcel: Parcel, version: int, timeout: float | None) -> int:
        """Replace what is published under a name, whole or not at all; version 0 is the next. Returns the version."""
        ...

    def fetch(
        self, name: str, newer_than: int, timeout: float | None
    ) -> tuple[int, tuple[Entry, ...], npt.NDArray[np.uint8]]:
        """The latest version once it is newer than that: its number, its arrays, and their bytes as laid out."""
        ...

    def checkpoint(self, timeout: float | None, progress: Callable[[int, int], None] | None = None) -> Checkpoint:
        """Save all tables to the server's disk; `progress` is told of bytes done and bytes in all."""
        ...

    def info(self, timeout: float | None) -> dict[str, Any]:
        """Figures of the service and of each table, plain data."""
        ...

    def close(self) -> None:
        """Give everything back and end. Idempotent; never raises."""
        ...


class Session(Service, Protocol):
    """What a client asks of the tables of one shard: all that, and what stores trajectories there."""

    def fill(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        columns: Mapping[str, memoryview],
        timeout: float | None,
    ) -> Update:
        """Write late columns of whole trajectories, named by the id of any of their items; all or nothing.

        lengths: int64[N], rows of each; columns: the bytes of their rows, one trajectory behind the other.
        """
        ...

    def names(self, table: OpenTable, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
        """Ids of trajectories whose rows begin in blocks leased to this client; None where only the shard knows."""
        ...

    def identify(
        self, table: OpenTable, sequences: npt.NDArray[np.int64], timeout: float | None
    ) -> npt.NDArray[np.int64]:
        """Ids of trajectories that this client committed under those numbers; of those that have left, a stale one."""
        ...

    def set_version(self, table: OpenTable, version: int | None, timeout: float | None) -> int:
        """Raise the table's policy version, which never falls; returns it. None only asks."""
        ...

    def begin(self, table: OpenTable, values: bytes, version: int | None, timeout: float | None) -> int:
        """Open a trajectory that belongs to the table; its id. `values`: the bytes of its per-trajectory columns."""
        ...

    def append(
        self,
        table: OpenTable,
        trajectory: int,
        at: int,
        rows: int,
        columns: Mapping[str, bytes],
        timeout: float | None,
    ) -> int:
        """Append rows, the bytes of every per-step column, if the trajectory has `at` of them; its length then."""
        ...

    def seal(
        self,
        table: OpenTable,
        trajectory: int,
        terminated: bool,
        final: Mapping[str, bytes],
        values: bytes,
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> int:
        """End an open trajectory; its length."""
        ...

    def length(self, table: OpenTable, trajectory: int, timeout: float | None) -> int:
        """Rows of an open trajectory."""
        ...

    def drop(self, table: OpenTable, ids: npt.NDArray[np.int64], timeout: float | None) -> Update:
        """Drop trajectories, open or sealed, by the id of any of their items; a member of a group with all of it."""
        ...

    def lease(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Up to that many, at once, from the reserve: fewer (even none) when the client's share is used."""
        ...

    def allocate(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Exactly that many, for a commit that follows: evicts for them; waits only for readers."""
        ...

    def give_back(self, table: OpenTable, grant: Grant) -> None:
        """Return unused leases."""
        ...

    def submit(
        self,
        table: OpenTable,
        slot: int,
        blocks: Sequence[int],
        length: int,
        flags: int,
        priorities: float | npt.NDArray[np.float64] | None,
        timeout: float | None,
        seam: Seam = NO_SEAM,
    ) -> int:
        """Queue one commit entry whose rows are written; returns its sequence number (from 1, per table).

        `seam` says what an entry with CONTINUES begins behind; its shard must be that of the piece before.
        Entries are committed in order. Waits only when the window of unacknowledged entries is full.
        """
        ...

    def submit_many(
        self,
        table: OpenTable,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> int:
        """Queue several entries at once, as one message where there are messages; the number of the first.

        The others' numbers follow. Waits as `submit` does; what the shard refuses it refuses all of.

        Parameters
        ----------
        entries : COMMIT_ENTRY[N], 1 <= N <= 64
            Each begins and ends its slot. Their sequence numbers are filled in; `follows` is -1 where an entry goes
            on behind the one before it.
        blocks, priorities : int32[M], float64[P]
            What the entries name, in their order. The arrays stay the session's.
        """
        ...

    def wait(self, table: OpenTable, sequence: int, timeout: float | None) -> None:
        """Return once every entry up to `sequence` is committed.

        At the timeout DeadlineExceeded says what the limiter or the memory waits for; the entries stay
        queued: wait again, or `withdraw` them. An entry the shard refused raises here, once.
        """
        ...

    def withdraw(self, table: OpenTable, first: int, last: int) -> int:
        """Drop the entries first..last that are not committed; their leases end. Returns how many were dropped.

        Only for entries that begin and end their trajectory. What is returned is exact: the others of the
        range are committed.
        """
        ...

    def committed(self, table: OpenTable) -> int:
        """Highest sequence number known to be committed; sends what is gathered, never waits."""
        ...

    def acknowledged(self, table: OpenTable) -> int:
        """The same of what has been heard already, also when the shard is gone."""
        ...

    def pending(self, table: OpenTable) -> int:
        """Commit entries that were not acknowledged yet, as far as has been heard."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the shard is known to be gone."""
        ...

    @property
    def away(self) -> bool:
        """Whether the shard cannot be reached now and may be back soon."""
        ...


def table_not_found(name: str | None, known: Sequence[str] | dict[str, Any]) -> TableNotFound:
    """The error for a table that is not there or not named."""
    there = ", ".join(known) or "none"
    if name is None and known:
        return TableNotFound(f"there are several tables ({there}): say which, as in table={next(iter(known))!r}")
    import difflib

    near = difflib.get_close_matches(name or "", known, 1)
    meant = f"; did you mean {near[0]!r}? Else" if near else ";"
    missing = "no table exists" if name is None else f"table {name!r} does not exist (there: {there})"
    name = name or "replay"
    return TableNotFound(
        f"{missing}{meant} create it first: "
        f"client.create_table(gear.table_like({name!r}, trajectory, capacity=gear.Steps(1_000_000)))"
    )

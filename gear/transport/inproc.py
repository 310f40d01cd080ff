"""Tables in this process, behind the same interface as a server: no socket, no copy, one lock.

The lock guards the directory only: rows are written and gathered outside it, in leased and pinned blocks.
A thread that must wait sleeps on a condition and is woken by the call that makes its request possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.batch import Selection
from gear.errors import CheckpointError, DeviceError, SchemaError, TableMismatch
from gear.storage import listing
from gear.storage import ranks_asks as ranks
from gear.storage.budget import Budget
from gear.storage.layout import Grant
from gear.storage.table import StoredTable
from gear.transport.base import OpenTable, Session, table_not_found
from gear.transport.inproc_commits import CommitsLocally
from gear.transport.inproc_later import LaterLocally
from gear.transport.inproc_weights import InprocWeights
from gear.transport.local import Local, deadline_of
from gear.transport.mapped import Mapped

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.batch import Update
    from gear.checkpoint import Checkpoint
    from gear.page import Page
    from gear.plan import Plan
    from gear.schema import Table
    from gear.transport.base import Wanted

AT_ONCE = 1 << 20
"""Bytes of a batch up to which gathering under the lock is cheaper than pinning."""

_NEVER = float("inf")


class InprocSession(CommitsLocally, LaterLocally, Mapped, InprocWeights):
    """A `Session` over tables of this process; `gpu`: UUID of the device that holds columns placed on one."""

    path = "inproc"

    def __init__(self, tables: Sequence[Table] = (), gpu: str = "") -> None:
        self._gpu = gpu
        LaterLocally.__init__(self)
        InprocWeights.__init__(self)
        for table in tables:
            self.create_table(table, None)

    def create_table(self, table: Table, timeout: float | None) -> OpenTable:
        """Create, or find an equal one."""
        with self._lock:
            self._check_open()
            local = self._tables.get(table.name)
            if local is None:
                on_device = [c.name for c in table.columns if c.placement == "device"]
                if on_device and not self._gpu:
                    raise DeviceError(
                        f"columns {', '.join(on_device)} are placed on a device, but this embedded table lives in host "
                        "memory; use placement='host', or embedded(..., device='cuda:0')"
                    )
                if len(self._tables) >= 256:
                    raise SchemaError("256 tables exist, the most there can be; reuse one")
                gpu = self._gpu if on_device else ""
                local = Local(StoredTable(table, index=len(self._tables), gpu=gpu), self._key)
                self._tables[table.name] = local
                self._by_open[id(local.open)] = local
            elif local.stored.table != table:
                raise TableMismatch(
                    f"table {table.name!r} exists and differs (as it is there against what was asked for): "
                    + "; ".join(local.stored.table.differences(table))
                    + "; use another name or the same declaration"
                )
            return local.open

    def open_table(self, name: str | None, timeout: float | None) -> OpenTable:
        """The table of that name, or the only one."""
        with self._lock:
            self._check_open()
            if name is None and len(self._tables) == 1:
                return next(iter(self._tables.values())).open
            if name is None or name not in self._tables:
                raise table_not_found(name, self._tables)
            return self._tables[name].open

    def parts(self, table: OpenTable) -> list[tuple[Session, OpenTable]]:
        """The table itself."""
        return [(self, table)]

    def lease(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Up to that many, at once."""
        with self._lock:
            local = self._local(table)
            return local.stored.lease(local.client, blocks, slots)

    def allocate(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Exactly that many, for a commit that follows."""
        deadline = deadline_of(timeout)
        with self._lock:
            local = self._local(table)
            if local.queue.starved:
                self._revoke(local)
            result: Grant = self._await(
                local, deadline, lambda done: local.queue.allocate(local.client, blocks, slots, deadline, done)
            )
            return result

    def give_back(self, table: OpenTable, grant: Grant) -> None:
        """Return unused leases."""
        with self._lock:
            local = self._local(table)
            local.stored.give_back(local.client, grant.blocks, grant.slots)
            self._advance(local)

    @property
    def lost(self) -> bool:
        """Never: the tables live as long as this process."""
        return False

    @property
    def away(self) -> bool:
        """Never."""
        return False

    def select(self, table: OpenTable, wanted: Wanted, timeout: float | None) -> Selection:
        """Draw and pin items of a set."""
        deadline = deadline_of(timeout)
        size, parties, ttl, which, reach = wanted.size, wanted.parties, wanted.ttl, wanted.which, wanted.reach
        with self._lock:
            local = self._local(table)
            self._expire(local)
            limit = None if wanted.budget is None else Budget(*wanted.budget)
            number = table.table.consumer(wanted.consumer)
            if wanted.share is not None:
                part = ranks.Share.checked(wanted.share.ranks, wanted.share.rank, wanted.share.draw)
                alike = ranks.Wanted(size, which, limit)
                ask = partial(ranks.Ask, local.client, alike, reach, number, part, parties, ttl, deadline)
                taken: Selection = self._await(local, deadline, lambda done: local.queue.ranks.ask(ask(done)), True)
                self._keep_time(local)
                return taken
            if number < 0 and local.queue.idle and limit is None:
                selected = local.stored.select(local.client, size, parties, ttl, which=which, reach=reach)
                if not isinstance(selected, int):
                    self._keep_time(local)
                    return selected
                local.stored.unreserve(selected)
            selection: Selection = self._await(
                local,
                deadline,
                lambda done: local.queue.select(
                    local.client, size, parties, ttl, deadline, done, which, reach, limit, number
                ),
                reads=True,
            )
            self._keep_time(local)
            return selection

    def acknowledge(
        self, table: OpenTable, ids: npt.NDArray[np.int64], consumer: str, timeout: float | None
    ) -> npt.NDArray[np.int8]:
        """A consumer is done with items."""
        with self._lock:
            local = self._local(table)
            outcomes = local.stored.acknowledge(local.client, table.table.consumer(consumer), ids)
            self._advance(local)
            return outcomes

    def pick(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        parties: int,
        ttl: float,
        reach: tuple[int, int],
        timeout: float | None,
    ) -> Selection:
        """Pin items by their ids."""
        with self._lock:
            local = self._local(table)
            self._expire(local)
            return local.stored.pick(local.client, ids, parties, ttl, reach)

    def sample(
        self, table: OpenTable, size: int, plan: Plan, out: npt.NDArray[np.uint8], which: int = 0
    ) -> Selection | None:
        """Select, gather and deliver under the lock, while the batch is small and nobody waits before."""
        if plan.nbytes > AT_ONCE or plan.packed:
            return None
        with self._lock:
            local = self._local(table)
            if local.served or local.stored.on_device is not None:
                return None
            if local.stored.pins.next_expiry != _NEVER:
                self._expire(local)
            if not local.queue.idle:
                return None
            return local.stored.sample(size, plan, out, which)

    def hold(self, table: OpenTable, selection: Selection) -> None:
        """Join the pin of a selection."""
        with self._lock:
            local = self._local(table)
            local.stored.pins.hold(local.client, selection.pin)

    def release(self, table: OpenTable, selection: Selection, delivered: bool) -> None:
        """End this party's hold, at once."""
        with self._lock:
            local = self._local(table)
            local.revoked.pop(selection.pin, None)
            local.stored.pins.release(local.client, selection.pin, delivered)
            if not local.queue.idle:
                self._advance(local)

    def revoked(self, table: OpenTable, selection: Selection) -> bool:
        """Whether the pin was taken back."""
        local = self._by_open.get(id(table))
        return local is None or selection.pin in local.revoked

    def update_priorities(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> Update:
        """Set raw priorities."""
        with self._lock:
            local = self._local(table)
            update = local.stored.update(ids, priorities)
            self._advance(local)
            return update

    def scan(self, table: OpenTable, cursor: bytes, most: int, timeout: float | None) -> tuple[Page, bytes]:
        """The next page of a listing, and the cursor of the one behind it."""
        with self._lock:
            return listing.scan(self._local(table).stored, cursor, most)

    def reset(self, table: OpenTable, timeout: float | None) -> None:
        """Drop every trajectory of the table."""
        with self._lock:
            local = self._local(table)
            local.queue.reset()
            self._advance(local)

    def info(self, timeout: float | None) -> dict[str, Any]:
        """Figures of each table."""
        with self._lock:
            self._check_open()
            for local in self._tables.values():
                self._expire(local)
            tables = {name: local.stored.info() | local.queue.info() for name, local in self._tables.items()}
            return {"path": self.path, "tables": tables, "weights": self._weights_info()}

    def checkpoint(self, timeout: float | None, progress: Callable[[int, int], None] | None = None) -> Checkpoint:
        """Never: embedded tables have no disk of their own."""
        raise CheckpointError("embedded tables are not saved: serve them with gear-server --checkpoint DIR")

    def close(self) -> None:
        """Drop the tables; their memory goes when the last array over it does."""
        self._close_weights()
        with self._lock:
            self._closed = True
            for local in self._tables.values():
                for bell in local.readers:
                    bell.notify()
                if local.stored.on_device is not None:
                    local.stored.on_device.close()
            self._tables.clear()
            self._by_open.clear()
            self._changed.notify_all()

"""The client a user holds: one thin method per verb, over the ports and readers of its tables.

A client is safe to use from several threads. After a fork the child's copy starts afresh: leases, writers
and loaders stay the parent's.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from gear.batch import Batch, Selection, Update
from gear.client import arguments as check
from gear.client.autoreset import autoreset_mode
from gear.client.port import left, until
from gear.client.priorities import as_ids, as_priorities
from gear.client.tables import Tables
from gear.errors import GearError
from gear.query import Query, View, as_views
from gear.weights import Normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from gear.client.loader import Loader
    from gear.client.port import Priority
    from gear.client.reader import Reader
    from gear.client.vector import VectorWriter
    from gear.client.writer import Writer
    from gear.query import Plan
    from gear.schema import Table
    from gear.transport.base import Session

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """Inserts trajectories and samples batches; made by `connect` or `embedded`.

    `table` may be left out of every call while there is one table. Timeouts are in seconds: None and infinity
    wait for ever, a negative one not at all. Use it as a context manager or call `close`.
    """

    def __init__(self, session: Session, new_batch: Callable[[Plan], Batch] = Batch) -> None:
        self._session = session
        self._tables = Tables(session, new_batch)
        self._query = check.Queries()
        self._closed = False
        self._writers: weakref.WeakSet[Writer | VectorWriter] = weakref.WeakSet()
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()
        _clients.add(self)

    # Tables

    def create_table(self, table: Table, *, timeout: float | None = None) -> None:
        """Create a table; nothing happens if an equal one exists.

        Raises
        ------
        TableMismatch
            If a table of that name differs, naming each difference.
        InsufficientMemory, DeviceError
        """
        self._session.create_table(table, check.seconds(timeout))
        self._tables.forget_default()

    def reset(self, table: str | None = None, *, timeout: float | None = None) -> None:
        """Drop every trajectory of a table."""
        timeout = check.seconds(timeout)
        self._session.reset(self._tables.port(table, timeout).open, timeout)

    def info(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Figures of the service and of each table, as plain data."""
        return self._session.info(check.seconds(timeout))

    # Insert

    def insert(
        self,
        trajectory: Mapping[str, Any],
        table: str | None = None,
        *,
        priority: Priority = None,
        final: Mapping[str, Any] | None = None,
        terminated: bool = False,
        wait: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Insert one whole trajectory.

        Parameters
        ----------
        trajectory : dict
            Per-step columns as [T, *shape], per-trajectory columns as [*shape]; nested dicts are ``a/b``.
        priority : float or array of one per item, optional
            Default: the largest raw priority so far. Its resolution is that of float32, see `update_priorities`.
        final : dict, optional
            Last values of any per-step columns, such as the observation after the last step.
        terminated : bool
            Whether the environment reached a terminal state.
        wait : bool
            Return when it is committed; False queues it behind a bounded window, see `flush`.

        Raises
        ------
        DataError
            If it does not fit the table; nothing has changed.
        TableNotFound
            Showing the line that creates the table.
        DeadlineExceeded
            Nothing was inserted, unless the message says how many pieces of it were.
        """
        timeout = check.seconds(timeout)
        port = self._tables.ports.get(table) or self._tables.port(table, timeout, trajectory)
        encoded, checked, last = port.encode(trajectory, priority, final)
        if not wait:
            port.insert(encoded, checked, last, terminated, timeout)
            return
        deadline = until(timeout)
        port.settle(port.insert(encoded, checked, last, terminated, timeout), left(deadline))

    def insert_many(
        self,
        trajectories: Sequence[Mapping[str, Any]] | Mapping[str, Any],
        table: str | None = None,
        *,
        offsets: Any = None,
        priorities: Any = None,
        terminated: Any = False,
        final: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Insert N whole trajectories, pipelined; each is committed by itself, in order.

        Parameters
        ----------
        trajectories : sequence of dict, or dict
            Trajectories as for `insert`; or packed: per-step columns as [sum T, *shape], all trajectories one
            behind the other, and per-trajectory columns as [N, *shape].
        offsets : int64[N + 1], optional
            Packed: trajectory k is rows offsets[k] to offsets[k + 1], at least one.
        priorities : float[N] or sequence, optional
            As `insert` takes each.
        terminated : bool or bool[N]
        final : dict, optional
            Last values of any per-step columns, [N, *shape].

        Raises
        ------
        DataError
            Naming the trajectory that does not fit; nothing was inserted.
        DeadlineExceeded
            Its message and its attribute `committed` say how many were committed; the others were not.
        """
        timeout = check.seconds(timeout)
        if len(trajectories):
            from gear.client.packed import insert_many

            example = None if isinstance(trajectories, Mapping) else trajectories[0]
            port = self._tables.port(table, timeout, example)
            insert_many(port, trajectories, offsets, priorities, terminated, final, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was inserted or written without waiting is committed.

        Raises
        ------
        DeadlineExceeded
            Saying how many commits are still queued; they stay so.
        """
        timeout = check.seconds(timeout)
        deadline = until(timeout)
        for writer in list(self._writers):
            writer.publish(left(deadline))
        for port in self._tables:
            port.flush(left(deadline))

    @overload
    def writer(self, table: str | None = None, *, publish: Literal["end", "rows"] | None = None) -> Writer: ...

    @overload
    def writer(
        self,
        table: str | None = None,
        *,
        num_envs: int,
        autoreset: object = None,
        publish: Literal["end", "rows"] | None = None,
    ) -> VectorWriter: ...

    def writer(
        self,
        table: str | None = None,
        *,
        num_envs: int | None = None,
        autoreset: object = None,
        publish: Literal["end", "rows"] | None = None,
    ) -> Writer | VectorWriter:
        """A writer that appends the steps of one trajectory after the other.

        Parameters
        ----------
        num_envs : int, optional
            Steps of that many vectorised environments are appended at once, each to a trajectory of its own.
        autoreset : {"next_step", "same_step", "disabled"} or gymnasium.vector.AutoresetMode, optional
            What these environments do after an episode's end, ``envs.metadata["autoreset_mode"]``. With
            ``next_step`` the step after an end is a mere reset and not stored. Default: ``next_step``, and a
            step after an end that does not start from the final observation is refused.
        publish : {"end", "rows"}, optional
            When rows become visible. Default: what the table declares, and "rows" needs a table that does.
        """
        port = self._tables.port(table, None)
        when = check.publishing(port.table, publish)
        made: Writer | VectorWriter
        if num_envs is None:
            from gear.client.writer import Writer

            made = Writer(port, when)
        else:
            from gear.client.vector import VectorWriter

            made = VectorWriter(
                port, when, check.count("num_envs", num_envs, check.MOST_ENVS), autoreset_mode(autoreset)
            )
        self._writers.add(made)
        return made

    # Sample

    def sample(
        self,
        query: int | Query = 256,
        table: str | None = None,
        *,
        timeout: float | None = None,
        out: Batch | None = None,
        beta: float | None = None,
        normalize: Normalize = "batch",
    ) -> Batch:
        """Draw items and collect them into a batch.

        Parameters
        ----------
        query : int or Query
            Number of items, or what to draw and how it looks.
        out : Batch, optional
            An earlier batch whose memory is used again; it is what is returned.
        beta : float, optional
            Exponent of the importance weights of prioritized draws, in [0, 4]; `Batch.weights` needs it there.
        normalize : {"batch", "table"}
            The maximum by which the weights are divided, see `Batch.importance_weights`.

        Raises
        ------
        DeadlineExceeded
            Saying what the sample waited for.
        DataError, SchemaError
            Naming the argument that cannot be.
        """
        query, timeout, beta = self._query(query), check.seconds(timeout), check.weighing(beta, normalize)
        reader = self._tables.reader(table, query, timeout)
        if self._writers:
            self._publish(reader, timeout)
        return reader.sample(query, timeout, out, beta, normalize)

    def select(
        self,
        query: int | Query = 256,
        table: str | None = None,
        *,
        parties: int = 1,
        timeout: float | None = None,
        ttl: float = 60.0,
    ) -> Selection:
        """Draw items without collecting them; they stay readable until `parties` parties released them.

        Parameters
        ----------
        parties : int
            How many clients will `collect` and `release` the selection (send it with `Selection.to_bytes`).
        ttl : float
            Seconds after which the selection ends at the latest; above 0 and finite.
        """
        query, timeout, ttl = self._query(query), check.seconds(timeout), check.lifetime(ttl)
        parties = check.count("parties", parties, check.MOST_PARTIES)
        reader = self._tables.reader(table, query, timeout)
        self._publish(reader, timeout)
        return reader.select(query.size, parties, timeout, ttl)

    def collect(
        self,
        selection: Selection,
        columns: Sequence[str | View] | None = None,
        *,
        out: Batch | None = None,
        beta: float | None = None,
        normalize: Normalize = "batch",
    ) -> Batch:
        """Gather all or some columns of a selection; `release` it when nothing more is to be collected.

        Raises
        ------
        PinLost
            If the selection ended: its deadline passed, or the table needed its blocks.
        DataError
            If its arrays cannot have come from `select`.
        """
        beta = check.weighing(beta, normalize)
        reader = self._tables.reader(selection.table, None, None)
        return reader.collect(selection, as_views(columns) if columns is not None else (), out, beta, normalize)

    def release(self, selection: Selection, *, delivered: bool = True) -> None:
        """Let go of a selection; undelivered, the limiter's credit and the items' uses return."""
        self._tables.reader(selection.table, None, None).release(selection, delivered)

    def loader(
        self,
        query: int | Query = 256,
        table: str | None = None,
        *,
        prefetch: int = 2,
        copy: bool = False,
        timeout: float | None = None,
        beta: float | None = None,
        normalize: Normalize = "batch",
    ) -> Loader:
        """An endless iterator over batches that a thread keeps ready.

        Parameters
        ----------
        prefetch : int
            Batches kept ready, at most 1024.
        copy : bool
            False: a batch is valid until the next one. True: each batch has memory of its own.
        timeout : float, optional
            Seconds that one step of the iteration may take.
        """
        query, timeout, beta = self._query(query), check.seconds(timeout), check.weighing(beta, normalize)
        prefetch = check.count("prefetch", prefetch, check.MOST_PREFETCH)
        reader = self._tables.reader(table, query, timeout)
        publish = partial(self._publish, reader)
        loader = reader.loader(query, publish, prefetch, copy, timeout, beta, normalize)
        self._loaders.add(loader)
        return loader

    def update_priorities(self, ids: Any, priorities: Any, *, timeout: float | None = None) -> Update:
        """Set the raw priorities of items; ids of evicted items are counted and change nothing.

        Parameters
        ----------
        ids : int64[N]
            From `Batch.ids`; they know their table.
        priorities : float[N]
            Finite, not negative; a NumPy array, a torch tensor or a list. Their resolution is that of
            float32: below 1e-45 one may count as 0, and an item of priority 0 is never drawn (unless the
            sampler's eps is above 0).

        Returns
        -------
        Update
            How many were applied and how many were stale.

        Raises
        ------
        DataError
            Naming the first bad value; nothing of the update is applied then.
        """
        timeout, named = check.seconds(timeout), check.at_once(as_ids(ids))
        values = as_priorities(priorities, len(named))
        applied = stale = 0
        for port, where in self._tables.by_id(named):
            part = (named, values) if where is None else (named[where], values[where])
            update = self._session.update_priorities(port.open, *part, timeout)
            applied, stale = applied + update.applied, stale + update.stale
        return Update(applied, stale)

    # End

    def close(self, timeout: float | None = 10.0) -> None:
        """Stop loaders, end writers, wait for queued commits, give everything back. Idempotent.

        Raises
        ------
        GearError
            If something that was inserted or written could not be committed: how much.
        """
        timeout = check.seconds(timeout)
        if self._closed:
            return
        self._closed = True
        deadline = until(timeout)
        errors: list[GearError] = []
        for loader in list(self._loaders):
            loader.close()
        if self._session.path != "inproc":  # tables of this process end with their client
            for end in (*(w.close for w in list(self._writers)), *(p.flush for p in self._tables)):
                try:
                    end(left(deadline))
                except GearError as error:
                    errors.append(error)
        for writer in list(self._writers):
            writer.abandon("the client has been closed")
        self._session.close()
        if errors:
            raise errors[0]

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _publish(self, reader: Reader, timeout: float | None) -> None:
        """Let a sample see what this client's writers have written."""
        for writer in list(self._writers):
            if writer.table is reader.open:
                writer.publish(timeout)

    def _forget(self) -> None:
        """In the child of a fork: what was under way is the parent's."""
        self._tables.forget()
        for writer in self._writers:
            writer.forget()
        for loader in self._loaders:
            loader.forget()
        self._writers, self._loaders = weakref.WeakSet(), weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

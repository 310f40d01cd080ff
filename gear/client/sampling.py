"""A client's verbs that draw items, gather their rows and weigh them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gear.batch import Batch, Selection, Update
from gear.client import arguments as check
from gear.client.kinds import batches
from gear.client.priorities import as_ids, as_priorities
from gear.client.state import State
from gear.query import Layout, Query, as_layout
from gear.views import AnyView, as_views
from gear.weights import Normalize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gear.batch import NewBatch
    from gear.client.loader import Loader
    from gear.client.reader import Reader


class Sampling(State):
    """`sample` is `select` and `collect` in one; a loader keeps batches ready."""

    def sample(
        self,
        query: int | Query = 256,
        table: str | None = None,
        *,
        require: Sequence[str] | str = (),
        include_open: bool = False,
        timeout: float | None = None,
        out: Batch | None = None,
        beta: float | None = None,
        normalize: Normalize = "batch",
        consumer: str | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        draw: int | None = None,
        device: str | None = None,
    ) -> Batch:
        """Draw items and collect them into a batch.

        Parameters
        ----------
        query : int or Query
            Number of items, or what to draw and how it looks.
        table : str, optional
            Its name; may be left out where there is one table.
        timeout : float, optional
            Seconds to wait for items; default for ever.
        require : str or sequence of str
            Late columns that the items must have, see `Query`: one of the table's `requirements`. Waits for them.
        include_open : bool
            Draw open trajectories too, as long as they are now; the table must declare it.
        out : Batch, optional
            An earlier batch whose memory is used again; it is what is returned.
        beta : float, optional
            Exponent of the importance weights of prioritized draws, in [0, 4]; `Batch.weights` needs it there.
        normalize : {"batch", "table"}
            The maximum by which the weights are divided, see `Batch.importance_weights`.
        consumer : str, optional
            For which of the table's consumers: its next items, claimed until `ack`.
        world_size, rank : int, optional
            This is rank `rank` of `world_size` data-parallel ranks that draw together: of each draw every rank gets one
            batch, with its own items and about as many steps as the others. All ask for the same; `size` and
            `max_steps` are those of a rank's batch. The first rank that asks has the draw made, the others get their
            parts of it; `Batch.draw` is its number.
        draw : int, optional
            The part of this draw. Default: of the first one that the rank has not had. A number that was not reached
            yet makes the draws go on from there on every rank (after a restart, say the trainer's step).
        device : str, optional
            Where the batch is wanted, as for `connect`. Default: where the client's are.

        Raises
        ------
        DeadlineExceeded
            Saying what the sample waited for.
        PartExpired
            If the rank came too late: parts wait 60 s (`select`: `ttl`). Told once; then comes the next part there is.
        DataError, SchemaError
            Naming the argument that cannot be.
        """
        query, timeout, beta = (
            self._query(query, require, include_open),
            check.seconds(timeout),
            check.weighing(beta, normalize),
        )
        reader = self._tables.reader(table, query, timeout)
        if self._writers:
            self._publish(reader, timeout)
        share, kind = check.share(query, world_size, rank, draw), None if device is None else self._kind(device)
        return reader.sample(query, timeout, out, beta, normalize, self._claiming(reader, consumer), share, kind)

    def _kind(self, device: str | None) -> NewBatch | None:
        """What makes batches for a device, None for the client's own."""
        if device is None or device == self._device:
            return None
        kind = self._kinds.get(device)
        if kind is None:
            kind = self._kinds[device] = batches(device, self._session.maps)
        return kind

    def _claiming(self, reader: Reader, consumer: str | None) -> str:
        """The consumer that claims what is drawn, "" where the table has none; `ack` remembers it."""
        table = reader.open.table
        if consumer is None and not table.consumers:
            return ""
        table.consumer(consumer or "")
        self._consumers[table.name] = consumer or ""
        return consumer or ""

    def _fetch(
        self,
        query: int | Query,
        table: str | None,
        require: Sequence[str] | str,
        include_open: bool,
        timeout: float | None,
        out: Batch | None,
        beta: float | None,
        normalize: Normalize,
        consumer: str | None,
        world_size: int | None,
        rank: int | None,
        draw: int | None,
        device: str | None,
    ) -> tuple[Reader, Batch]:
        """As `sample`; the caller tells the reader whether it was delivered."""
        query, timeout, beta = (
            self._query(query, require, include_open),
            check.seconds(timeout),
            check.weighing(beta, normalize),
        )
        reader = self._tables.reader(table, query, timeout)
        self._publish(reader, timeout)
        share, kind = check.share(query, world_size, rank, draw), self._kind(device)
        claiming = self._claiming(reader, consumer)
        return reader, reader.fetch(query, timeout, out, beta, normalize, claiming, share, kind)

    def select(
        self,
        query: int | Query = 256,
        table: str | None = None,
        *,
        require: Sequence[str] | str = (),
        include_open: bool = False,
        ids: Any = None,
        parties: int = 1,
        timeout: float | None = None,
        ttl: float = 60.0,
        consumer: str | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        draw: int | None = None,
    ) -> Selection:
        """Draw items without collecting them; they stay readable until `parties` parties released them.

        Parameters
        ----------
        parties : int
            How many clients will `collect` and `release` the selection (send it with `Selection.to_bytes`).
        ttl : float
            Seconds after which the selection ends at the latest; above 0 and finite.
        ids : int64[N], optional
            These items instead of a draw, as in `Batch.ids`, in this order (of a table on several shards, shard by
            shard). It costs neither limiter credit nor uses; their probabilities are given as 1.
        consumer : str, optional
            As for `sample`; the claim is this client's. Released undelivered, the items wait again.
        world_size, rank, draw : int, optional
            As for `sample`. Released undelivered, or when its client dies, a part waits for the rank's next one.

        Raises
        ------
        StaleItems
            If some of the `ids` are not stored any more; nothing is selected then.
        """
        query, timeout, ttl = self._query(query, require, include_open), check.seconds(timeout), check.lifetime(ttl)
        parties = check.count("parties", parties, check.MOST_PARTIES)
        reader = self._tables.reader(table, query, timeout)
        if ids is not None:
            return reader.pick(check.at_once(as_ids(ids)), parties, ttl, timeout)
        self._publish(reader, timeout)
        share = check.share(query, world_size, rank, draw)
        return reader.select(query, parties, timeout, ttl, self._claiming(reader, consumer), share)

    def collect(
        self,
        selection: Selection,
        columns: Sequence[str | AnyView] | None = None,
        *,
        layout: Layout = "padded",
        out: Batch | None = None,
        beta: float | None = None,
        normalize: Normalize = "batch",
        device: str | None = None,
    ) -> Batch:
        """Gather all or some columns of a selection; `release` it when nothing more is to be collected.

        Parameters
        ----------
        columns : sequence of str or views, optional
            What `Query.views` takes. Of a trajectory that was split, views show other pieces as far as the views of
            the query reach by which it was selected (without any: the neighbouring pieces).
        layout : {"padded", "packed"}
        device : str, optional
            As for `sample`. Collected on a GPU, the selection is let go of behind its kernels.

        Raises
        ------
        PinLost
            If the selection ended: its deadline passed, or the table needed its blocks.
        DataError
            If its arrays cannot have come from `select`.
        """
        beta = check.weighing(beta, normalize)
        reader = self._tables.reader(selection.table, None, None)
        views = as_views(columns) if columns is not None else ()
        return reader.collect(selection, views, as_layout(layout), out, beta, normalize, self._kind(device))

    def release(self, selection: Selection, *, delivered: bool = True) -> None:
        """Let go of a selection; undelivered, the limiter's credit and the items' uses return."""
        self._tables.reader(selection.table, None, None).release(selection, delivered)

    def loader(
        self,
        query: int | Query = 256,
        table: str | None = None,
        *,
        require: Sequence[str] | str = (),
        include_open: bool = False,
        prefetch: int = 2,
        copy: bool = False,
        timeout: float | None = None,
        beta: float | None = None,
        normalize: Normalize = "batch",
        consumer: str | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        draw: int | None = None,
        device: str | None = None,
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
        consumer : str, optional
            As for `sample`; what was prefetched and not taken waits again.
        world_size, rank, draw : int, optional
            As for `sample`.
        device : str, optional
            As for `sample`: the batches of ``"cuda:0"`` are gathered on a stream of their own, beside the training.
        """
        query, timeout, beta = (
            self._query(query, require, include_open),
            check.seconds(timeout),
            check.weighing(beta, normalize),
        )
        prefetch = check.count("prefetch", prefetch, check.MOST_PREFETCH)
        reader = self._tables.reader(table, query, timeout)
        publish = partial(self._publish, reader)
        claiming = self._claiming(reader, consumer)
        share = check.share(query, world_size, rank, draw)
        loader = reader.loader(
            query, publish, prefetch, copy, timeout, beta, normalize, claiming, share, self._kind(device)
        )
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
            update = port.session.update_priorities(port.open, *part, timeout)
            applied, stale = applied + update.applied, stale + update.stale
        return Update(applied, stale)

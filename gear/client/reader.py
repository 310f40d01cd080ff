"""One client's way out of one table: select items, have their rows gathered into a batch, let the pin go.

Rows are read only while their pin lives; what was gathered under a pin that was taken back is thrown away.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gear.client.arguments import collectable
from gear.client.buffers import Buffers
from gear.client.deadline import left, patiently, until
from gear.errors import PinLost, SchemaError
from gear.packing import PackedPlans
from gear.plan import Plan, default_views, item_length, late_columns, make_plan, reach
from gear.query import Query
from gear.storage.item_sets import set_number
from gear.transport.base import Wanted
from gear.views import AnyView

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from gear.batch import Batch, NewBatch, Selection
    from gear.client.loader import Loader
    from gear.transport.base import OpenTable, Service
    from gear.transport.message import Share
    from gear.weights import Normalize

PIN_SECONDS = 60.0
"""How long a pin lives unless the caller says otherwise."""

STRAIGHT = 1 << 16
"""Bytes of a batch from which it pays to say where they are to go before they come."""

MOST_PLANS = 256
MOST_HELD = 4096
"""Pins remembered before those past their deadline are forgotten."""


@dataclass(frozen=True, eq=False, slots=True)
class _Planned:
    """What a query comes to.

    views: with those that are meant where it names none; plan: of its batches, where they are all laid out alike;
    at_once: whether select, gather and release may be one call.
    """

    query: Query
    views: tuple[AnyView, ...]
    packed: bool
    plan: Plan | None
    at_once: bool
    wanted: Wanted


class Reader:
    """Samples from one table.

    Parameters
    ----------
    session, table
        The table as `Session.open_table` gave it.
    new_batch : Plan, buffer or None -> Batch
        Makes the kind of batch the client's device wants.
    """

    def __init__(self, session: Service, table: OpenTable, new_batch: NewBatch) -> None:
        self._session, self.open, self._new_batch = session, table, new_batch
        self._elsewhere = getattr(new_batch, "on_device", False)
        self._length = item_length(table.table)
        self._longest = self._length or table.layout.max_length
        self._plans: dict[tuple[tuple[AnyView, ...], int, int], Plan] = {}
        self._packed: dict[tuple[AnyView, ...], PackedPlans] = {}
        self._buffers = Buffers()
        self._held: dict[object, float] = {}  # what tells a selection -> deadline
        self._sets: dict[tuple[tuple[str, ...], bool], int] = {}
        self._last: _Planned | None = None
        self._behind: dict[Callable[[Callable[[], None]], None], None] = {}
        """Each does something behind what a stream gathers of selections that are held; none keeps a batch alive."""

    def sample(
        self,
        query: Query,
        timeout: float | None,
        out: Batch | None,
        beta: float | None,
        normalize: Normalize,
        consumer: str = "",
        share: Share | None = None,
        kind: NewBatch | None = None,
    ) -> Batch:
        """Select and collect; the pin is released as delivered."""
        planned = self._planned(query, consumer)
        if planned.at_once and not consumer and share is None and kind is None:
            plan, which = planned.plan, planned.wanted.which
            assert plan is not None
            if out is None:
                batch = self._new_batch(plan, None)
            else:
                batch = out
                batch.reuse(plan)
            selection = self._session.sample(self.open, query.size, plan, batch.buffer, which)
            if selection is not None:
                batch.arrived()
                batch.fill(selection, beta, normalize)
                return batch
        batch = self.fetch(query, timeout, out, beta, normalize, consumer, share, kind)
        self.deliver(batch)
        return batch

    def deliver(self, batch: Batch) -> None:
        """Hand a batch to its consumer and let go of its pin, once it is filled."""
        if batch.on_device:
            batch.handed()
            batch.afterwards(partial(self._session.release, self.open, batch.selection, True))
        else:
            self._session.release(self.open, batch.selection, True)

    def fetch(
        self,
        query: Query,
        timeout: float | None,
        out: Batch | None,
        beta: float | None,
        normalize: Normalize,
        consumer: str = "",
        share: Share | None = None,
        kind: NewBatch | None = None,
    ) -> Batch:
        """Like `sample`, but the pin stays until the caller releases it. Redraws when a pin is lost, but for a rank."""
        planned = self._planned(query, consumer)
        wanted = planned.wanted if share is None else replace(planned.wanted, share=share)
        if out is not None and planned.plan is not None:
            out.reuse(planned.plan)
        into = None
        if planned.plan is not None and planned.plan.nbytes > STRAIGHT and not self._session.maps:
            into = np.empty(planned.plan.nbytes, np.uint8) if out is None else out.buffer
            wanted = replace(wanted, into=into)
        deadline = until(timeout)
        while True:
            selection = patiently(self._session.select, self.open, wanted, timeout=timeout)
            try:
                batch = self._gather(selection, planned.views, planned.packed, out, planned.plan, kind, into)
            except BaseException:
                self._session.release(self.open, selection, False)
                raise
            if batch is not None:
                batch.fill(selection, beta, normalize)
                return batch
            self._session.release(self.open, selection, False)
            timeout = left(deadline)

    def loader(
        self,
        query: Query,
        publish: Callable[[float], None],
        prefetch: int,
        copy: bool,
        timeout: float | None,
        beta: float | None,
        normalize: Normalize,
        consumer: str = "",
        share: Share | None = None,
        kind: NewBatch | None = None,
    ) -> Loader:
        """A loader of such batches; `publish` is called before each is fetched."""
        from gear.client.loader import Loader

        def fetch(wait: float, buffer: Batch | None) -> Batch:
            publish(wait)
            batch = self.fetch(query, wait, buffer, beta, normalize, consumer, share, kind)
            batch.settle()  # on the loader's thread: its consumer finds it filled
            return batch

        def release(selection: Selection, delivered: bool) -> None:
            self._session.release(self.open, selection, delivered)

        return Loader(fetch, release, prefetch, copy, timeout)

    def select(
        self,
        query: Query,
        parties: int,
        timeout: float | None,
        ttl: float,
        consumer: str = "",
        share: Share | None = None,
    ) -> Selection:
        """Draw and pin; what the query's views show beyond the items too, without any the neighbouring pieces."""
        most = self.open.layout.max_length
        near = reach(query.views, self._longest) if query.views else (most, most)
        which = self._planned(query, consumer).wanted.which
        wanted = Wanted(query.size, parties, ttl, None, which, near, query.budget, consumer, share)
        selection = patiently(self._session.select, self.open, wanted, timeout=timeout)
        if parties == 1:  # with several the selector may be a mere coordinator: a party holds when it collects
            self._hold(selection)
        return selection

    def pick(self, ids: npt.NDArray[np.int64], parties: int, ttl: float, timeout: float | None) -> Selection:
        """Pin items by their ids, and the neighbouring pieces of their trajectories."""
        most = self.open.layout.max_length
        selection = patiently(self._session.pick, self.open, ids, parties, ttl, (most, most), timeout=timeout)
        if parties == 1:
            self._hold(selection)
        return selection

    def collect(
        self,
        selection: Selection,
        views: tuple[AnyView, ...],
        packed: bool,
        out: Batch | None,
        beta: float | None,
        normalize: Normalize,
        kind: NewBatch | None = None,
    ) -> Batch:
        """Gather the rows of a selection, joining its pin first if it was made elsewhere.

        Raises
        ------
        PinLost
            If the rows may have been evicted.
        DataError
            If the selection is damaged.
        """
        if selection.key not in self._held:
            self._session.hold(self.open, selection)
            self._hold(selection)
        collectable(selection, self.open.layouts, self._longest)
        batch = None if selection.expired else self._gather(selection, views, packed, out, None, kind)
        if batch is None or selection.expired:
            if batch is not None:
                batch.settle()
            self.release(selection, False)
            why = "its deadline passed" if selection.expired else "the table needed its blocks"
            raise PinLost(
                f"the selection of {len(selection)} items of table {selection.table!r} is lost: {why}; "
                "select again, collect sooner or select with a longer ttl="
            )
        batch.fill(selection, beta, normalize)
        if batch.on_device:
            batch.handed()
            self._behind[batch.afterwards] = None
        return batch

    def release(self, selection: Selection, delivered: bool) -> None:
        """End this client's hold of the selection's pin, behind what is being collected of it on a GPU."""
        self._held.pop(selection.key, None)
        action = partial(self._session.release, self.open, selection, delivered)
        for afterwards in self._behind:  # one stream of each GPU gathers: what was launched before is through then
            action = partial(afterwards, action)
        action()

    def _hold(self, selection: Selection) -> None:
        if len(self._held) >= MOST_HELD:  # selections that were never released end at their deadline
            now = time.time()
            self._held = {key: deadline for key, deadline in self._held.items() if deadline > now}
        self._held[selection.key] = selection.deadline

    def plan(self, views: tuple[AnyView, ...], size: int, length: int) -> Plan:
        """The plan for that many items of that length, made once."""
        key = (views, size, length)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = make_plan(self.open.layout, views, size, length)
        return plan

    def _planned(self, query: Query, consumer: str = "") -> _Planned:
        """What a query comes to, worked out once."""
        last = self._last
        if last is not None and last.query is query and last.wanted.consumer == consumer:
            return last
        views, which = self._wanted(query, consumer)
        fixed = bool(self._length) and not query.packed and not query.max_steps  # every batch is laid out alike
        plan = self.plan(views, query.size, self._length) if fixed else None
        near = reach(query.views, self._longest)
        wanted = Wanted(query.size, 1, PIN_SECONDS, plan, which, near, query.budget, consumer)
        at_once = self._session.path == "inproc" and fixed and self._covered(query, views) and not self._elsewhere
        self._last = planned = _Planned(query, views, query.packed, plan, at_once, wanted)
        return planned

    def _packed_plan(self, views: tuple[AnyView, ...], lengths: npt.NDArray[np.int32]) -> Plan:
        plans = self._packed.get(views)
        if plans is None:
            if len(self._packed) >= MOST_PLANS:
                self._packed.clear()
            plans = self._packed[views] = PackedPlans(self.open.layout, views, self._longest)
        return plans.plan(lengths)

    def _wanted(self, query: Query, consumer: str = "") -> tuple[tuple[AnyView, ...], int]:
        """The views of a query and the number of the set that it draws from."""
        if consumer and self.open.table.consumer_needs:
            return self._served(query, consumer), 0
        if not query.require and not query.include_open:
            return query.views, 0
        key = (query.require, query.include_open)
        which = self._sets.get(key)
        if which is None:
            which = self._sets[key] = set_number(self.open.table, *key)
        return query.views or default_views(self.open.table, query.require), which

    def _served(self, query: Query, consumer: str) -> tuple[AnyView, ...]:
        """The views of what a consumer is served: what it needs is there."""
        table = self.open.table
        needs = table.needs_of(table.consumer(consumer))
        if query.require and set(query.require) != set(needs):
            raise SchemaError(
                f"require={query.require!r}: table {table.name!r} declares that consumer {consumer!r} needs "
                f"{', '.join(needs) or 'no late columns'}; leave require= out, or declare it for the consumer"
            )
        return query.views or default_views(table, needs)

    def _covered(self, query: Query, views: tuple[AnyView, ...]) -> bool:
        """Whether the late columns of the views, if any, are required, and shown of the items alone: they are there."""
        if not self.open.layout.late or not views:
            return True
        late = set(late_columns(self.open.table, views))
        return not late or (late <= set(query.require) and reach(views, self._longest) == (0, 0))

    def forget(self) -> None:
        """Drop the pins, in the child of a fork: they are the parent's."""
        self._held = {}
        self._behind.clear()
        self._buffers.forget()

    def _gather(
        self,
        selection: Selection,
        views: tuple[AnyView, ...],
        packed: bool,
        out: Batch | None,
        plan: Plan | None = None,
        kind: NewBatch | None = None,
        into: npt.NDArray[np.uint8] | None = None,
    ) -> Batch | None:
        """The batch of the selection's rows, None if its pin was taken back.

        plan, into: of so many items, if known, and where rows that came with the selection may have gone.
        """
        lengths = selection.lengths
        if plan is None or plan.size != len(lengths):
            if packed:
                plan = self._packed_plan(views, lengths)
            else:
                longest = self._length or max(1, int(lengths.max(initial=1)))
                plan = self.plan(views, len(lengths), longest)
            into = None
        kind = kind or self._new_batch
        if out is None and (memory := self._session.arrived(self.open, selection, plan)) is not None:
            batch = kind(plan, memory)
            batch.arrived()
            return batch
        if out is None or out.outgrown(plan):
            batch = kind(plan, self._buffers.take(plan.nbytes) if packed else into)
        else:
            batch = out
            batch.reuse(plan)
        if not self._session.gather(self.open, selection, plan, batch.buffer):
            return None
        batch.arrived()
        return batch

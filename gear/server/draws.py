"""Requests of clients that draw: selects, and what becomes of the pins and the items that they got.

What comes with every batch, a select with the release of the one before, takes the shortest way there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.errors import GearError, ProtocolError
from gear.server.later import deadline_of
from gear.storage.budget import Budget
from gear.storage.ranks_asks import Ask, Share, Wanted
from gear.transport import messages as m
from gear.transport import wire

if TYPE_CHECKING:
    from gear.batch import Selection
    from gear.server.bulk import Bulk, Refuse, Send
    from gear.server.clients import Client
    from gear.server.tables import Hosted, Tables
    from gear.server.timers import Timers
    from gear.transport.channel import Buffer


Handler = Callable[["Client", int, Any, "list[Buffer]"], None]


class Draws:
    """Answers them.

    Parameters
    ----------
    row : (client, table number) -> the table and the client's number in it
    send, refuse : see `bulk`
    bulk : for rows that go along.
    tables, timers : of the shard.
    """

    def __init__(
        self,
        row: Callable[[Client, int], tuple[Hosted, int]],
        send: Send,
        refuse: Refuse,
        bulk: Bulk,
        tables: Tables,
        timers: Timers,
    ) -> None:
        self._row, self._send, self._refuse, self._bulk = row, send, refuse, bulk
        self._tables, self._timers = tables, timers

    def handlers(self) -> dict[type, Handler]:
        """What it answers."""
        return {
            m.Select: self._select,
            m.Pick: self._pick,
            m.Hold: self._hold,
            m.Collect: self._collect,
            m.Update: self._update,
            m.Acknowledge: self._acknowledge,
        }

    def release(self, client: Client, releases: list[m.Release]) -> None:
        """Take in what came with a message: the pins that the client lets go of."""
        hosted = None
        for index, pin, delivered in releases:
            row = client.rows.get(index)
            if row is None:
                continue
            last, hosted = hosted, self._tables[index]
            if last is not None and last is not hosted:
                self._released(last)
            hosted.stored.pins.release(row, pin, delivered)
            if client.told:
                client.told.discard((index, pin))
        if hosted is not None:
            self._released(hosted)

    def _released(self, hosted: Hosted) -> None:
        self._timers.touched.add(hosted)
        hosted.queue.advance()

    def _select(self, client: Client, request: int, body: m.Select, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        shape, consumer = body.shape, -1
        if shape is not None:
            self._bulk.check(hosted, shape, body.size)
        if hosted.plain and not (body.which or body.steps or body.consumer or body.share):
            at_once = hosted.queue.select_at_once(row, body.size, body.parties, body.ttl, (body.before, body.after))
            if at_once is not None:
                answer = m.Selected(at_once.pin, at_once.parties, at_once.smallest, at_once.deadline)
                self._bulk.selected(client, request, hosted, row, shape, at_once, answer)
                return
        else:
            consumer = hosted.stored.table.consumer(body.consumer)

        def done(result: Selection | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result)
            else:
                answer = m.Selected(result.pin, result.parties, result.smallest, result.deadline, draw=result.draw)
                self._bulk.selected(client, request, hosted, row, shape, result, answer)

        which = body.which
        if which >= len(hosted.stored.layout.sets):
            raise ProtocolError(f"Select: table {hosted.name!r} has no set of items number {which}")
        reach, budget = (body.before, body.after), Budget(body.steps, body.alone) if body.steps else None
        deadline = deadline_of(body.timeout)
        if body.share is None:
            hosted.queue.select(row, body.size, body.parties, body.ttl, deadline, done, which, reach, budget, consumer)
        else:
            share = Share.checked(body.share.ranks, body.share.rank, body.share.draw)
            wanted = Wanted(body.size, which, budget)
            hosted.queue.ranks.ask(Ask(row, wanted, reach, consumer, share, body.parties, body.ttl, deadline, done))

    def _pick(self, client: Client, request: int, body: m.Pick, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        ids = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Pick ids")
        picked = hosted.stored.pick(row, ids, body.parties, body.ttl, (body.before, body.after))
        answer = m.Selected(picked.pin, picked.parties, picked.smallest, picked.deadline)
        self._bulk.selected(client, request, hosted, row, None, picked, answer)

    def _hold(self, client: Client, request: int, body: m.Hold, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        hosted.stored.pins.hold(row, body.pin)
        self._send(client, request, m.Done(), [])

    def _collect(self, client: Client, request: int, body: m.Collect, parts: list[Buffer]) -> None:
        self._bulk.collect(client, request, body, *self._row(client, body.table), parts)

    def _update(self, client: Client, request: int, body: m.Update, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        ids = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Update ids")
        update = hosted.stored.update(ids, wire.array(parts[2], np.float64, m.MAX_ITEMS, "Update priorities"))
        hosted.queue.advance()
        self._send(client, request, m.Updated(update.applied, update.stale), [])

    def _acknowledge(self, client: Client, request: int, body: m.Acknowledge, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        stored = hosted.stored
        ids = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Acknowledge ids")
        outcomes = stored.acknowledge(row, stored.table.consumer(body.consumer), ids)
        hosted.queue.advance()
        self._send(client, request, m.Acknowledged(), [outcomes.tobytes()])

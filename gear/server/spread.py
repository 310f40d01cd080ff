"""Requests of clients that draw from several shards at once: what one shard answers about its part of a table.

Items are drawn at once or not at all, and what can be drawn now is said with every answer: the client divides its
batches by it. Credit is the home's to give, see `lending`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gear.errors import GearError
from gear.transport import messages as m

if TYPE_CHECKING:
    from gear.server.bulk import Bulk, Send
    from gear.server.clients import Client
    from gear.server.lending import Lending
    from gear.server.tables import Hosted, Tables
    from gear.transport.channel import Buffer

    Handler = Callable[[Client, int, Any, list[Buffer]], None]


class Spread:
    """Draws from parts of tables.

    Parameters
    ----------
    send, refuse : see `bulk.Bulk`.
    bulk : for rows that come along.
    tables, lending : of the shard.
    """

    def __init__(
        self,
        send: Send,
        refuse: Callable[[Client, int, GearError], None],
        bulk: Bulk,
        tables: Tables,
        lending: Lending,
    ) -> None:
        self._send, self._refuse, self._bulk = send, refuse, bulk
        self._tables, self._lending = tables, lending

    def of_tables(self, place: Callable[[Client, int], tuple[Hosted, int]]) -> dict[type, Handler]:
        """What is done with requests on one table; `place` finds it and the client's number in it."""

        def of(do: Callable[[Client, int, Any, Hosted, int], None]) -> Handler:
            return lambda client, request, body, parts: do(client, request, body, *place(client, body.table))

        return {m.Draw: of(self.draw), m.Credit: of(self.credit), m.Await: of(self.wait)}

    def others(self) -> dict[type, Handler]:
        """What is done with the other messages of this file."""
        return {m.DropHidden: self.drop, m.Account: self.account}

    def drop(self, client: Client, request: int, body: m.DropHidden, parts: list[Buffer]) -> None:
        """Drop the part of a table that was not created everywhere."""
        self._tables.drop_hidden(body.table)
        self._send(client, request, m.Done(), [])

    def account(self, client: Client, request: int, body: m.Account, parts: list[Buffer]) -> None:
        """Take in what another shard reports."""
        self._send(client, request, self._lending.account(client, body), [])

    def draw(self, client: Client, request: int, body: m.Draw, hosted: Hosted, row: int) -> None:
        """Draw up to so many items now."""
        if body.shape is not None and body.size:
            self._bulk.check(hosted, body.shape, body.size)
        drawn = hosted.queue.select_now(row, body.size, body.parties, body.ttl, (body.before, body.after))
        answer = m.Selected(drawn.pin, drawn.parties, 1.0, drawn.deadline)
        answer.mass, answer.items, answer.smallest = hosted.stored.mass()
        self._bulk.selected(client, request, hosted, row, body.shape, drawn, answer)

    def credit(self, client: Client, request: int, body: m.Credit, hosted: Hosted, row: int) -> None:
        """Promise samples when the limiter lets them pass."""

        def done(result: tuple[int, float] | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result)
            else:
                self._send(client, request, m.Selected(result[0], body.parties, 1.0, result[1]), [b""])

        deadline = float("inf") if body.timeout is None else time.monotonic() + body.timeout
        hosted.queue.credit(row, body.amount, body.parties, body.ttl, deadline, done)

    def wait(self, client: Client, request: int, body: m.Await, hosted: Hosted, row: int) -> None:
        """Answer when there are items."""

        def done(_: object) -> None:
            mass, items, smallest = hosted.stored.mass()
            self._send(client, request, m.Selected(0, 1, smallest, 0.0, mass, items), [b""])

        hosted.queue.await_items(row, body.above, done)

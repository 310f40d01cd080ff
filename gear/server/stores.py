"""Requests of clients that store: leases, commits, and what becomes of those that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.errors import GearError
from gear.server.later import deadline_of
from gear.server.takeup import given_back, may_lease, without_void
from gear.transport import messages as m
from gear.transport import wire

if TYPE_CHECKING:
    from gear.server.bulk import Bulk, Refuse, Send
    from gear.server.clients import Client
    from gear.server.tables import Hosted
    from gear.storage.commit_lines import CommitDone
    from gear.storage.layout import Grant
    from gear.transport.channel import Buffer


Handler = Callable[["Client", int, Any, "list[Buffer]"], None]


class Stores:
    """Answers them.

    Parameters
    ----------
    row : (client, table number) -> the table and the client's number in it
    send, refuse : see `bulk`
    bulk : for rows that come along.
    """

    def __init__(
        self, row: Callable[[Client, int], tuple[Hosted, int]], send: Send, refuse: Refuse, bulk: Bulk
    ) -> None:
        self._row, self._send, self._refuse, self._bulk = row, send, refuse, bulk

    def handlers(self) -> dict[type, Handler]:
        """What it answers."""
        return {
            m.Lease: self._lease,
            m.Allocate: self._allocate,
            m.GiveBack: self._give_back,
            m.Commit: self._commit,
            m.Withdraw: self._withdraw,
            m.Insert: self._insert,
            m.Explain: self._explain,
        }

    def _lease(self, client: Client, request: int, body: m.Lease, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        may_lease(client, hosted, row, request)
        grant = hosted.stored.lease(row, body.blocks, body.slots, request)
        self._send(client, request, m.Granted(), _frames(grant))

    def _allocate(self, client: Client, request: int, body: m.Allocate, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)

        def done(result: Grant | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result)
            else:
                hosted.stored.mark(result, request)
                self._send(client, request, m.Granted(), _frames(result))

        may_lease(client, hosted, row, request)
        hosted.queue.allocate(row, body.blocks, body.slots, deadline_of(body.timeout), done)

    def _give_back(self, client: Client, request: int, body: m.GiveBack, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        blocks, slots = (wire.array(frame, np.int32, m.MAX_ROWS, "GiveBack") for frame in parts[1:])
        blocks = given_back(client, hosted, request, blocks)
        try:
            hosted.stored.give_back(row, blocks, slots)
        finally:
            hosted.queue.advance()
        self._send(client, request, m.Done(), [])

    def _commit(self, client: Client, request: int, body: m.Commit, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        entries, blocks, priorities = wire.commit_arrays(parts)
        if request <= client.before:
            may_lease(client, hosted, row, request)
            entries, blocks, priorities = without_void(client, hosted, entries, blocks, priorities)

        def done(result: CommitDone | GearError) -> None:
            stored = hosted.stored
            if isinstance(result, GearError):
                self._refuse(client, request, result, stored.committed(row))
                return
            wanted = (0, 0) if client.silent else (body.want_blocks, body.want_slots)
            grant = stored.lease(row, *wanted, request) if wanted != (0, 0) else None
            frames = _frames(grant) if grant is not None else [b"", b""]
            self._send(client, request, m.Committed(result.sequence, result.lost), frames)

        hosted.queue.commit(row, entries, blocks, priorities, done)

    def _insert(self, client: Client, request: int, body: m.Insert, parts: list[Buffer]) -> None:
        self._bulk.insert(client, request, *self._row(client, body.table), parts)

    def _withdraw(self, client: Client, request: int, body: m.Withdraw, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        self._send(client, request, m.Withdrawn(hosted.queue.withdraw(row, body.first, body.last)), [])

    def _explain(self, client: Client, request: int, body: m.Explain, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        self._send(client, request, m.Explained(hosted.queue.insert_obstacle()[:4096]), [])


def _frames(grant: Grant) -> list[bytes]:
    return [grant.blocks.tobytes(), grant.slots.tobytes()]

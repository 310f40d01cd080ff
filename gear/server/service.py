"""What a shard does with a client's request: one short method per message, over the stored tables.

It knows clients and tables and no socket. Nothing here waits: what cannot be answered now is parked with
its table, and the answer is sent when the event comes that it waits for.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from gear.batch import Selection
from gear.errors import GearError, ProtocolError
from gear.server.budget import MemoryBudget
from gear.server.bulk import Bulk, Rows, Send
from gear.server.clients import Client, Clients
from gear.server.latency import Latencies, clock, count
from gear.server.later import Later, deadline_of
from gear.server.lending import Lending
from gear.server.spread import Spread
from gear.server.tables import Hosted, Place, Tables
from gear.server.weights import Weights
from gear.storage import listing
from gear.storage.budget import Budget
from gear.storage.layout import Grant
from gear.storage.queue import CommitDone
from gear.storage.ranks import Ask, Share, Wanted
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.channel import Buffer

logger = logging.getLogger(__name__)

_RECLAIM_SECONDS = 0.05
_NOTHING: list[bytes] = []
_MAPPED = (m.Lease, m.Allocate, m.GiveBack, m.Commit)
"""What only a client does that writes into the tables itself."""


class Service:
    """The tables of a shard and the requests on them.

    Parameters
    ----------
    place : Place
    clients : Clients
    send : see `bulk.Send`
    wake : () -> None
        Called from another thread when `finish` has something to do.
    about : () -> dict
        Figures of the process for `info`.
    token, heartbeat : of the server, for the way to other shards.
    """

    def __init__(
        self,
        place: Place,
        clients: Clients,
        send: Send,
        wake: Callable[[], None],
        about: Callable[[], dict[str, Any]],
        token: str,
        heartbeat: float,
    ) -> None:
        budget = MemoryBudget(place.memory)
        self.tables = Tables(place, budget, wake)
        self.lending = Lending(place, self.tables, self._send, token, heartbeat)
        self.tables.adopt, self.tables.forget = self.lending.adopt, self.lending.forget
        self._clients, self._transmit, self._about = clients, send, about
        self._bulk = Bulk(self._send, self._refuse, wake)
        self._weights = Weights(budget, self._send, self._refuse)
        self._handlers: dict[type, Callable[[Client, int, Any, list[Buffer]], None]] = {
            m.Attach: self._attach,
            m.Goodbye: self._goodbye,
            m.CreateTable: self._create_table,
            m.OpenTable: self._open_table,
            m.Lease: self._lease,
            m.Allocate: self._allocate,
            m.GiveBack: self._give_back,
            m.Commit: self._commit,
            m.Withdraw: self._withdraw,
            m.Select: self._select,
            m.Pick: self._pick,
            m.Hold: self._hold,
            m.Update: self._update,
            m.Reset: self._reset,
            m.Info: self._info,
            m.Releases: self._done,
            m.Explain: self._explain,
            m.Describe: self._describe,
            m.Measure: self._measure,
            m.Scan: self._scan,
            m.Insert: self._insert,
            m.Collect: self._collect,
            m.Acknowledge: self._acknowledge,
            **self._weights.handlers,
            **Later(self._row, self._send, self._refuse).handlers(),
        }
        self._handlers |= Spread(self._send, self._refuse, self._bulk, self.tables, self.lending).handlers(self._row)
        self._latencies = Latencies(list(self._handlers))
        self._rows = self._latencies.rows
        self._asking: Client | None = None  # whose request is being handled, until it is answered
        self._asked = 0

    def handle(self, client: Client, envelope: m.Envelope, parts: list[Buffer]) -> None:
        """Do a request, once; its answer is sent now or later."""
        request, body = envelope.request, envelope.body
        began = clock()
        self._asking, self._asked = client, request
        try:
            if envelope.releases:
                self._release(client, envelope.releases)
            handler = self._handlers.get(type(body))
            if handler is None:
                raise ProtocolError(f"{type(body).__name__} is not for a shard")
            if client.lock is None and type(body) in _MAPPED:
                raise ProtocolError(f"{type(body).__name__} came before Attach: prove shared memory first")
            handler(client, request, body, parts)
        except GearError as error:
            self._refuse(client, request, error)
        except Exception as error:  # a bug of ours must not take down everybody else's tables
            logger.exception("request %s of client %s failed", type(body).__name__, client.identity.hex()[:8])
            self._refuse(client, request, GearError(f"internal error of the server: {error!r}; see its log"))
        answered, self._asking = self._asking is None, None
        row = self._rows.get(type(body))
        if row is not None:
            if answered:
                count(row, clock() - began)
            else:  # parked: counted when it is answered
                client.parked[request] = (row, began)

    def _send(
        self,
        client: Client,
        request: int,
        body: m.Message,
        frames: list[bytes],
        rows: Sequence[Rows] = (),
        kept: bool = True,
    ) -> None:
        """Send a message; the answer to a request ends its latency."""
        self._transmit(client, request, body, frames, rows, kept)
        if request:
            if client is self._asking and request == self._asked:
                self._asking = None
            elif client.parked and (waited := client.parked.pop(request, None)) is not None:
                count(waited[0], clock() - waited[1])

    # Clients

    def suspend(self, client: Client) -> None:
        """The client fell silent: what it holds is quarantined."""
        self.lending.fell_silent(client)
        for index, row in client.rows.items():
            self.tables[index].stored.suspend(row)
            self.tables[index].queue.advance()  # what it had claimed waits for others

    def resume(self, client: Client) -> None:
        """The client is back; it is told again what it may have missed."""
        for index in client.rows:
            hosted = self.tables[index]
            row = client.rows[index] = hosted.stored.attach(client.identity)
            hosted.clients[row] = client
            hosted.stored.resume(row)
            hosted.queue.advance()  # it may wait in a consumer's line
        for index, pin in sorted(client.told):
            self._send(client, 0, m.Revoke(index, [pin]), _NOTHING)

    def fence(self, client: Client) -> None:
        """The client can touch nothing any more: everything it held is free."""
        for index, row in client.rows.items():
            hosted = self.tables[index]
            hosted.queue.forget(row)
            hosted.stored.fence(row)
            hosted.clients.pop(row, None)
            hosted.queue.advance()
        client.rows.clear()
        self._weights.forget(client)
        self._clients.remove(client)

    def _row(self, client: Client, index: int) -> tuple[Hosted, int]:
        """A table and the client's number in it."""
        hosted = self.tables.get(index)
        if hosted is None:
            raise ProtocolError(f"there is no table number {index} on this shard")
        row = client.rows.get(index)
        if row is None:
            row = client.rows[index] = hosted.stored.attach(client.identity)
            hosted.clients[row] = client
            self._recall(hosted)  # everybody's share has become smaller
        return hosted, row

    # Time

    def finish(self) -> None:
        """Take in what other threads have done."""
        self.tables.finish()
        self._bulk.finish()

    def tick(self, now: float) -> None:
        """Do what is due by `time.monotonic()`: deadlines, expired pins, revocations."""
        self._weights.expire(now)
        clock_time = time.time()
        for hosted in self.tables:
            hosted.queue.expire(now)
            if hosted.queue.copying or hosted.stored.growing.expire(clock_time):
                hosted.queue.advance()
            if hosted.stored.pins.next_expiry <= clock_time:
                self._revoke(hosted, hosted.stored.pins.expire(clock_time))
                hosted.queue.advance()
            if hosted.queue.starved and now >= hosted.reclaim_at:
                hosted.reclaim_at = now + _RECLAIM_SECONDS
                self._revoke(hosted, hosted.stored.reclaim())
                hosted.queue.advance()  # pins that nobody had joined are gone at once
                self._recall(hosted)
        self.lending.tick(now)

    def next_due(self, now: float) -> float | None:
        """Seconds until `tick` has something to do."""
        due = [t for t in (self.lending.next_due(now),) if t is not None]
        fetches = self._weights.next_deadline
        if fetches is not None:
            due.append(fetches - now)
        for hosted in self.tables:
            deadline = hosted.queue.next_deadline()
            expiry = min(hosted.stored.pins.next_expiry, hosted.stored.growing.next_expiry)
            if deadline is not None and deadline != float("inf"):
                due.append(deadline - now)
            if expiry != float("inf"):
                due.append(expiry - time.time())
            if hosted.queue.copying:
                return 0.0
            if hosted.queue.starved:
                due.append(hosted.reclaim_at - now)
        return max(0.0, min(due)) if due else None

    def _recall(self, hosted: Hosted) -> None:
        for row, blocks in hosted.stored.recall_leases():
            if row in hosted.clients:
                self._send(hosted.clients[row], 0, m.Recall(hosted.index, min(blocks, m.MAX_ROWS)), _NOTHING)

    def _revoke(self, hosted: Hosted, told: list[tuple[int, int]]) -> None:
        by_client: dict[int, list[int]] = {}
        for row, pin in told:
            by_client.setdefault(row, []).append(pin)
        for row, pins in by_client.items():
            client = hosted.clients.get(row)
            if client is not None:
                client.told.update((hosted.index, pin) for pin in pins)
                if client.lock is None:  # it reads nothing by itself
                    for pin in pins:
                        hosted.stored.pins.release(row, pin, False)
                self._send(client, 0, m.Revoke(hosted.index, pins), _NOTHING)

    # Requests

    def _refuse(self, client: Client, request: int, error: GearError, sequence: int = 0) -> None:
        self._send(client, request, m.Failed(type(error).__name__, str(error), sequence), _NOTHING)

    def _done(self, client: Client, request: int, body: m.Message, parts: list[Buffer]) -> None:
        self._send(client, request, m.Done(), _NOTHING)

    def _attach(self, client: Client, request: int, body: m.Attach, parts: list[Buffer]) -> None:
        self._clients.attach(client, body.nonce)
        self._send(client, request, m.Done(), _NOTHING)

    def _goodbye(self, client: Client, request: int, body: m.Goodbye, parts: list[Buffer]) -> None:
        self._send(client, request, m.Done(), _NOTHING)
        self.fence(client)

    def _release(self, client: Client, releases: list[m.Release]) -> None:
        touched = set()
        for index, pin, delivered in releases:
            row = client.rows.get(index)
            if row is not None:
                hosted = self.tables[index]
                hosted.stored.pins.release(row, pin, delivered)
                client.told.discard((index, pin))
                touched.add(hosted)
        for hosted in touched:
            hosted.queue.advance()

    def _create_table(self, client: Client, request: int, body: m.CreateTable, parts: list[Buffer]) -> None:
        def made(result: Hosted | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result)
            elif body.hidden:
                self._send(client, request, m.Done(), _NOTHING)
            else:
                self._opened(client, request, result)

        self.tables.create(body.table, body.hidden, made)

    def _open_table(self, client: Client, request: int, body: m.OpenTable, parts: list[Buffer]) -> None:
        self._opened(client, request, self.tables.find(body.name))

    def _opened(self, client: Client, request: int, hosted: Hosted) -> None:
        row = self._row(client, hosted.index)[1]
        layout = hosted.stored.layout
        committed = hosted.stored.committed(row)
        answer = m.Opened(
            hosted.spec, hosted.index, layout.shard, str(hosted.stored.path), layout.nbytes, committed, hosted.part,
            hosted.parts, row,
        )  # fmt: skip
        self._send(client, request, answer, _NOTHING)

    def _lease(self, client: Client, request: int, body: m.Lease, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        self._send(client, request, m.Granted(), _frames(hosted.stored.lease(row, body.blocks, body.slots)))

    def _allocate(self, client: Client, request: int, body: m.Allocate, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)

        def done(result: Grant | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result)
            else:
                self._send(client, request, m.Granted(), _frames(result))

        hosted.queue.allocate(row, body.blocks, body.slots, deadline_of(body.timeout), done)

    def _give_back(self, client: Client, request: int, body: m.GiveBack, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        blocks, slots = (wire.array(frame, np.int32, m.MAX_ROWS, "GiveBack") for frame in parts[1:])
        try:
            hosted.stored.give_back(row, blocks, slots)
        finally:
            hosted.queue.advance()
        self._send(client, request, m.Done(), _NOTHING)

    def _commit(self, client: Client, request: int, body: m.Commit, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        entries, blocks, priorities = wire.commit_arrays(parts)

        def done(result: CommitDone | GearError) -> None:
            stored = hosted.stored
            if isinstance(result, GearError):
                self._refuse(client, request, result, stored.committed(row))
                return
            wanted = (0, 0) if client.silent else (body.want_blocks, body.want_slots)
            grant = stored.lease(row, *wanted) if wanted != (0, 0) else None
            frames = _frames(grant) if grant is not None else [b"", b""]
            self._send(client, request, m.Committed(result.sequence, result.lost), frames)

        hosted.queue.commit(row, entries, blocks, priorities, done)

    def _insert(self, client: Client, request: int, body: m.Insert, parts: list[Buffer]) -> None:
        self._bulk.insert(client, request, *self._row(client, body.table), parts)

    def _collect(self, client: Client, request: int, body: m.Collect, parts: list[Buffer]) -> None:
        self._bulk.collect(client, request, body, *self._row(client, body.table), parts)

    def _withdraw(self, client: Client, request: int, body: m.Withdraw, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        self._send(client, request, m.Withdrawn(hosted.queue.withdraw(row, body.first, body.last)), _NOTHING)

    def _select(self, client: Client, request: int, body: m.Select, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        shape, consumer = body.shape, hosted.stored.table.consumer(body.consumer)
        if shape is not None:
            self._bulk.check(hosted, shape, body.size)

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

    def _acknowledge(self, client: Client, request: int, body: m.Acknowledge, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        stored = hosted.stored
        ids = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Acknowledge ids")
        outcomes = stored.acknowledge(row, stored.table.consumer(body.consumer), ids)
        hosted.queue.advance()
        self._send(client, request, m.Acknowledged(), [outcomes.tobytes()])

    def _pick(self, client: Client, request: int, body: m.Pick, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        ids = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Pick ids")
        picked = hosted.stored.pick(row, ids, body.parties, body.ttl, (body.before, body.after))
        answer = m.Selected(picked.pin, picked.parties, picked.smallest, picked.deadline)
        self._bulk.selected(client, request, hosted, row, None, picked, answer)

    def _hold(self, client: Client, request: int, body: m.Hold, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        hosted.stored.pins.hold(row, body.pin)
        self._send(client, request, m.Done(), _NOTHING)

    def _update(self, client: Client, request: int, body: m.Update, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        ids = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Update ids")
        update = hosted.stored.update(ids, wire.array(parts[2], np.float64, m.MAX_ITEMS, "Update priorities"))
        hosted.queue.advance()
        self._send(client, request, m.Updated(update.applied, update.stale), _NOTHING)

    def _reset(self, client: Client, request: int, body: m.Reset, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        hosted.stored.reset()
        hosted.queue.credits.reset()
        hosted.queue.advance()
        self._send(client, request, m.Done(), _NOTHING)

    def _explain(self, client: Client, request: int, body: m.Explain, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        self._send(client, request, m.Explained(hosted.queue.insert_obstacle()[:4096]), _NOTHING)

    def _describe(self, client: Client, request: int, body: m.Describe, parts: list[Buffer]) -> None:
        self._send(client, request, m.Described([hosted.spec for hosted in self.tables if not hosted.hidden]), _NOTHING)

    def _scan(self, client: Client, request: int, body: m.Scan, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        page, cursor = listing.scan(hosted.stored, body.cursor, body.most)
        arrays = (page.ids, page.trajectories, page.positions, page.priorities, page.lengths)
        answer = m.Scanned(cursor, len(page.ids), page.priorities is not None)
        self._send(client, request, answer, [b"".join([a.tobytes() for a in arrays if a is not None])])

    def _info(self, client: Client, request: int, body: m.Info, parts: list[Buffer]) -> None:
        self._send(client, request, m.Informed(msgspec.msgpack.encode(self._figures())), _NOTHING)

    def _measure(self, client: Client, request: int, body: m.Measure, parts: list[Buffer]) -> None:
        figures = self._figures() | {"requests": self._latencies.figures()}
        figures["clients"]["connected"] -= 1
        self._send(client, request, m.Informed(msgspec.msgpack.encode(figures)), _NOTHING)

    def _figures(self) -> dict[str, Any]:
        return self._about() | {
            "pid": os.getpid(),
            "clients": {"connected": len(self._clients) - self._clients.silent, "silent": self._clients.silent},
            "segment_bytes": self.tables.nbytes,
            "weights_bytes": self._weights.nbytes,
            "weights": self._weights.info(),
            "tables": {
                hosted.name: hosted.stored.info() | hosted.queue.info() for hosted in self.tables if not hosted.hidden
            },
        }


def _frames(grant: Grant) -> list[bytes]:
    return [grant.blocks.tobytes(), grant.slots.tobytes()]

"""What a shard does with a client's request: which part of it answers, and how long that took.

It knows clients and tables and no socket. Nothing here waits: what cannot be answered now is parked with
its table, and the answer is sent when the event comes that it waits for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gear.errors import GearError, ProtocolError, TableNotFound
from gear.server.budget import MemoryBudget
from gear.server.bulk import Bulk, Rows, Send
from gear.server.catalog import Catalog
from gear.server.clients import MOST_WAITING, Client, Clients
from gear.server.draws import Draws
from gear.server.flows import Flow
from gear.server.latency import Latencies, clock, count
from gear.server.later import Later
from gear.server.lending import Lending
from gear.server.peers import Peers
from gear.server.saves import Saves, Shelf
from gear.server.spread import Spread
from gear.server.stores import Stores
from gear.server.tables import Hosted, Place, Tables
from gear.server.takeup import said_something
from gear.server.timers import Timers
from gear.server.weights import Weights
from gear.transport import messages as m
from gear.transport.channel import Buffer

logger = logging.getLogger(__name__)

_MAPPED = (m.Lease, m.Allocate, m.GiveBack, m.Commit)
"""What only a client does that writes into the tables itself."""


_ALWAYS = (m.Goodbye, m.Withdraw, m.Releases, m.GiveBack, m.Forgo)
"""What makes room, and is done whatever else waits."""


class _Kind(NamedTuple):
    """What is done with the messages of one kind.

    latencies: where they are counted; mapped: see `_MAPPED`; stirs: whether they may change more than the table they
    name.
    """

    answer: Callable[[Client, int, Any, list[Buffer]], None]
    latencies: list[int]
    mapped: bool
    stirs: bool


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
    shelf : where checkpoints lie.
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
        shelf: Shelf = Shelf(),  # noqa: B008 - immutable
    ) -> None:
        budget = MemoryBudget(place.memory)
        self.tables = Tables(place, budget, wake)
        self.lending = Lending(place, self.tables, self._send, token, heartbeat)
        self.tables.adopt, self.tables.forget = self.lending.adopt, self.lending.forget
        self._clients, self._transmit, self._wake = clients, send, wake
        self._bulk = Bulk(self._send, self._refuse, wake)
        self.weights = self._weights = Weights(budget, self._send, self._refuse, place.era)
        self.timers = Timers(self.tables, self._weights, self.lending, self._send)
        self.saves = Saves(shelf, place, self.tables, self._weights, self._send, self._refuse, wake)
        ways = self._row, self._send, self._refuse
        self._draws = Draws(*ways, self._bulk, self.tables, self.timers)
        self.peers = Peers(*ways, self._bulk, wake)
        figures = lambda: about() | self._saved() | {"rdma": self.peers.info()}
        self._catalog = Catalog(*ways, self.tables, clients, self._weights, figures)
        spread = Spread(self._send, self._refuse, self._bulk, self.tables, self.lending)
        of_tables = self._draws.handlers() | Stores(*ways, self._bulk).handlers() | Later(*ways).handlers()
        of_tables |= spread.of_tables(self._row) | self.peers.handlers() | {m.Releases: self._done}
        others = self._catalog.handlers() | spread.others() | self._weights.handlers | self.peers.others()
        others |= self.saves.handlers()
        others |= {m.Attach: self._attach, m.Goodbye: self._goodbye}
        self._catalog.latencies = Latencies([*of_tables, *others])
        rows = self._catalog.latencies.rows
        self._kinds = {
            kind: _Kind(answer, rows[kind], kind in _MAPPED, kind in others)
            for kind, answer in (of_tables | others).items()
        }
        self._asking: Client | None = None  # whose request is being handled, until it is answered
        self._asked = 0

    def handle(self, client: Client, envelope: m.Envelope, parts: list[Buffer]) -> None:
        """Do a request, once; its answer is sent now or later."""
        request, body = envelope.request, envelope.body
        kind = self._kinds.get(type(body))
        began = clock()
        self._asking, self._asked = client, request
        if client.kept:
            said_something(client, self.tables)
        try:
            if envelope.releases:
                self._draws.release(client, envelope.releases)
            if kind is None:
                raise ProtocolError(f"{type(body).__name__} is not for a shard")
            if kind.mapped and client.lock is None:
                raise ProtocolError(f"{type(body).__name__} came before Attach: prove shared memory first")
            if len(client.parked) >= MOST_WAITING and type(body) not in _ALWAYS:
                raise ProtocolError(
                    f"{MOST_WAITING} requests of this client wait for an answer, the most there may be; wait for some"
                )
            if kind.stirs:
                self.timers.stir()
            kind.answer(client, request, body, parts)
        except GearError as error:
            self._refuse(client, request, error)
        except Exception as error:  # a bug of ours must not take down everybody else's tables
            logger.exception("request %s of client %s failed", type(body).__name__, client.identity.hex()[:8])
            self._refuse(client, request, GearError(f"internal error of the server: {error!r}; see its log"))
        answered, self._asking = self._asking is None, None
        if kind is not None:
            if answered:
                count(kind.latencies, clock() - began)
            else:  # parked: counted when it is answered
                client.parked[request] = (kind.latencies, began)

    def _send(
        self,
        client: Client,
        request: int,
        body: m.Message,
        frames: list[bytes],
        rows: Sequence[Rows] | Flow = (),
        kept: bool = True,
    ) -> None:
        """Send a message; the answer to a request ends its latency."""
        self._transmit(client, request, body, frames, rows, kept)
        if request:
            if client is self._asking and request == self._asked:
                self._asking = None
            elif client.parked and (waited := client.parked.pop(request, None)) is not None:
                count(waited[0], clock() - waited[1])

    def _refuse(self, client: Client, request: int, error: GearError, sequence: int = 0) -> None:
        self._send(client, request, m.Failed(type(error).__name__, str(error), sequence), [])

    def finish(self) -> None:
        """Take in what other threads have done."""
        for finish in (self.tables.finish, self._bulk.finish, self.peers.finish, self.saves.finish):
            try:
                finish()
            except Exception:  # it concerns the one thing that was in hand; the rest has its turn at once
                logger.exception("what another thread has done could not be taken in")
                self._wake()
        self.timers.stir()

    def _saved(self) -> dict[str, Any]:
        return {"checkpoint": self.saves.info()}

    # Clients

    def suspend(self, client: Client) -> None:
        """The client fell silent: what it holds is quarantined."""
        self.lending.fell_silent(client)
        for index, row in client.rows.items():
            self.tables[index].stored.suspend(row)
            self.tables[index].queue.advance()  # what it had claimed waits for others
        self.timers.stir()

    def resume(self, client: Client) -> None:
        """The client is back; it is told again what it may have missed."""
        for index in client.rows:
            hosted = self.tables[index]
            row = client.rows[index] = hosted.stored.attach(client.identity)
            hosted.clients[row] = client
            hosted.stored.resume(row)
            hosted.queue.advance()  # it may wait in a consumer's line
        for index, pin in sorted(client.told):
            self._send(client, 0, m.Revoke(index, [pin]), [])
        self.timers.stir()

    def fence(self, client: Client) -> None:
        """The client can touch nothing any more: everything it held is free."""
        self.peers.drop(client)
        for index, row in client.rows.items():
            hosted = self.tables[index]
            hosted.queue.forget(row)
            hosted.stored.fence(row)
            hosted.clients.pop(row, None)
            hosted.queue.advance()
        client.rows.clear()
        self._weights.forget(client)
        self._clients.remove(client)
        self.timers.stir()

    def close(self) -> None:
        """Nobody reaches the tables any more."""
        self.lending.close()
        self.peers.close(self._clients)

    def _row(self, client: Client, index: int) -> tuple[Hosted, int]:
        """A table, with which something is done now, and the client's number in it."""
        hosted = self.tables.get(index)
        if hosted is None and index in self.tables.lost.numbers:
            raise TableNotFound(
                "the table had columns on a GPU and ended with the shard that died; connect anew and create it again"
            )
        if hosted is None:
            raise ProtocolError(f"there is no table number {index} on this shard")
        row = client.rows.get(index)
        if row is None:
            if hosted.hidden:  # it may be dropped, and must have no clients then
                raise ProtocolError(f"table number {index} is not created on every shard yet; open it by its name")
            row = client.rows[index] = hosted.stored.attach(client.identity)
            hosted.clients[row] = client
            self.timers.recall(hosted)  # everybody's share has become smaller
        self.timers.touched.add(hosted)
        return hosted, row

    # Requests that are about the client alone

    def _done(self, client: Client, request: int, body: m.Message, parts: list[Buffer]) -> None:
        self._send(client, request, m.Done(), [])

    def _attach(self, client: Client, request: int, body: m.Attach, parts: list[Buffer]) -> None:
        self._clients.attach(client, body.nonce)
        self._send(client, request, m.Done(), [])

    def _goodbye(self, client: Client, request: int, body: m.Goodbye, parts: list[Buffer]) -> None:
        self._send(client, request, m.Done(), [])
        self.fence(client)

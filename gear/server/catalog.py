"""Requests about tables as a whole: what there is, how it is declared, what it holds, how it fares."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gear.errors import GearError
from gear.storage import listing
from gear.transport import messages as m

if TYPE_CHECKING:
    from gear.server.bulk import Refuse, Send
    from gear.server.clients import Client, Clients
    from gear.server.latency import Latencies
    from gear.server.tables import Hosted, Tables
    from gear.server.weights import Weights
    from gear.storage.table import StoredTable
    from gear.transport.channel import Buffer


Handler = Callable[["Client", int, Any, "list[Buffer]"], None]


class Catalog:
    """Answers them.

    Parameters
    ----------
    row : (client, table number) -> the table and the client's number in it
    send, refuse : see `bulk`
    tables, clients, weights, latencies : of the shard.
    about : () -> dict
        Figures of the process for `info`.
    """

    def __init__(
        self,
        row: Callable[[Client, int], tuple[Hosted, int]],
        send: Send,
        refuse: Refuse,
        tables: Tables,
        clients: Clients,
        weights: Weights,
        about: Callable[[], dict[str, Any]],
    ) -> None:
        self._row, self._send, self._refuse = row, send, refuse
        self._tables, self._clients, self._weights, self._about = tables, clients, weights, about
        self.latencies: Latencies | None = None

    def handlers(self) -> dict[type, Handler]:
        """What it answers."""
        return {
            m.CreateTable: self._create_table,
            m.OpenTable: self._open_table,
            m.Reset: self._reset,
            m.Describe: self._describe,
            m.Scan: self._scan,
            m.Info: self._info,
            m.Measure: self._measure,
        }

    def _create_table(self, client: Client, request: int, body: m.CreateTable, parts: list[Buffer]) -> None:
        def made(result: Hosted | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result)
            elif body.hidden:
                self._send(client, request, m.Done(), [])
            else:
                self._opened(client, request, result)

        self._tables.create(body.table, body.hidden, made)

    def _open_table(self, client: Client, request: int, body: m.OpenTable, parts: list[Buffer]) -> None:
        self._opened(client, request, self._tables.find(body.name))

    def _opened(self, client: Client, request: int, hosted: Hosted) -> None:
        row = self._row(client, hosted.index)[1]
        layout = hosted.stored.layout
        committed = hosted.stored.committed(row)
        answer = m.Opened(
            hosted.spec, hosted.index, layout.shard, str(hosted.stored.path), layout.nbytes, committed, hosted.part,
            hosted.parts, row, *_where(hosted.stored),
        )  # fmt: skip
        self._send(client, request, answer, [])

    def _reset(self, client: Client, request: int, body: m.Reset, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        hosted.queue.reset()
        self._send(client, request, m.Done(), [])

    def _describe(self, client: Client, request: int, body: m.Describe, parts: list[Buffer]) -> None:
        self._send(client, request, m.Described([hosted.spec for hosted in self._tables if not hosted.hidden]), [])

    def _scan(self, client: Client, request: int, body: m.Scan, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        page, cursor = listing.scan(hosted.stored, body.cursor, body.most)
        arrays = (page.ids, page.trajectories, page.positions, page.priorities, page.lengths)
        answer = m.Scanned(cursor, len(page.ids), page.priorities is not None)
        self._send(client, request, answer, [b"".join([a.tobytes() for a in arrays if a is not None])])

    def _info(self, client: Client, request: int, body: m.Info, parts: list[Buffer]) -> None:
        self._send(client, request, m.Informed(msgspec.msgpack.encode(self._figures())), [])

    def _measure(self, client: Client, request: int, body: m.Measure, parts: list[Buffer]) -> None:
        assert self.latencies is not None
        figures = self._figures() | {"requests": self.latencies.figures()}
        figures["clients"]["connected"] -= 1
        self._send(client, request, m.Informed(msgspec.msgpack.encode(figures)), [])

    def _figures(self) -> dict[str, Any]:
        return self._about() | {
            "pid": os.getpid(),
            "clients": {"connected": len(self._clients) - self._clients.silent, "silent": self._clients.silent},
            "segment_bytes": self._tables.nbytes,
            "weights_bytes": self._weights.nbytes,
            "weights": self._weights.info(),
            "tables": {
                hosted.name: hosted.stored.info() | hosted.queue.info() for hosted in self._tables if not hosted.hidden
            },
        }


def _where(stored: StoredTable) -> tuple[str, bytes]:
    """The shard's device, and what opens a table's columns there."""
    there, arena = stored.on_device, stored.arena
    return "" if there is None else there.gpu, b"" if arena is None else arena.handle

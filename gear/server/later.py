"""Requests about what comes after an insert: late columns, open trajectories, versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.errors import GearError, ProtocolError
from gear.storage.names import names_of
from gear.transport import messages as m
from gear.transport import wire

if TYPE_CHECKING:
    from gear.server.bulk import Refuse, Send
    from gear.server.clients import Client
    from gear.server.tables import Hosted
    from gear.transport.channel import Buffer

Handler = Callable[["Client", int, Any, "list[Buffer]"], None]


class Later:
    """Answers them.

    Parameters
    ----------
    row : (client, table number) -> the table and the client's number in it
    send, refuse : see `bulk`
    """

    def __init__(self, row: Callable[[Client, int], tuple[Hosted, int]], send: Send, refuse: Refuse) -> None:
        self._row, self._send, self._refuse = row, send, refuse

    def handlers(self) -> dict[type, Handler]:
        """What it answers."""
        return {
            m.Fill: self._fill,
            m.SetVersion: self._set_version,
            m.Begin: self._begin,
            m.Append: self._append,
            m.Seal: self._seal,
            m.Length: self._length,
            m.Drop: self._drop,
            m.Identify: self._identify,
        }

    def _fill(self, client: Client, request: int, body: m.Fill, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        ids = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Fill ids")
        lengths = wire.array(parts[2], np.int64, m.MAX_ITEMS, "Fill lengths")
        update = hosted.stored.fill(ids, lengths, _named(body.columns, parts[3:], "Fill"))
        hosted.queue.advance()
        self._send(client, request, m.Updated(update.applied, update.stale), [])

    def _identify(self, client: Client, request: int, body: m.Identify, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        sequences = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Identify sequences")
        self._send(client, request, m.Identified(), [names_of(hosted.stored, row, sequences).tobytes()])

    def _set_version(self, client: Client, request: int, body: m.SetVersion, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        version = hosted.stored.version
        if body.version is not None:
            version = hosted.queue.set_version(body.version)
        self._send(client, request, m.Version(version), [])

    # Open trajectories

    def _begin(self, client: Client, request: int, body: m.Begin, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        growing, version = hosted.stored.growing, -1 if body.version is None else body.version
        done = self._answer(client, request, m.Begun)
        deadline = deadline_of(body.timeout)
        hosted.queue.attempt(row, "open", lambda: growing.open(row, parts[1], version), deadline, done)

    def _append(self, client: Client, request: int, body: m.Append, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        columns = _named(body.columns, parts[1:], "Append")
        growing, trajectory = hosted.stored.growing, body.trajectory
        done = self._answer(client, request, m.Grown)
        run = lambda: growing.append(row, trajectory, body.at, body.rows, columns)
        hosted.queue.attempt(row, "append", run, deadline_of(body.timeout), done)

    def _seal(self, client: Client, request: int, body: m.Seal, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        priorities = wire.array(parts[2], np.float64, m.MAX_ROWS, "Seal priorities")
        final = _named(body.final, parts[3:], "Seal")
        growing, trajectory = hosted.stored.growing, body.trajectory
        done = self._answer(client, request, m.Grown)
        run = lambda: growing.seal(row, trajectory, body.terminated, final, parts[1], priorities)
        hosted.queue.attempt(row, "seal", run, deadline_of(body.timeout), done)

    def _length(self, client: Client, request: int, body: m.Length, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        self._send(client, request, m.Grown(hosted.stored.growing.length(body.trajectory)), [])

    def _drop(self, client: Client, request: int, body: m.Drop, parts: list[Buffer]) -> None:
        hosted, _ = self._row(client, body.table)
        dropped = hosted.queue.drop(wire.array(parts[1], np.int64, m.MAX_ITEMS, "Drop ids"))
        self._send(client, request, m.Updated(dropped.applied, dropped.stale), [])

    def _answer(self, client: Client, request: int, kind: Callable[[int], m.Message]) -> Callable[[Any], None]:
        """Sends what an attempt came to."""

        def done(result: int | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result, 0)
            else:
                self._send(client, request, kind(result), [])

        return done


def _named(names: list[str], parts: list[Buffer], what: str) -> dict[str, Buffer]:
    """Buffers by the columns they are of.

    Raises
    ------
    ProtocolError
    """
    if len(set(names)) != len(names) or len(parts) != len(names):
        raise ProtocolError(f"{what}: expected a buffer for each of {names}, got {len(parts)}")
    return dict(zip(names, parts, strict=True))


def deadline_of(timeout: float | None) -> float:
    """`time.monotonic()` at which a timeout ends."""
    return float("inf") if timeout is None else time.monotonic() + timeout

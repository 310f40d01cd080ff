"""What a shard finds of the one that died before it: tables, and clients that are not heard of yet.

A client whose lock is held maps the tables and keeps its leases; all slots that were being read stay until it has said
something. One without a lock maps nothing: its leases end, and what it was writing waits for it as long as for any
client that fell silent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gear import schema
from gear.errors import ServerConflict
from gear.server.runtime import SEGMENTS
from gear.server.tables import Hosted, Place, Tables
from gear.storage import fields as f
from gear.storage import format
from gear.storage.entry import adds_up
from gear.storage.memory import size_text
from gear.storage.table import StoredTable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gear.devices.arena import Arena
    from gear.server.clients import Client, Clients

logger = logging.getLogger(__name__)


@dataclass
class TakenUp:
    """Tables, trajectories and bytes that were found, and entries that were damaged."""

    tables: int = 0
    trajectories: int = 0
    nbytes: int = 0
    damaged: int = 0


def kept_in(directory: Path) -> dict[str, int]:
    """The finished tables in a shard's directory, and their numbers."""
    headers = [format.read(path) for path in directory.glob(SEGMENTS) if format.in_use(path)]
    return {header.table.name: header.index for header in headers}


def take_up(place: Place, tables: Tables, clients: Clients, arenas: Mapping[int, Arena] | None = None) -> TakenUp:
    """Take up every table that lies in a shard's directory.

    Parameters
    ----------
    arenas : blocks on the device of those that were restored, by the tables' numbers.

    Raises
    ------
    ServerConflict
        If one of them cannot be: nothing is changed then.
    """
    paths = sorted(place.directory.glob(SEGMENTS), key=lambda path: int(path.name.rpartition("-")[2]))
    headers = {path: _read(path, place) for path in paths if _finished(path)}
    found = TakenUp()
    for path, header in headers.items():
        stored = StoredTable(
            header.table, header.index, header.shard, path, header.spread, kept=True, era=place.era, gpu=place.gpu,
            arena=(arenas or {}).get(header.index),
        )  # fmt: skip
        origin = header.origin
        whole = schema.from_bytes(origin.whole)
        tables.add(Hosted(stored, header.index, whole, origin.whole, origin.part, origin.parts, not header.shown))
        assert stored.found is not None
        found.tables += 1
        found.trajectories += stored.found.trajectories
        found.nbytes += stored.layout.nbytes
        found.damaged += stored.found.damaged
        logger.info(
            "took up table %s: %d trajectories, %d steps, %s%s",
            whole.name, stored.found.trajectories, stored.found.steps, size_text(stored.layout.nbytes),
            f"; {stored.found.damaged} damaged entries are left out" if stored.found.damaged else "",
        )  # fmt: skip
    _keep_clients(tables, clients)
    return found


def _finished(path: Path) -> bool:
    """Whether a segment was in use; one whose shard died while it was made is removed."""
    if format.in_use(path):
        return True
    path.unlink()
    return False


def _read(path: Path, place: Place) -> format.Header:
    header = format.read(path)
    if header.shard != place.shard or path.name != f"table-{header.index}":
        raise ServerConflict(
            f"{path} is number {header.index} of shard {header.shard}, which does not belong there; remove it with "
            "--discard"
        )
    return header


def _keep_clients(tables: Tables, clients: Clients) -> None:
    locked = set(clients.locked)
    rows: dict[bytes, dict[int, int]] = {identity: {} for identity in locked}
    for hosted in tables:
        for row, known in hosted.stored.clients.items():
            rows.setdefault(known.key, {})[hosted.index] = row
    holds = {hosted.index: _holders(hosted.stored) for hosted in tables}
    mapping: dict[int, set[int]] = {hosted.index: set() for hosted in tables}
    for identity, mine in rows.items():
        waited_for = identity in locked or any(row in holds[index] for index, row in mine.items())
        client = clients.keep(identity, mine) if waited_for else None
        for index, row in mine.items():
            hosted = tables[index]
            if (client is None or client.lock is None) and row in holds[index]:
                _end_leases(hosted.stored, row)
            if client is None:
                if row in holds[index]:
                    hosted.stored.fence(row)
                continue
            hosted.clients[row] = client
            hosted.stored.clients[row].fenced = False
            if client.lock is not None:
                mapping[index].add(row)
            else:
                _grow_on(hosted, row)
    for hosted in tables:
        assert hosted.stored.found is not None
        hosted.stored.pins.haunt(hosted.stored.found.haunted, mapping[hosted.index])


def _holders(stored: StoredTable) -> set[int]:
    """Clients with leases or open trajectories."""
    blocks = stored.layout.view(stored.segment, "blocks")
    return {*np.unique(_slots(stored)[:, f.WRITER]).tolist(), *np.unique(blocks[:, f.OWNER]).tolist()}


def _slots(stored: StoredTable) -> np.ndarray:
    return stored.layout.view(stored.segment, "slots")


def _end_leases(stored: StoredTable, row: int) -> None:
    slots, blocks = _slots(stored), stored.layout.view(stored.segment, "blocks")
    leased = np.flatnonzero((slots[:, f.STATE] == f.LEASED) & (slots[:, f.WRITER] == row)).astype(np.int32)
    stored.end_leases(row, np.flatnonzero(blocks[:, f.OWNER] == row).astype(np.int32), leased)


def _grow_on(hosted: Hosted, row: int) -> None:
    """What a client without shared memory was writing goes on under the numbers that it knows."""
    slots = _slots(hosted.stored)
    growing = hosted.queue.growing(row)
    for slot in np.flatnonzero(slots[:, f.WRITER] == row).tolist():
        if slots[slot, f.STATE] in (f.OPEN, f.EVICTED):
            growing[int(slots[slot, f.HANDLE])] = slot, int(slots[slot, f.LAST]), int(slots[slot, f.LENGTH])


def said_something(client: Client, tables: Tables) -> None:
    """A client of before speaks: it knows of the restart, and reads nothing of what it had pinned."""
    client.kept = False
    for index, row in client.rows.items():
        hosted = tables.get(index)
        if hosted is not None and hosted.stored.pins.laid(row):
            hosted.queue.advance()


def may_lease(client: Client, hosted: Hosted, row: int, request: int) -> None:
    """Before leases are granted: those that the shard of before granted for the same request are void."""
    if request <= client.before:
        hosted.stored.retract(row, request)
        client.granted.add(request & 0x7FFFFFFF)


def given_back(client: Client, hosted: Hosted, request: int, blocks: np.ndarray) -> np.ndarray:
    """Which of the blocks (int32[N]) that are given back are meant: not those that were leased anew meanwhile."""
    if request > client.before or not client.granted:
        return blocks
    records = hosted.stored.layout.view(hosted.stored.segment, "blocks")
    ordinals = records[blocks % len(records), f.ORDINAL]
    return blocks[~np.isin(ordinals, list(client.granted))]


def without_void(
    client: Client, hosted: Hosted, entries: np.ndarray, blocks: np.ndarray, priorities: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Commit entries sent again, without those that were withdrawn before the restart."""
    leaving = np.zeros(len(entries), np.bool_)
    for index, first, last in client.void:
        leaving |= (index == hosted.index) & (entries["sequence"] >= first) & (entries["sequence"] <= last)
    if not leaving.any() or not adds_up(entries, blocks, priorities):  # the check says what is wrong with them
        return entries, blocks, priorities
    of_blocks, of_priorities = (np.repeat(leaving, entries[name]) for name in ("blocks", "priorities"))
    return entries[~leaving].copy(), blocks[~of_blocks].copy(), priorities[~of_priorities].copy()

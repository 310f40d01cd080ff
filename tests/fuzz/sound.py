"""Requests as a client of ours would make them, from what the server has said: malformed ones are made of these.

Nobody reads a garbled message far. What is right but for one field is what reaches tables and kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from gear import schema
from gear.arrays import Entry, lay_out
from gear.schema import Table
from gear.storage.fields import BEGIN, END, HAS_FINAL, TERMINATED
from gear.storage.layout import COMMIT_ENTRY, Layout
from gear.transport import messages as m
from gear.views import View

Made = tuple[m.Message, list[bytes]]


@dataclass
class Drawn:
    """A selection: its pin, and ids, starts (int64) and lengths (int32) of its items."""

    pin: int = 0
    ids: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    lengths: np.ndarray = field(default_factory=lambda: np.ones(1, np.int32))


@dataclass
class Place:
    """What a client has in one table."""

    table: Table
    layout: Layout
    drawn: Drawn = field(default_factory=Drawn)
    blocks: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    sequence: int = 0
    handles: dict[int, int] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)
    cursor: bytes = b""

    def forget(self) -> None:
        """Another client speaks."""
        self.blocks, self.slots, self.handles, self.sequence, self.cursor = [], [], {}, 0, b""


class Known:
    """What one client knows; `heard` learns from the answers to its requests.

    Parameters
    ----------
    tables : those of the server, in the order of their numbers.
    """

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.places = [Place(table, Layout(table, index, 0)) for index, table in enumerate(tables)]
        self.specs = [schema.to_bytes(table) for table in tables]
        self.ticket = 1

    def forget(self) -> None:
        """Another client speaks: leases and numbers are gone."""
        for place in self.places:
            place.forget()

    def heard(self, asked: m.Message, body: m.Message, parts: list[Any]) -> None:
        """Learn from an answer."""
        if isinstance(body, m.Staged):
            self.ticket = body.ticket
        index = getattr(asked, "table", None)
        if not isinstance(index, int) or index >= len(self.places):
            return
        place = self.places[index]
        if isinstance(body, m.Selected):
            each = 36 if body.versioned else 28
            n = min((len(parts[1]) - 4 * body.near) // each, 64)
            buffer, total = bytes(parts[1]), (len(parts[1]) - 4 * body.near) // each
            arrays = [np.frombuffer(buffer, np.int64, n, 8 * total * k) for k in (0, 2)]
            lengths = np.frombuffer(buffer, np.int32, n, (each - 4) * total)
            place.drawn = Drawn(body.pin, *arrays, lengths) if n else place.drawn
        elif isinstance(body, (m.Granted, m.Committed)):
            place.blocks = (place.blocks + np.frombuffer(bytes(parts[1]), np.int32).tolist())[-64:]
            place.slots = (place.slots + np.frombuffer(bytes(parts[2]), np.int32).tolist())[-64:]
        elif isinstance(body, m.Begun):
            place.opened = {**dict(list(place.opened.items())[-8:]), body.trajectory: 0}
        elif isinstance(body, m.Grown) and isinstance(asked, m.Append):
            place.opened[asked.trajectory] = body.length
        elif isinstance(body, m.Scanned):
            place.cursor = body.cursor


def _pick(chance: Random, known: Known) -> tuple[int, Place]:
    index = chance.randrange(len(known.places))
    return index, known.places[index]


def _lease(chance: Random, known: Known) -> Made:
    return m.Lease(_pick(chance, known)[0], 4, 2), []


def _allocate(chance: Random, known: Known) -> Made:
    return m.Allocate(_pick(chance, known)[0], chance.choice((1, 3)), 1, 0.01), []


def _give_back(chance: Random, known: Known) -> Made:
    index, place = _pick(chance, known)
    blocks, place.blocks = place.blocks[:2], place.blocks[2:]
    slots, place.slots = place.slots[:1], place.slots[1:]
    return m.GiveBack(index), [np.array(blocks, np.int32).tobytes(), np.array(slots, np.int32).tobytes()]


def _commit(chance: Random, known: Known) -> Made:
    """Trajectories of one block, for each slot that is leased."""
    index, place = _pick(chance, known)
    n = min(len(place.blocks), len(place.slots), chance.choice((1, 2, 5)))
    entries = np.zeros(max(1, n), COMMIT_ENTRY)
    for k in range(n):
        place.sequence += 1
        length = chance.randint(1, place.layout.block_steps)
        entries[k] = (place.sequence, place.slots.pop(), 1, length, BEGIN | END | TERMINATED, 0, 0, 0)
    blocks = [place.blocks.pop() for _ in range(n)]
    return m.Commit(index, 4, 2), [entries.tobytes(), np.array(blocks, np.int32).tobytes(), b""]


def _insert(chance: Random, known: Known) -> Made:
    """A trajectory, whole or growing, with its rows."""
    index, place = _pick(chance, known)
    layout, steps = place.layout, place.layout.block_steps
    place.sequence += 1
    handle = chance.randrange(4)
    before = place.handles.get(handle)
    begins, ends = before is None, chance.random() < 0.7
    before = before or 0
    length = chance.randint(1, 2 * steps)
    final = int(ends and chance.random() < 0.2)
    flags = BEGIN * begins | END * ends | HAS_FINAL * final | TERMINATED * ends
    last = -(-(before + length + final) // steps)
    added, images = last - -(-before // steps), last - before // steps
    entry = np.zeros(1, COMMIT_ENTRY)
    entry[0] = (place.sequence, handle, added, length, flags, 0, before, 0)
    if ends:
        place.handles.pop(handle, None)
    else:
        place.handles[handle] = before + length
    width = sum(one.width for one in layout.per_trajectory) + 8 * place.table.versioned
    return m.Insert(index), [entry.tobytes(), b"", bytes(width * begins), bytes(images * layout.block_bytes)]


def _shape(place: Place) -> m.Shape:
    item = place.table.item
    length = item.length if isinstance(item, schema.Window) else 1 if isinstance(item, schema.Step) else 4
    return m.Shape((View("x"),), length)


def _select(chance: Random, known: Known) -> Made:
    index, place = _pick(chance, known)
    body = m.Select(index, chance.choice((1, 2, 8)), 1, chance.choice((0.02, 1.0)), chance.choice((0.0, 0.0, 0.01)))
    body.shape = _shape(place) if chance.random() < 0.3 else None
    body.consumer = chance.choice(place.table.consumers) if place.table.consumers else ""
    if chance.random() < 0.1:
        body.which, body.before, body.after = chance.randrange(3), chance.randrange(3), chance.randrange(3)
    if chance.random() < 0.1:
        body.share = m.Share(2, chance.randrange(2))
    return body, []


def _collect(chance: Random, known: Known) -> Made:
    index, place = _pick(chance, known)
    drawn = place.drawn
    return m.Collect(index, drawn.pin, _shape(place)), [drawn.starts.tobytes(), drawn.lengths.tobytes()]


def _of_ids(make: Callable[[int, Place], m.Message]) -> Callable[[Random, Known], Made]:
    def made(chance: Random, known: Known) -> Made:
        index, place = _pick(chance, known)
        return make(index, place), [place.drawn.ids.tobytes()]

    return made


def _update(chance: Random, known: Known) -> Made:
    place = known.places[0]  # which keeps priorities
    values = [chance.choice((0.0, 1.0, 1e-300, 1e300, 3.5)) for _ in place.drawn.ids]
    return m.Update(0), [place.drawn.ids.tobytes(), np.array(values).tobytes()]


def _fill(chance: Random, known: Known) -> Made:
    index, place = _pick(chance, known)
    late = [column for column in place.table.columns if column.late] or list(place.table.columns)
    ids, lengths = place.drawn.ids[:1], place.drawn.lengths[:1].astype(np.int64)
    rows = [bytes(c.row_bytes * (int(lengths.sum()) if c.per == "step" else 1)) for c in late]
    return m.Fill(index, [c.name for c in late]), [ids.tobytes(), lengths.tobytes(), *rows]


def _begin(chance: Random, known: Known) -> Made:
    return m.Begin(_pick(chance, known)[0], None, 0.01), [b""]


def _append(chance: Random, known: Known) -> Made:
    index, place = _pick(chance, known)
    trajectory, at = chance.choice(list(place.opened.items()) or [(0, 0)])
    columns = [c for c in place.table.columns if c.per == "step" and not c.late]
    n = chance.randint(1, 5)
    rows = [bytes(n * c.row_bytes) for c in columns]
    return m.Append(index, trajectory, at, n, [c.name for c in columns], 0.01), rows


def _seal(chance: Random, known: Known) -> Made:
    index, place = _pick(chance, known)
    trajectory = chance.choice(list(place.opened) or [0])
    return m.Seal(index, trajectory, True, [], 0.01), [b"", b""]


def _of_one(make: type[m.Hold] | type[m.Length]) -> Callable[[Random, Known], Made]:
    def made(chance: Random, known: Known) -> Made:
        index, place = _pick(chance, known)
        number = place.drawn.pin if make is m.Hold else chance.choice(list(place.opened) or [0])
        return make(index, number), []

    return made


def _scan(chance: Random, known: Known) -> Made:
    index, place = _pick(chance, known)
    return m.Scan(index, place.cursor, chance.choice((1, 7, 65536))), []


def _identify(chance: Random, known: Known) -> Made:
    index, place = _pick(chance, known)
    return m.Identify(index), [np.arange(max(0, place.sequence - 3), place.sequence + 2).tobytes()]


def _draw(chance: Random, known: Known) -> Made:
    return m.Draw(_pick(chance, known)[0], chance.choice((0, 1, 8)), 1, 0.02), []


def _publish(chance: Random, known: Known) -> Made:
    entries = (Entry("x", "float32", (chance.choice((0, 1, 1000)),)),)
    nbytes = lay_out(entries)[1]
    return m.Publish("policy", entries, 0), [bytes(nbytes)] if chance.random() < 0.5 else []


SOUND: dict[type[m.Message], Callable[[Random, Known], Made]] = {
    m.Lease: _lease,
    m.Allocate: _allocate,
    m.GiveBack: _give_back,
    m.Commit: _commit,
    m.Insert: _insert,
    m.Select: _select,
    m.Collect: _collect,
    m.Pick: _of_ids(lambda index, place: m.Pick(index, 1, 0.05, 1, 1)),
    m.Acknowledge: _of_ids(lambda index, place: m.Acknowledge(index, (*place.table.consumers, "")[0])),
    m.Drop: _of_ids(lambda index, place: m.Drop(index)),
    m.Update: _update,
    m.Fill: _fill,
    m.Begin: _begin,
    m.Append: _append,
    m.Seal: _seal,
    m.Length: _of_one(m.Length),
    m.Hold: _of_one(m.Hold),
    m.Scan: _scan,
    m.Identify: _identify,
    m.Draw: _draw,
    m.Withdraw: lambda chance, known: (m.Withdraw(_pick(chance, known)[0], 1, chance.randrange(1000)), []),
    m.SetVersion: lambda chance, known: (m.SetVersion(_pick(chance, known)[0], chance.choice((None, 0, 1))), []),
    m.OpenTable: lambda chance, known: (m.OpenTable(_pick(chance, known)[1].table.name), []),
    m.CreateTable: lambda chance, known: (m.CreateTable(chance.choice(known.specs)), []),
    m.Publish: _publish,
    m.Store: lambda chance, known: (m.Store(known.ticket, 0), [bytes(chance.choice((0, 4, 64, 4032)))]),
    m.Install: lambda chance, known: (m.Install(known.ticket), []),
    m.Fetch: lambda chance, known: (m.Fetch("policy", 0, 0.01), []),
    m.Read: lambda chance, known: (m.Read(known.ticket, 0, 100), []),
    m.Discard: lambda chance, known: (m.Discard(known.ticket), []),
    m.Dial: lambda chance, known: (m.Dial(17, 5, 18, 6, "::ffff:10.0.0.1", 0, 5), []),
    m.Locate: lambda chance, known: (m.Locate(0, 1, 8, 0, 0), [bytes(8), bytes(4)]),
    m.Place: lambda chance, known: (m.Place(0, 2, 1, 1), []),
    m.Land: lambda chance, known: (m.Land(0), [np.zeros(1, COMMIT_ENTRY).tobytes(), bytes(4), b"", b""]),
    m.Forgo: lambda chance, known: (m.Forgo(0), [bytes(4), bytes(4)]),
    m.Unload: lambda chance, known: (m.Unload(0, 17, 0, 64), [np.zeros(1, COMMIT_ENTRY).tobytes(), b"", b""]),
    m.Push: lambda chance, known: (m.Push(0, 1, m.Shape((), 1), 4096, 7), [bytes(8), bytes(4)]),
}

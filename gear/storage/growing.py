"""Open trajectories of a table as requests see them: opened, appended to, sealed, dropped.

A call does all of it or nothing: it raises what is wrong, or says what it waits for and is asked again. An append names
the length it goes on from, so that it can be applied once only, whoever asks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from gear.errors import DataError, ProtocolError
from gear.selection.prioritized import LARGEST
from gear.storage import fields as f
from gear.storage import late, opened
from gear.storage.items import item_count
from gear.storage.stepwise import write_steps

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.filling import Rows
    from gear.storage.layout import Placement
    from gear.storage.table import StoredTable


class Waits(Enum):
    """What a request waits for."""

    OPEN = opened.TOO_MANY
    MEMORY = opened.NO_ROOM
    CREDIT = opened.NO_CREDIT


class Growing:
    """The open trajectories of one table."""

    def __init__(self, stored: StoredTable) -> None:
        self._stored, self._layout, self._table = stored, stored.layout, stored.table
        self._slots = stored.layout.view(stored.segment, "slots")
        self._blocks = stored.layout.view(stored.segment, "blocks")
        self._steps, self._values = stored.layout.written("step"), stored.layout.written("trajectory")
        self._ttl = round(stored.table.open_ttl * 1e9)
        self.next_expiry = float("inf")
        """`time.time()` before which none is dropped."""

    def open(self, client: int, values: Rows, version: int) -> int | Waits:
        """Open a trajectory; its id. `values`: bytes of all per-trajectory columns, or none; `version` -1: the table's.

        Raises
        ------
        DataError, ProtocolError
        """
        if self._table.group_size:
            raise DataError(
                f"table {self._table.name!r} draws groups, whose members are inserted whole: insert(..., group=key)"
            )
        self._check_values(values)
        stored, now = self._stored, time.time_ns()
        fault, slot = opened.start(stored.segment, stored.params, client, version, now)
        if fault == opened.NEVER:
            raise DataError(
                f"table {self._table.name!r} has no room for open trajectories, which take at most half of it: its "
                f"capacity is {self._table.capacity}; raise it"
            )
        if fault != opened.FINE:
            return Waits(fault)
        self._give_values(slot, values)
        self.next_expiry = min(self.next_expiry, (now + self._ttl) / 1e9)
        block = int(self._slots[slot, f.FIRST])
        layout = self._layout
        prefix = layout.index << f.ID_TABLE_SHIFT | layout.shard << f.ID_SHARD_SHIFT
        return int(prefix | int(self._blocks[block, f.GENERATION]) << layout.row_bits | block * layout.block_steps)

    def append(self, client: int, name: int, at: int, rows: int, columns: Mapping[str, Rows]) -> int | Waits:
        """Append rows to a trajectory of `at` rows; its length then. columns: the bytes of every per-step column.

        Raises
        ------
        DataError
            If it is gone or sealed, has another length, or may not grow that long.
        """
        stored, what = self._stored, f"append to table {self._table.name!r}"
        places = {p.column.name: p for p in self._steps}
        if columns.keys() != places.keys() or rows < 1:
            raise ProtocolError(f"{what}: expected rows of {', '.join(places)}, got {rows} of {', '.join(columns)}")
        sources = [self._source(what, place, columns[n], rows) for n, place in places.items()]
        slot = self._find(what, name)
        length = int(self._slots[slot, f.LENGTH])
        if length != at:
            raise DataError(
                f"{what}: expected at={length}, the rows that trajectory {name} has, got at={at}; nothing was appended"
            )
        fault = opened.make_longer(stored.segment, stored.params, client, slot, rows)
        if fault == opened.NEVER:
            raise DataError(
                f"{what}: {length + rows} rows are more than an open trajectory may have, which takes at most half of "
                f"the capacity {self._table.capacity} and max_length {self._layout.max_length}; seal it; nothing was "
                "appended"
            )
        if fault != opened.FINE:
            return Waits(fault)
        self._write(slot, length, rows, dict(zip(places, sources, strict=True)))
        return int(opened.lengthen(stored.segment, stored.params, slot, rows, time.time_ns()))

    def seal(
        self,
        client: int,
        name: int,
        terminated: bool,
        final: Mapping[str, Rows],
        values: Rows,
        priorities: npt.NDArray[np.float64],
    ) -> int | Waits:
        """End a trajectory: it is as one inserted; its length.

        Raises
        ------
        DataError
            If it is gone, sealed already or empty, or something given does not fit.
        """
        stored, what = self._stored, f"seal in table {self._table.name!r}"
        places = {p.column.name: p for p in self._steps}
        strange = sorted(final.keys() - places.keys())
        if strange:
            raise DataError(f"{what}: final has {', '.join(strange)}, expected per-step columns that are not late")
        sources = {n: self._source(what, places[n], rows, 1) for n, rows in final.items()}
        self._check_values(values)
        slot = self._find(what, name)
        length = int(self._slots[slot, f.LENGTH])
        if length == 0:
            raise DataError(f"{what}: trajectory {name} has no rows; append some first")
        if self._values and not len(values) and not self._slots[slot, f.FLAGS] & f.DESCRIBED:
            names = ", ".join(p.column.name for p in self._values)
            raise DataError(f"{what}: expected the per-trajectory columns {names}; give them with columns=")
        n = int(item_count(stored.params, length, True))
        if len(priorities) not in (0, 1, n):
            raise DataError(f"{what}: expected one priority, or one for each of {n} items, got {len(priorities)}")
        if not ((priorities >= 0) & (priorities <= LARGEST)).all():
            raise DataError(f"{what}: priorities must be finite, not negative and not above 3.4e38, got {priorities}")
        fault = opened.ready(stored.segment, stored.params, client, slot, bool(final))
        if fault != opened.FINE:
            return Waits(fault)
        if final:
            self._write(slot, length, 1, {n: sources.get(n, np.zeros(p.width, np.uint8)) for n, p in places.items()})
        self._give_values(slot, values)
        flags = (f.TERMINATED if terminated else 0) | (f.HAS_FINAL if final else 0)
        opened.seal(stored.segment, stored.params, slot, flags, priorities)
        return length

    def length(self, name: int) -> int:
        """Rows of an open trajectory.

        Raises
        ------
        DataError
            If it is gone or sealed.
        """
        return int(self._slots[self._find(f"length in table {self._table.name!r}", name), f.LENGTH])

    def expire(self, now: float) -> bool:
        """Drop those that nobody appended to within `open_ttl` seconds of `now` (`time.time()`); whether any was."""
        if now < self.next_expiry:
            return False
        stored, before = self._stored, int(self._stored.counters[f.OPENED])
        earliest = opened.drop_before(stored.segment, stored.params, round(now * 1e9) - self._ttl)
        there = int(stored.counters[f.OPENED])
        self.next_expiry = (int(earliest) + self._ttl + 1000) / 1e9 if there else float("inf")
        return there < before

    def drop_all(self) -> None:
        """Drop every one."""
        opened.drop_before(self._stored.segment, self._stored.params, 1 << 62)
        self.next_expiry = float("inf")

    def resume(self) -> None:
        """Those that are there were opened before the shard was started."""
        mine = (self._slots[:, f.STATE] == f.OPEN) & (self._slots[:, f.WRITER] == f.TABLE)
        if mine.any():
            self.next_expiry = (int(self._slots[mine, f.TOUCHED].min()) + self._ttl + 1000) / 1e9

    def _find(self, what: str, name: int) -> int:
        stored = self._stored
        slot = int(late.slot_named(stored.segment, stored.params, name))
        if slot < 0:
            raise DataError(
                f"{what}: trajectory {name} is not there; it was sealed and has left, or went without an append for "
                f"open_ttl={self._table.open_ttl:g} seconds"
            )
        if self._slots[slot, f.WRITER] != f.TABLE:
            state = "sealed" if self._slots[slot, f.STATE] == f.CLOSED else "written by a client"
            raise DataError(f"{what}: trajectory {name} is {state}; open one with client.open")
        return slot

    def _source(self, what: str, place: Placement, rows: Rows, count: int) -> npt.NDArray[np.uint8]:
        source = np.frombuffer(rows, np.uint8)
        if len(source) != count * place.width:
            raise ProtocolError(
                f"{what}: expected {count * place.width} bytes of column {place.column.name!r}, got {len(source)}"
            )
        return source

    def _write(self, slot: int, first: int, rows: int, sources: Mapping[str, npt.NDArray[np.uint8]]) -> None:
        found, lengths = np.array([slot]), np.array([rows])
        for place in self._steps:
            write_steps(self._stored, place, found, lengths, first, sources[place.column.name])

    def _check_values(self, values: Rows) -> None:
        expected = sum(p.width for p in self._values)
        if len(values) not in (0, expected):
            raise ProtocolError(
                f"table {self._table.name!r}: expected {expected} bytes of per-trajectory columns, got {len(values)}"
            )

    def _give_values(self, slot: int, values: Rows) -> None:
        """Write the per-trajectory columns, or zeros until they are given."""
        if len(values):
            self._slots[slot, f.FLAGS] |= f.DESCRIBED
        elif self._slots[slot, f.FLAGS] & f.DESCRIBED:
            return
        source = (
            np.frombuffer(values, np.uint8) if len(values) else np.zeros(sum(p.width for p in self._values), np.uint8)
        )
        at, base = 0, self._layout.regions["trajectories"].offset
        for place in self._values:
            to = base + place.offset + slot * place.stride
            self._stored.segment[to : to + place.width] = source[at : at + place.width]
            at += place.width

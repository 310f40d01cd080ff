"""A server of several shards as one `Session`: a session with each, and tables that lie on more than one of them.

A table on one shard is that shard's table, and its calls go to that shard's session at once. A `SpreadTable` has a
part on each of its shards; what is asked of it is asked of all of them together. Inserts never come here: a
trajectory is written to one part, see `parts`. Shards that died are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gear import schema
from gear.batch import Part, Selection, Update
from gear.errors import (
    ConnectionLost,
    DataError,
    DeadlineExceeded,
    GearError,
    PinLost,
    SchemaError,
    StaleItems,
    TableMismatch,
    TableNotFound,
)
from gear.page import Page
from gear.parts import holders, is_limited, is_spread
from gear.storage.fields import ID_SHARD_SHIFT
from gear.totals import total
from gear.transport import messages as m
from gear.transport.base import OpenTable, table_not_found
from gear.transport.each import Each
from gear.transport.remote import deadline_of, expect, left_of
from gear.transport.spread import SpreadTable

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.arrays import Entry, Parcel
    from gear.checkpoint import Checkpoint
    from gear.plan import Plan
    from gear.schema import Table
    from gear.transport.base import Session, Wanted
    from gear.transport.conversation import Call
    from gear.transport.each import Path


class Several(Each):
    """A `Session` with several shards.

    Parameters
    ----------
    sessions : by the numbers of their shards, those that died left out.
    count : int
        How many shards the server has, those that died included.
    """

    def __init__(self, sessions: dict[int, Path], count: int) -> None:
        super().__init__(sessions)
        self._count = count
        self._opened: dict[str, OpenTable] = {}
        first = next(iter(sessions.values()))
        self.path, self.maps = first.path, first.maps

    # Tables

    def create_table(self, table: Table, timeout: float | None) -> OpenTable:
        """Create, or find an equal one: on every shard that shall hold it, or on none."""
        living, shards, spec = self.living, holders(table, self._count), schema.to_bytes(table)
        gone = [shard for shard in shards if shard not in living]
        if gone:
            with contextlib.suppress(TableNotFound, ConnectionLost):
                return self._equal(table, self.open_table(table.name, timeout))
            raise ConnectionLost(
                f"table {table.name!r} cannot be created: shard {', '.join(map(str, gone))}, which would hold a part "
                "of it, is gone; start the server again"
            )
        hidden = self.ask_each({shard: m.CreateTable(spec, True) for shard in shards}, timeout)
        refused = [answer for answer in hidden.values() if isinstance(answer, GearError)]
        if refused or len(hidden) < len(shards):
            made = [shard for shard, answer in hidden.items() if not isinstance(answer, GearError)]
            self.ask_each({shard: m.DropHidden(spec) for shard in made}, timeout)
            raise refused[0] if refused else ConnectionLost(f"a shard died while table {table.name!r} was created")
        shown = self.ask_each({shard: m.CreateTable(spec) for shard in shards}, timeout)
        return self._join(table, shown)

    def _equal(self, table: Table, opened: OpenTable) -> OpenTable:
        if opened.table != table:
            raise TableMismatch(
                f"table {table.name!r} exists and differs (as it is there against what was asked for): "
                f"{'; '.join(opened.table.differences(table))}; use another "
                "name or the same declaration"
            )
        return opened

    def open_table(self, name: str | None, timeout: float | None) -> OpenTable:
        """The table of that name, or the only one."""
        known = self._opened.get(name) if name is not None else None
        if known is not None:
            return known
        living = self.living
        answers = self.ask_each(dict.fromkeys(living, m.Describe()), timeout)
        specs = {
            spec for answer in answers.values() if not isinstance(answer, GearError)
            for spec in expect(answer, m.Described).tables
        }  # fmt: skip
        tables = {table.name: table for table in map(schema.from_bytes, specs)}
        silent = next((answer for answer in answers.values() if isinstance(answer, DeadlineExceeded)), None)
        if name is None and len(tables) == 1 and silent is None:
            name = next(iter(tables))
        if name is None or name not in tables:
            if silent is not None:  # that shard may be the one that holds it
                raise silent
            self._raise_lost(answers.values())
            raise self._absent(name, tables, answers)
        table = tables[name]
        there = [shard for shard in holders(table, self._count) if shard in living]
        opened = self.ask_each({shard: m.OpenTable(name) for shard in there}, timeout)
        if any(isinstance(answer, TableNotFound) for answer in opened.values()):
            return self.create_table(table, timeout)  # somebody is about to show it, or died before
        return self._join(table, opened)

    def _absent(self, name: str | None, tables: dict[str, Table], answers: dict[int, Call | GearError]) -> GearError:
        """The error for a table that no shard knows; one that is gone may be the one that holds it."""
        gone = [shard for shard in range(self._count) if isinstance(answers.get(shard), GearError | None)]
        if name is None or not gone:
            return table_not_found(name, tables)
        return ConnectionLost(
            f"table {name!r} is not among those of the shards that answer ({', '.join(sorted(tables)) or 'none'}); "
            f"shard {', '.join(map(str, gone))}, which may hold it, is gone: connect anew once the server has started "
            "it again"
        )

    @staticmethod
    def _raise_lost(answers: Iterable[Call | GearError]) -> None:
        """Raise what kept every shard from answering."""
        found = list(answers)
        if found and all(isinstance(answer, GearError) for answer in found):
            raise found[0]  # type: ignore[misc]

    def _join(self, table: Table, answers: dict[int, Call | GearError]) -> OpenTable:
        """The table made of the parts that shards have opened; those of shards that are gone are left out.

        Raises
        ------
        GearError
            If a shard has not opened its part and is not gone for good: without it the table would be known by less
            than it holds, for as long as this client lives.
        """
        opened: dict[int, OpenTable] = {}
        for shard, answer in answers.items():
            if isinstance(answer, GearError):
                if not isinstance(answer, ConnectionLost):
                    raise answer
                continue
            opened[shard] = self._sessions[shard].opened(answer)
        shards = holders(table, self._count)
        self.hear_all(table.name, shards, answers)
        self._raise_lost(answers.values())
        known = self._opened.get(table.name)
        if known is not None:
            return known
        if len(shards) == 1:
            self._opened[table.name] = opened[shards[0]]
            return opened[shards[0]]
        first = next(iter(opened.values()))
        home = shards[0] if is_limited(table) and is_spread(table, len(shards)) else None
        joined = SpreadTable(table, first.layout, first.segment, row=first.row, opened=opened, home=home)
        self._opened[table.name] = joined
        return joined

    def parts(self, table: OpenTable) -> list[tuple[Session, OpenTable]]:
        """The parts of a table, each with the session of its shard."""
        if isinstance(table, SpreadTable):
            return [(self._sessions[shard], opened) for shard, opened in table.opened.items()]
        return [(self._sessions[table.layout.shard], table)]

    # Draws; the table is a `SpreadTable` from here on.

    def select(self, table: OpenTable, wanted: Wanted, timeout: float | None) -> Selection:
        """Draw and pin `size` items, from all shards in proportion to what their parts weigh."""
        from gear.transport.drawing import Drawing

        if wanted.budget is not None or wanted.share is not None:
            what = "max_steps" if wanted.share is None else "world_size"
            raise SchemaError(
                f"table {table.table.name!r} lies on several shards, and {what} needs one to draw in one order: "
                "declare the table with shards=1, or ask for a number of items"
            )
        return Drawing(self, _spread(table), wanted).draw(deadline_of(timeout))

    def pick(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        parties: int,
        ttl: float,
        reach: tuple[int, int],
        timeout: float | None,
    ) -> Selection:
        """Pin items by their ids, shard by shard."""
        spread = _spread(table)
        shards, until = ids >> ID_SHARD_SHIFT & 0xFF, deadline_of(timeout)
        picked: list[tuple[int, Selection]] = []
        try:
            for shard in np.unique(shards).tolist():
                if shard not in self.keeping(spread):
                    raise StaleItems(
                        f"table {table.table.name!r}: shard {shard}, which held some of the items, is gone"
                    )
                mine = ids[shards == shard].copy()
                one = self._sessions[shard].pick(spread.opened[shard], mine, parties, ttl, reach, left_of(until))
                picked.append((shard, one))
        except BaseException:
            for shard, one in picked:
                with contextlib.suppress(GearError):
                    self._sessions[shard].release(spread.opened[shard], one, False)
            raise
        if not picked:
            return Selection.empty(table.table.name, parties)
        fields = ("ids", "probabilities", "starts", "lengths", "neighbours")
        joined: dict[str, Any] = {name: np.concatenate([getattr(one, name) for _, one in picked]) for name in fields}
        parts = tuple(Part(shard, len(one), one.pin, len(one.neighbours)) for shard, one in picked)
        deadline = min(one.deadline for _, one in picked)
        return Selection(
            table=table.table.name, smallest=1.0, pin=0, parties=parties, deadline=deadline, parts=parts, **joined
        )

    def sample(
        self, table: OpenTable, size: int, plan: Plan, out: npt.NDArray[np.uint8], which: int = 0
    ) -> Selection | None:
        """Never: the shards draw."""
        return None

    def arrived(self, table: OpenTable, selection: Selection, plan: Plan) -> npt.NDArray[np.uint8] | None:
        """Never: each part comes by itself."""
        return None

    def gather(
        self,
        table: OpenTable,
        selection: Selection,
        plan: Plan,
        out: npt.NDArray[np.uint8],
        first: int = 0,
        steps: int = 0,
    ) -> bool:
        """Collect the rows of each part into consecutive items of the batch."""
        spread = _spread(table)
        for part, begin, items in selection.split():
            if part.size:
                session, opened = self._sessions[part.shard], spread.opened[part.shard]
                try:
                    before = steps + plan.steps_of(selection.lengths[:begin]) if plan.packed else 0
                    if not session.gather(opened, items, spread.plan(part.shard, plan), out, first + begin, before):
                        return False
                except ConnectionLost:  # its rows are gone with it
                    return False
        return True

    def hold(self, table: OpenTable, selection: Selection) -> None:
        """Join the pins of a selection made elsewhere."""
        spread, held = _spread(table), []
        try:
            for part, _, items in selection.split():
                self._sessions[part.shard].hold(spread.opened[part.shard], items)
                held.append((part.shard, items))
        except BaseException as error:
            for shard, items in held:
                with contextlib.suppress(ConnectionLost):
                    self._sessions[shard].release(spread.opened[shard], items, False)
            if isinstance(error, ConnectionLost):
                raise PinLost(f"a shard that a part of the selection was drawn from is gone ({error})") from None
            raise

    def release(self, table: OpenTable, selection: Selection, delivered: bool) -> None:
        """End this party's hold of every part; a shard that is gone holds nothing."""
        spread = _spread(table)
        for part, _, items in selection.split():
            with contextlib.suppress(ConnectionLost):
                self._sessions[part.shard].release(spread.opened[part.shard], items, delivered)

    def revoked(self, table: OpenTable, selection: Selection) -> bool:
        """Whether a shard has taken its pin back."""
        spread = _spread(table)
        return any(self._sessions[p.shard].revoked(spread.opened[p.shard], s) for p, _, s in selection.split())

    def update_priorities(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> Update:
        """Set raw priorities, each on its shard; of items on a shard that is gone, or not back yet, they are stale."""
        spread = _spread(table)
        shards = ids >> ID_SHARD_SHIFT & 0xFF
        bodies: dict[int, m.Message] = {}
        frames: dict[int, tuple[bytes, ...]] = {}
        living, present = self.living, self.holding(spread)
        for shard in np.unique(shards).tolist():
            if shard in living and shard in spread.opened:
                mine = shards == shard
                bodies[shard] = m.Update(spread.opened[shard].layout.index)
                frames[shard] = ids[mine].astype(np.int64).tobytes(), priorities[mine].astype(np.float64).tobytes()
        applied = 0
        calls = self.post_each(bodies, frames)  # a shard that is being started again gets them then: not waited for
        calls = {shard: call for shard, call in calls.items() if shard in present}
        for answer in self.answers(calls, "update_priorities", deadline_of(timeout)).values():
            if isinstance(answer, ConnectionLost):
                continue
            if isinstance(answer, GearError):
                raise answer
            applied += expect(answer, m.Updated).applied
        return Update(applied, len(ids) - applied)

    def acknowledge(
        self, table: OpenTable, ids: npt.NDArray[np.int64], consumer: str, timeout: float | None
    ) -> npt.NDArray[np.int8]:
        """Never: a table that has consumers lies on one shard."""
        raise DataError(f"table {table.table.name!r} declares no consumers: nothing is acknowledged")

    # Weights, which the first shard keeps

    @property
    def _keeper(self) -> Path:
        if 0 not in self._sessions:
            raise ConnectionLost("shard 0, which keeps what is published, is gone; start the server again")
        return self._sessions[0]

    def publish(self, name: str, parcel: Parcel, version: int, timeout: float | None) -> int:
        """Replace what is published under a name."""
        return self._keeper.publish(name, parcel, version, timeout)

    def fetch(
        self, name: str, newer_than: int, timeout: float | None
    ) -> tuple[int, tuple[Entry, ...], npt.NDArray[np.uint8]]:
        """The latest version, once it is newer than that."""
        return self._keeper.fetch(name, newer_than, timeout)

    # The whole

    def scan(self, table: OpenTable, cursor: bytes, most: int, timeout: float | None) -> tuple[Page, bytes]:
        """The next page: one shard after the other. The cursor begins with the number of the shard."""
        spread = _spread(table)
        shards = sorted(self.keeping(spread))
        shard = cursor[0] if cursor else shards[0]
        nothing = np.empty(0, np.int64)
        page = Page(nothing, nothing, nothing, nothing.astype(np.int32), None)
        rest = b""
        if shard in shards:
            page, rest = self._sessions[shard].scan(spread.opened[shard], cursor[1:], most, timeout)
            numbers = page.trajectories | shard << ID_SHARD_SHIFT
            page = Page(page.ids, numbers, page.positions, page.lengths, page.priorities)
        if rest:
            return page, bytes([shard]) + rest
        behind = [other for other in shards if other > shard]
        return page, bytes([behind[0]]) if behind else b""

    def reset(self, table: OpenTable, timeout: float | None) -> None:
        """Drop every trajectory on every shard that is not gone for good."""
        spread = _spread(table)
        bodies = {shard: m.Reset(spread.opened[shard].layout.index) for shard in self.keeping(spread)}
        answers = self.ask_each(dict(bodies), timeout)
        for answer in answers.values():
            if isinstance(answer, GearError) and not isinstance(answer, ConnectionLost):
                raise answer
        self.hear_all(table.table.name, bodies, answers)

    def checkpoint(self, timeout: float | None, progress: Callable[[int, int], None] | None = None) -> Checkpoint:
        """Save all tables to the server's disk."""
        from gear.transport.saving import save

        return save(self.living, self._count, timeout, progress)

    def info(self, timeout: float | None) -> dict[str, Any]:
        """Figures of all shards added up, and under ``shards`` whether each one serves."""
        figures: dict[int, dict[str, Any]] = {}
        for shard, session in self.living.items():
            with contextlib.suppress(ConnectionLost):
                figures[shard] = session.info(timeout)
        self.living  # noqa: B018 - raises when the last one has died meanwhile
        states = {
            str(shard): {"ready": shard in figures} | ({"pid": figures[shard]["pid"]} if shard in figures else {})
            for shard in range(self._count)
        }
        devices = {str(figure.get("devices", "cpu")) for figure in figures.values()}
        named = f"cpu:{self._count}" if devices <= {"cpu"} else ",".join(sorted(devices))
        return total(figures.values()) | {"devices": named, "shards": states}

    def close(self) -> None:
        """End every session."""
        for session in self._sessions.values():
            session.close()


def _spread(table: OpenTable) -> SpreadTable:
    assert isinstance(table, SpreadTable)
    return table

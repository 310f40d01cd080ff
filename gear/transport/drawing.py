"""One batch drawn from the parts of a table: asked of every shard at once, divided by what the parts last weighed.

Every request goes to every shard, for no items too, so that each reply brings what a part weighs now. The
probabilities are those of the draw really made: of the share that a part had, and of the item in its part. What a part
could not give is drawn again from all of them.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gear.batch import Part, Selection
from gear.errors import ConnectionLost, DeadlineExceeded, GearError
from gear.schema import Queue, Stack
from gear.transport import messages as m
from gear.transport.remote import expect, left_of
from gear.transport.spread import Mass
from gear.transport.watch import Watch, first_of

if TYPE_CHECKING:
    from gear.transport.base import Wanted
    from gear.transport.conversation import Call
    from gear.transport.session import RemoteSession
    from gear.transport.several import Several
    from gear.transport.spread import SpreadTable

PROMPT = 0.002
"""Seconds that drawn items wait for their credit before they are given back and drawn anew once it is there."""


@dataclass
class _Got:
    """Items of one shard, and the share of the batch that its part had when it was asked."""

    shard: int
    items: Selection
    share: float


class Drawing:
    """A batch being drawn.

    Parameters
    ----------
    several, table, wanted
        See `Session.select`.
    """

    def __init__(self, several: Several, table: SpreadTable, wanted: Wanted) -> None:
        self._several, self._table = several, table
        self._size, self._parties, self._ttl = wanted.size, wanted.parties, min(wanted.ttl, 1e10)
        self._ahead, self._reach = wanted.ahead, wanted.reach
        declared = table.table
        # Items that are used up make a batch short; how much credit it takes is known when it is drawn.
        self._may_be_short = declared.max_times_sampled > 0
        self._line = isinstance(declared.limiter, (Queue, Stack))
        self._got: list[_Got] = []
        self._smallest = 1.0
        self._credit: Selection | None = None
        self._amount = 0
        self._asked: Call | None = None

    def draw(self, deadline: float) -> Selection:
        """The batch.

        Raises
        ------
        DeadlineExceeded
            Saying what it waited for; nothing has happened then.
        ConnectionLost
            If every shard is gone, or the home of a limiter.
        """
        self._table.own()
        try:
            if self._parties > 1 and self._table.home is not None and not self._may_be_short:
                self._known(deadline)
                self._ask_credit(self._size, deadline)  # first: what is for several parties nobody gives back at once
                self._take_credit(self._size, deadline)
            while True:
                self._fill(deadline)
                if self._table.home is None or self._has_credit(deadline):
                    return self._whole()
                self._give_back()
        except BaseException:
            self._give_back()
            self._return_credit()
            raise

    # Items

    def _fill(self, deadline: float) -> None:
        """Draw until there are enough, or no more for a batch that may be short."""
        missing = self._size
        while missing > 0:
            masses = self._known(deadline)
            if sum(mass.mass for mass in masses.values()) <= 0.0 or self._too_few(masses):
                if self._got and self._may_be_short and not self._too_few(masses):
                    return
                self._wait(masses, deadline)
                continue
            if not self._may_be_short:
                self._ask_credit(self._size, deadline)
            missing -= self._round(missing, masses, deadline)
            distinct = self._table.table.distinct
            if missing and self._got and self._may_be_short and (self._line or distinct or not self._weight()):
                return
            if missing and distinct:  # what came may come again
                self._give_back()
                missing = self._size

    def _known(self, deadline: float) -> dict[int, Mass]:
        """The masses of the parts that live, asked for where none was seen or all were empty."""
        table, living = self._table, self._several.holding(self._table)
        masses = {shard: mass for shard in living if (mass := table.masses.get(shard)) is not None}
        if len(masses) < len(living) or not any(mass.mass > 0 for mass in masses.values()) or self._too_few(masses):
            self._round(0, dict.fromkeys(living, Mass(0.0, 0, 1.0)), deadline)
            masses = {shard: mass for shard in living if (mass := table.masses.get(shard)) is not None}
        return masses

    def _weight(self) -> float:
        return sum(mass.mass for mass in self._table.masses.values())

    def _too_few(self, masses: dict[int, Mass]) -> bool:
        """Whether a batch without repetitions has to wait for more items."""
        table = self._table.table
        if not table.distinct or self._may_be_short:
            return False
        return sum(mass.items for mass in masses.values()) < self._size

    def _round(self, size: int, masses: dict[int, Mass], deadline: float) -> int:
        """Ask every part for its share of `size` items; how many came."""
        table, several = self._table, self._several
        weight = sum(mass.mass for mass in masses.values())
        counts = table.divide(size, masses) if size else dict.fromkeys(masses, 0)
        bodies: dict[int, m.Message] = {}
        for shard, count in counts.items():
            shape = several.session(shard).ahead(self._ahead, count)
            index = table.opened[shard].layout.index
            bodies[shard] = m.Draw(index, count, self._parties, self._ttl, shape, *self._reach)
        came, smallest = 0, 1.0
        failed: GearError | None = None
        for shard, call in several.post_each(bodies).items():
            try:
                items, mass = self._take(shard, call, deadline)
            except ConnectionLost:
                table.masses.pop(shard, None)
                continue
            except GearError as error:  # the others still have to be heard
                failed = error
                continue
            table.masses[shard] = mass
            share = masses[shard].mass / weight if weight > 0 else 0.0
            if share > 0 and mass.mass > 0:
                smallest = min(smallest, share * mass.smallest)
            if len(items):
                self._got.append(_Got(shard, items, share))
                came += len(items)
        if failed is not None:
            raise failed
        if size:
            self._smallest = smallest
        return came

    def _take(self, shard: int, call: Call, deadline: float) -> tuple[Selection, Mass]:
        session, opened = self._several.session(shard), self._table.opened[shard]
        index = opened.layout.index
        session.answer_soon(call, "sample", deadline, lambda late: session.unwanted(index, late))
        answer: m.Selected = expect(call, m.Selected)
        return session.selected(opened, call), Mass(answer.mass, answer.items, answer.smallest)

    def _wait(self, masses: dict[int, Mass], deadline: float) -> None:
        """Sleep until any part has something to draw, or more than it had."""
        table, living = self._table, self._several.holding(self._table)
        with table.lock:
            for shard, session in living.items():
                above = masses[shard].items if shard in masses and self._too_few(masses) else 0
                watch = table.watches.get(shard)
                if watch is None or watch.over or watch.above > above:
                    table.watches[shard] = self._watch(session, shard, above)
            watches = {shard: table.watches[shard] for shard in living}
        if not first_of(watches, deadline):
            raise DeadlineExceeded(f"sample of {self._size} timed out: {self._obstacle(masses)}")
        with table.lock:
            for shard, watch in watches.items():
                if watch.over and table.watches.get(shard) is watch:
                    del table.watches[shard]
        table.masses.clear()

    def _watch(self, session: RemoteSession, shard: int, above: int) -> Watch:
        watch = Watch(session, above)
        with contextlib.suppress(ConnectionLost):
            watch.call = session.post(m.Await(self._table.opened[shard].layout.index, above))
            watch.call.on_answer = watch.answered
        return watch

    def _obstacle(self, masses: dict[int, Mass]) -> str:
        name, shards = self._table.table.name, len(self._several.holding(self._table))
        if self._too_few(masses):
            there = sum(mass.items for mass in masses.values())
            return (
                f"table {name!r}: {there} items can be drawn on its {shards} shards and a batch of {self._size} "
                "distinct ones needs as many; insert more, ask for fewer, or declare distinct=False"
            )
        return f"table {name!r} holds no item that can be drawn on any of its {shards} shards; insert more"

    # Credit

    def _ask_credit(self, amount: int, deadline: float) -> None:
        """Ask the home of the limiter for the credit of the batch, unless there is some already."""
        home = self._table.home
        if home is None or self._asked is not None or self._credit is not None:
            return
        left = left_of(deadline)
        if home not in self._several.living:
            raise ConnectionLost(
                f"shard {home}, the home of the limiter of table {self._table.table.name!r}, is gone: nothing can be "
                "sampled from it; start the server again"
            )
        index = self._table.opened[home].layout.index
        self._asked = self._several.session(home).post(m.Credit(index, amount, self._parties, self._ttl, left))

    def _has_credit(self, deadline: float) -> bool:
        """Whether there is credit for what was drawn; if it does not come at once it is waited for."""
        drawn = sum(len(got.items) for got in self._got)
        if self._credit is not None and self._amount != drawn:
            self._return_credit()
        if self._credit is not None:
            return True
        self._ask_credit(drawn, deadline)
        home = self._table.home
        assert home is not None
        assert self._asked is not None
        session, call = self._several.session(home), self._asked
        if session.await_answer(call, min(deadline, time.monotonic() + PROMPT)):
            self._take_credit(drawn, deadline)
            return True
        self._give_back()
        self._take_credit(drawn, deadline)
        return False

    def _take_credit(self, amount: int, deadline: float) -> None:
        home = self._table.home
        assert home is not None
        assert self._asked is not None
        session, opened, call = self._several.session(home), self._table.opened[home], self._asked
        self._asked = None
        session.answer(call, "sample", deadline, lambda late: session.unwanted(opened.layout.index, late))
        self._credit = session.selected(opened, call)
        self._amount = amount

    # The end

    def _whole(self) -> Selection:
        """All parts as one selection, one behind the other."""
        got = self._got
        pins = [Part(one.shard, len(one.items), one.items.pin, len(one.items.neighbours)) for one in got]
        deadlines = [one.items.deadline for one in got]
        if self._credit is not None and self._table.home is not None:
            pins.append(Part(self._table.home, 0, self._credit.pin))
            deadlines.append(self._credit.deadline)
        return Selection(
            self._table.table.name,
            np.concatenate([one.items.ids for one in got]),
            np.concatenate([one.items.probabilities * one.share for one in got]),
            np.concatenate([one.items.starts for one in got]),
            np.concatenate([one.items.lengths for one in got]),
            self._smallest,
            0,
            self._parties,
            min(deadlines),
            tuple(pins),
            np.concatenate([one.items.neighbours for one in got]),
        )

    def _give_back(self) -> None:
        """Let go of the items drawn so far."""
        for one in self._got:
            self._release(one.shard, one.items)
        self._got = []

    def _return_credit(self) -> None:
        """Let go of the credit, also of what is still to come."""
        home = self._table.home
        if home is None:
            return
        if self._credit is not None:
            self._release(home, self._credit)
            self._credit = None
        if self._asked is not None:
            with contextlib.suppress(GearError):
                self._several.session(home).abandon(self._table.opened[home], self._asked)
            self._asked = None

    def _release(self, shard: int, items: Selection) -> None:
        with contextlib.suppress(GearError):
            self._several.session(shard).release(self._table.opened[shard], items, False)

"""Draws for data-parallel ranks: the first rank that asks for draw k has it made, the others fetch their parts of it.

A part waits for its rank, pinned, until the deadline of the draw; who lets go of it undelivered, or dies, leaves it to
the rank's next client until then. Each rank sees each draw once, in order: as a part, or as an error. Nothing of it
outlives the shard. Not thread-safe: the owner serialises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.batch import NO_NEIGHBOURS
from gear.errors import DataError, DeadlineExceeded, GearError, PartExpired, PinLost
from gear.storage import obstacles
from gear.storage.claims import NOBODY
from gear.storage.ranks_asks import Ask, Wanted
from gear.storage.ranks_draw import Divided
from gear.storage.ranks_parts import Draw, Part, Together
from gear.storage.selects import Select

if TYPE_CHECKING:
    from gear.storage.queue import RequestQueue

AHEAD = 16
"""Draws of which some rank has not asked for its part, at most: then the others wait for it."""

MOST_TOLD = 64
"""Past draws kept for ranks that are to be told that their part is lost."""


class Ranks:
    """The ranks of one table.

    Parameters
    ----------
    queue : where draws wait for items and credit, as any other.
    """

    def __init__(self, queue: RequestQueue) -> None:
        self._queue, self._stored = queue, queue.stored
        self._all: dict[int, Together] = {}
        self.parked = 0
        """How many wait."""

    @property
    def waiting(self) -> int:
        """How many wait, but for the draws that are parked for them."""
        return self.parked - sum(ranks.making is not None for ranks in self._all.values()) if self.parked else 0

    def ask(self, ask: Ask) -> None:
        """Hand out a part, when it is there."""
        try:
            ranks = self._ranks_of(ask)
            served = self._serve(ranks, ask)
        except DataError as error:
            ask.done(error)
            return
        if not served:
            ranks.asks.append(ask)
            self.parked += 1
            self._queue.watch(ask)
            self._begin(ranks)
            self._queue.advance()
        elif ranks.blocked:
            self.serve(True)

    def _ranks_of(self, ask: Ask) -> Together:
        """The ranks that the asker is one of."""
        ranks, count = self._all.get(ask.consumer), ask.share.ranks
        if ranks is None:
            ranks = self._all[ask.consumer] = Together(count, ask.consumer)
        if ranks.count == count:
            return ranks
        waiting = sorted({other.share.rank for other in ranks.asks})
        parts = sum(not (part.over or part.lost) for draw in ranks.draws.values() for part in draw.parts)
        if waiting or parts:
            why = f"rank {waiting[0]} of them waits" if waiting else f"{parts} parts of its draws are not delivered"
            raise DataError(
                f"rank {ask.share.rank} of world_size={count} asks table {self._stored.table.name!r}, which draws for "
                f"world_size={ranks.count} ({why}); ask with the same world_size on every rank, or when those are over"
            )
        ranks.count = count
        ranks.draws.clear()
        return ranks

    # Parts

    def _serve(self, ranks: Together, ask: Ask) -> bool:
        """Give the asker its part or the error; False: there is none yet."""
        rank, number = ask.share.rank, ask.share.draw
        if number >= ranks.number:
            if ranks.making is None:
                ranks.number = number  # those between are not made: every rank goes on from here
            return self._agree(ranks, ask)
        draws = list(ranks.draws.values())
        if number >= 0:
            draws = [draw for draw in draws if draw.number == number]
            if not draws or draws[0].parts[rank].over:
                self._lost(ranks, ask, str(number), "was delivered, or has ended")
                return True
        lost = []
        for draw in draws:
            part = draw.parts[rank]
            if part.over:
                continue
            if part.away(ask.client):
                return False
            if part.lost:
                lost.append(draw)
            elif part.waits and not lost:
                return self._hand(ranks, ask, draw, part)
        if lost:
            self._tell(ranks, ask, lost)
            return True
        return number < 0 and self._agree(ranks, ask)

    def _agree(self, ranks: Together, ask: Ask) -> bool:
        """Refuse who wants something else than those who wait for the same draw."""
        for other in ranks.asks:
            if other.share.rank != ask.share.rank and other.wanted != ask.wanted and self._for_next(ranks, other):
                raise _differs(ask, ranks.number, other.share.rank, other.wanted)
        return False

    def _hand(self, ranks: Together, ask: Ask, draw: Draw, part: Part) -> bool:
        pin, selection = part.pin, part.selection
        assert pin is not None
        assert selection is not None
        if ask.wanted != draw.wanted:
            raise _differs(ask, draw.number, draw.by, draw.wanted)
        if pin.claim and self._stored.claims is not None:
            claim = self._stored.claims.move(pin.claim, pin.ids, ask.client)
            if not claim:  # who had it fell silent
                self._stored.pins.end(selection.pin)
                part.told = True
                self._lost(ranks, ask, str(draw.number), "has ended: its items wait to be served again")
                return True
            pin.claim = claim
        near = NO_NEIGHBOURS
        if ask.reach != (0, 0):
            near = self._stored.neighbours(selection.starts, selection.lengths, ask.reach, 1)
        try:
            self._stored.pins.hand(ask.client, selection.pin, ask.parties, near)
        except PinLost:  # its deadline has passed just now
            self._stored.pins.end(selection.pin)
            return False
        part.holder = ask.client
        ask.done(dataclasses.replace(selection, parties=ask.parties, neighbours=near))
        return True

    def _tell(self, ranks: Together, ask: Ask, lost: list[Draw]) -> None:
        """Tell a rank once what it has missed."""
        for draw in lost:
            draw.parts[ask.share.rank].told = True
        error = lost[0].parts[ask.share.rank].error
        if error is not None and len(lost) == 1:
            ask.done(error)
            return
        first, last = lost[0].number, lost[-1].number
        which = str(first) if len(lost) == 1 else f"{first} to {last} ({len(lost)} parts)"
        self._lost(ranks, ask, which, "expired: nobody had it in time, or the table took its rows back")

    def _lost(self, ranks: Together, ask: Ask, which: str, why: str) -> None:
        rank, count = ask.share.rank, ask.share.ranks
        waiting = next((draw.number for draw in ranks.draws.values() if draw.parts[rank].waits), ranks.number)
        ask.done(
            PartExpired(
                f"table {self._stored.table.name!r}: the part of rank {rank} of {count} of draw {which} {why}; its "
                f"next one is of draw {waiting}"
            )
        )

    # Draws

    def serve(self, forced: bool = False) -> bool:
        """Hand out parts that have come back, and begin draws that are asked for; whether anything moved."""
        pins, moved = self._stored.pins, False
        while self.parked and (forced or pins.stirred):
            forced = pins.stirred = False
            for ranks in self._all.values():
                moved |= self._serve_asks(ranks)
                self._begin(ranks)
        return moved

    def _serve_asks(self, ranks: Together) -> bool:
        served = 0
        for ask in list(ranks.asks):
            try:
                there = self._serve(ranks, ask)
            except DataError as error:
                ask.done(error)
                there = True
            if there:
                ranks.asks.remove(ask)
                ask.over = True
                self.parked -= 1
                served += 1
        self._unmake(ranks)
        self._sweep(ranks)
        return served > 0

    def _begin(self, ranks: Together) -> None:
        """Have the next draw made if somebody waits for it."""
        first = next((ask for ask in ranks.asks if self._for_next(ranks, ask)), None)
        if ranks.making is not None or first is None:
            return
        ranks.blocked = self._ahead(ranks) >= AHEAD
        if ranks.blocked:
            return
        size, which, budget = first.wanted

        def made(result: Divided | GearError) -> None:
            self._made(ranks, first, result)

        ranks.making = Select(
            NOBODY, size, 1, first.ttl, float("inf"), made, which, budget=budget, consumer=ranks.consumer,
            ranks=ranks.count,
        )  # fmt: skip
        self._queue.draw(ranks.making)

    @staticmethod
    def _for_next(ranks: Together, ask: Ask) -> bool:
        """Whether it waits for a draw that is not made yet; else until another client lets go of its part."""
        if ask.share.draw >= 0:
            return ask.share.draw >= ranks.number
        return not any(draw.parts[ask.share.rank].away(ask.client) for draw in ranks.draws.values())

    def _made(self, ranks: Together, by: Ask, result: Divided | GearError) -> None:
        """The next draw is there; an error is every rank's."""
        ranks.making = None
        if isinstance(result, GearError):
            parts = [Part(error=result) for _ in range(ranks.count)]
        else:
            parts = self._divide(ranks, by, result)
        ranks.draws[ranks.number] = Draw(ranks.number, by.wanted, by.share.rank, parts)
        ranks.number += 1
        self._serve_asks(ranks)
        self._stored.pins.stirred |= bool(ranks.asks)  # they wait for the one after it

    def _divide(self, ranks: Together, by: Ask, drawn: Divided) -> list[Part]:
        """A pin of its own for each rank's part."""
        stored, whole = self._stored, drawn.whole
        selections = []
        order = np.argsort(drawn.owners, kind="stable")  # once for all: 4096 ranks may share a million items
        bounds = np.searchsorted(drawn.owners[order], np.arange(ranks.count + 1))
        for rank in range(ranks.count):
            mine = order[bounds[rank] : bounds[rank + 1]]
            starts, lengths = whole.starts[mine], whole.lengths[mine]
            selections.append(
                dataclasses.replace(
                    whole, ids=whole.ids[mine], probabilities=whole.probabilities[mine], starts=starts,
                    lengths=lengths, draw=ranks.number,
                    versions=None if whole.versions is None else whole.versions[mine],
                )
            )  # fmt: skip
        pins = stored.pins.split(whole.pin, [one.ids for one in selections], by.client)
        parts = []
        for selection, (number, pin) in zip(selections, pins, strict=True):
            selection.pin = number
            if pin.claim and stored.claims is not None:
                pin.claim = stored.claims.move(pin.claim, pin.ids, NOBODY)
            parts.append(Part(selection, pin))
        return parts

    def _ahead(self, ranks: Together) -> int:
        """Draws of which some rank has not asked for its part."""
        return sum(any(part.holder < 0 and part.waits for part in draw.parts) for draw in ranks.draws.values())

    def _sweep(self, ranks: Together) -> None:
        """Forget draws that are over for every rank, and old ones that are lost."""
        old = ranks.number - MOST_TOLD
        for draw in list(ranks.draws.values()):
            if all(part.over or (part.lost and draw.number < old) for part in draw.parts):
                del ranks.draws[draw.number]
            else:
                draw.settle()

    # Who gives up

    def expire(self, now: float) -> bool:
        """End what waited for too long (`time.monotonic()`)."""
        late = self._take(lambda ask: ask.deadline <= now)
        for ranks, ask in late:
            if self._ahead(ranks) >= AHEAD:
                slow = next(n for draw in ranks.draws.values() for n, part in enumerate(draw.parts) if part.waits)
                why = f"rank {slow} has not asked for its parts of {AHEAD} draws"
            elif not self._for_next(ranks, ask):
                why = "another client of the rank has its part and has not let go of it"
            else:
                size = ask.wanted.size if ask.wanted.budget is None else 1
                why = obstacles.of_sample(self._stored, size * ranks.count, ask.wanted.which, ask.consumer)
            ask.done(
                DeadlineExceeded(
                    f"sample of {ask.wanted.size} for rank {ask.share.rank} of {ranks.count} timed out: {why}"
                )
            )
        return bool(late)

    def cancel(self, done: Callable[[Any], None]) -> None:
        """Nobody waits for this any more."""
        self._take(lambda ask: ask.done == done)

    def forget(self, client: int) -> None:
        """The client is gone."""
        self._take(lambda ask: ask.client == client)

    def _take(self, which: Callable[[Ask], bool]) -> list[tuple[Together, Ask]]:
        """Take asks out; a draw that nobody waits for any more is not made."""
        taken = []
        for ranks in self._all.values():
            mine = [ask for ask in ranks.asks if which(ask)]
            if not mine:
                continue
            for ask in mine:
                ask.over = True
                taken.append((ranks, ask))
            ranks.asks = [ask for ask in ranks.asks if ask not in mine]
            self.parked -= len(mine)
            self._unmake(ranks)
        return taken

    def _unmake(self, ranks: Together) -> None:
        """Take back the request for a draw that nobody waits for any more: all would be told that they missed it."""
        making = ranks.making
        if making is not None and not any(self._for_next(ranks, ask) for ask in ranks.asks):
            ranks.making = None
            self._queue.undraw(making)


def _differs(ask: Ask, number: int, by: int, wanted: Wanted) -> DataError:
    return DataError(
        f"draw {number}: rank {ask.share.rank} asks for {ask.wanted}, rank {by} for {wanted}; ask for the same on "
        "every rank"
    )

"""Selects that wait: in order for each set of items and each consumer, so that nobody is held up by who waits for more.

Not thread-safe: the owner serialises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gear.errors import DataError, GearError
from gear.schema import Prioritized
from gear.storage import fields as f
from gear.storage.ranks_draw import try_parts

if TYPE_CHECKING:
    from gear.batch import Selection
    from gear.storage.budget import Budget
    from gear.storage.table import StoredTable


@dataclass(eq=False, slots=True)
class Select:
    """A draw of `size` items from set number `which`; `credit` of the limiter is gathered while it waits."""

    client: int
    size: int
    parties: int
    ttl: float
    deadline: float
    done: Callable[[Any], None]
    which: int = 0
    reach: tuple[int, int] = (0, 0)
    budget: Budget | None = None
    consumer: int = -1
    """Who claims what is drawn, -1 where the table has no consumers."""
    credit: int = 0
    ranks: int = 0
    """Batches of that size for so many ranks are drawn at once; 0: one, for its client."""
    over: bool = False

    @property
    def line(self) -> int:
        """Which line it stands in: its set's, or its consumer's."""
        return self.which if self.consumer < 0 else -1 - self.consumer


class Selects:
    """The waiting selects of one table."""

    def __init__(self, stored: StoredTable) -> None:
        self._stored = stored
        self._lines: dict[int, deque[Select]] = {}
        self.count = 0
        table, layout = stored.table, stored.layout
        self._counters = [layout.view(stored.segment, one.region("counters")) for one in layout.sets]
        self._distinct, self._ratio = table.distinct, bool(stored.params[f.P_RATIO])
        self._counted = table.distinct or not isinstance(table.sampler, Prioritized)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Select]:
        return (request for line in self._lines.values() for request in line)

    def add(self, request: Select, hurry: bool) -> bool:
        """Serve a request at once, which is said, or let it wait behind the others of its set."""
        line = self._lines.get(request.line)
        if line is None:
            if not self._away(request) and not self._hopeless(request) and self._try(request, hurry):
                return True
            line = self._lines[request.line] = deque()
        line.append(request)
        self.count += 1
        if self._away(line[0]):  # it is passed over, perhaps by this one
            return self.serve(hurry) and request not in line
        return False

    def _away(self, request: Select) -> bool:
        """Whether its client is silent: what it claimed now would wait again at once."""
        return request.consumer >= 0 and self._stored.silent(request.client)

    def serve(self, hurry: bool) -> bool:
        """Serve the first of each set, and those behind it; whether anything moved, gathered credit included."""
        moved = False
        for key, line in [*self._lines.items()] if self.count else ():
            while (request := self._first(line)) is not None and not self._hopeless(request):
                before = request.credit
                if not self._try(request, hurry):
                    moved |= request.credit != before
                    break
                line.remove(request)
                self.count -= 1
                request.over = True
                moved = True
            if not line:
                del self._lines[key]
        return moved

    def _first(self, line: deque[Select]) -> Select | None:
        """The first whose client is there."""
        if not line or not self._away(line[0]):
            return line[0] if line else None
        return next((request for request in line if not self._away(request)), None)

    def _hopeless(self, request: Select) -> bool:
        """Whether the set has too few items, and there is no credit to gather or to give back: told by two counts.

        Who waits for what takes long is asked after every insert: that must cost next to nothing.
        """
        if request.consumer >= 0:
            return self._stored.claims is not None and not self._stored.claims.units(request.consumer)
        if not self._counted:
            return False
        live = self._counters[request.which][f.LIVE_ITEMS]
        if live >= (request.size * max(1, request.ranks) if self._distinct and request.budget is None else 1):
            return False
        return not self._ratio or (request.credit == 0 and bool(live < self._counters[0][f.LIVE_ITEMS]))

    def _try(self, request: Select, hurry: bool) -> bool:
        if request.ranks:
            return try_parts(self._stored, request, hurry)
        held = (request.client, request.size, request.parties, request.ttl)
        if request.consumer >= 0:
            return self._claim(request, hurry)
        if request.budget is not None:
            return self._fill(request, self._stored.select_steps, held, request.budget)
        result = self._stored.select(*held, request.credit, hurry, request.which, request.reach)
        if isinstance(result, int):
            request.credit = result
            return False
        request.done(result)
        return True

    def _claim(self, request: Select, hurry: bool) -> bool:
        result: Selection | GearError | None
        held = (request.client, request.consumer, request.size, request.parties, request.ttl)
        try:
            result = self._stored.claim(*held, hurry, request.reach, request.budget)
        except GearError as error:
            result = error
        if result is not None:
            request.done(result)
        return result is not None

    @staticmethod
    def _fill(request: Select, select_steps: Callable[..., Any], held: tuple[Any, ...], budget: Budget) -> bool:
        """Serve a request with a budget of steps; it gathers no credit while it waits."""
        try:
            result = select_steps(*held, request.which, request.reach, budget)
        except DataError as error:
            result = error
        if result is not None:
            request.done(result)
        return result is not None

    def let_go(self) -> None:
        """Return the credit that was gathered; `serve` gathers it anew."""
        for request in self:
            self._stored.unreserve(request.credit)
            request.credit = 0

    def take(self, which: Callable[[Select], bool]) -> list[Select]:
        """Take those out of which that is true, their credit returned."""
        taken = [request for request in self if which(request)]
        if taken:
            kept = {n: deque(r for r in line if not which(r)) for n, line in self._lines.items()}
            self._lines = {n: line for n, line in kept.items() if line}
            self.count -= len(taken)
            for request in taken:
                request.over = True
                self._stored.unreserve(request.credit)
        return taken

"""Selects that must wait: parked in lines, each served in order and held up by no other.

Those that wait for different things stand in different lines: one for each consumer, one for everybody else. Only the
first of a line is ever tried, so that what waits costs nothing. `done` is called exactly once for each, with its
Selection or a GearError. Not thread-safe: the owner serialises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gear.errors import DeadlineExceeded, GearError
from gear.storage import fields as f
from gear.storage import obstacles
from gear.storage.deadlines import Deadlines

if TYPE_CHECKING:
    from gear.batch import Selection
    from gear.storage.table import StoredTable

Done = Callable[[Any], None]


@dataclass(eq=False, slots=True)
class Select:
    """A draw of `size` items for one client; `consumer` is -1 where the table has none."""

    client: int
    size: int
    parties: int
    ttl: float
    deadline: float
    done: Done
    consumer: int = -1
    credit: int = 0
    over: bool = False


class Readers:
    """The parked selects of one table."""

    def __init__(self, stored: StoredTable) -> None:
        self._stored, self._least = stored, 0 if stored.layout.spread else int(stored.params[f.P_MIN_SIZE])
        self._lines: dict[int, deque[Select]] = {}
        self._deadlines: Deadlines[Select] = Deadlines(lambda request: request.over)

    def __iter__(self) -> Iterator[Select]:
        return (request for line in self._lines.values() for request in line)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def select(self, request: Select, hurry: bool) -> bool:
        """Serve a request at once, or park it; whether it was served."""
        if request.consumer not in self._lines and not self._away(request) and self._try(request, hurry):
            return True
        line = self._lines.setdefault(request.consumer, deque())
        line.append(request)
        self._deadlines.add(request.deadline, request)
        if self._away(line[0]):  # it is passed over, perhaps by this one
            self.serve(hurry)
        return request.over

    def _away(self, request: Select) -> bool:
        """Whether its client is silent: what it claimed now would wait again at once."""
        return request.consumer >= 0 and self._stored.silent(request.client)

    def _try(self, request: Select, hurry: bool) -> bool:
        # A queue may be full before it holds a batch: then a short one makes room for who waits with more.
        stored = self._stored
        result: Selection | int | None
        if request.consumer < 0:
            if stored.counters[f.ITEM_COUNT] < self._least:  # what an insert beside a waiting reader costs most often
                return False
            result = stored.select(request.client, request.size, request.parties, request.ttl, request.credit, hurry)
            if isinstance(result, int):
                request.credit = result
                return False
        else:
            try:
                result = stored.claim(
                    request.client, request.consumer, request.size, request.parties, request.ttl, hurry
                )
            except GearError as error:
                request.over = True
                request.done(error)
                return True
            if result is None:
                return False
        request.over = True
        request.done(result)
        return True

    def serve(self, hurry: bool) -> bool:
        """Serve who can be served now; whether anything moved."""
        moved = False
        for key, line in list(self._lines.items()):
            while line:
                request = line[0]
                if self._away(request):
                    here = next((r for r in line if not self._away(r)), None)
                    if here is None:
                        break
                    request = here
                before = request.credit
                if not self._try(request, hurry):
                    moved |= request.credit != before
                    break
                line.remove(request)
                moved = True
            if not line and self._lines.get(key) is line:
                del self._lines[key]
        return moved

    def drop(self, unwanted: Callable[[Select], bool]) -> None:
        """Drop requests that nobody waits for any more; what they had reserved returns."""
        for key, line in list(self._lines.items()):
            leaving = [request for request in line if unwanted(request)]
            for request in leaving:
                request.over = True
                self._stored.unreserve(request.credit)
            if leaving:
                line = self._lines[key] = deque(request for request in line if not request.over)
            if not line:
                del self._lines[key]

    def expire(self, now: float) -> bool:
        """End requests whose deadline passed, saying what they waited for; whether there were any."""
        late = self._deadlines.due(now)
        if late:
            chosen = set(map(id, late))
            self.drop(lambda request: id(request) in chosen)
        for request in late:
            obstacle = obstacles.of_sample(self._stored, request.size, request.consumer)
            request.done(DeadlineExceeded(f"sample of {request.size} timed out: {obstacle}"))
        return bool(late)

    @property
    def next_deadline(self) -> float | None:
        """Earliest deadline, by `time.monotonic()`."""
        return self._deadlines.next

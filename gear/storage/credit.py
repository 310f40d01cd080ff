"""Requests that wait for a table as a whole, where it lies on several shards: limiter credit, and first items.

Credit for a batch is gathered by its home in the order of requests, each whole before the next, and held in a pin
without items: it is spent, returned, and outlives nobody, exactly as the credit of items is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gear.errors import DeadlineExceeded, ProtocolError
from gear.storage import fields as f
from gear.storage import obstacles

if TYPE_CHECKING:
    from gear.storage.ledger import Ledger
    from gear.storage.table import StoredTable

Done = Callable[[Any], None]


@dataclass(eq=False, slots=True)
class CreditRequest:
    """Credit for a batch that is being gathered: `given` of `amount`."""

    client: int
    amount: int
    parties: int
    ttl: float
    deadline: float
    done: Done
    given: int = 0
    over: bool = False


class Credits:
    """What waits for the credit of one table, at its home, and for the first items of a part, anywhere.

    Attributes
    ----------
    ledger : of the home of a limiter that counts several shards; None elsewhere.
    """

    def __init__(self, stored: StoredTable) -> None:
        self._stored = stored
        self.ledger: Ledger | None = None
        self._requests: deque[CreditRequest] = deque()
        self._awaiting: list[tuple[int, int, Done]] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def any(self) -> bool:
        """Whether anything waits, for credit or for items."""
        return bool(self._requests or self._awaiting)

    def request(self, client: int, amount: int, parties: int, ttl: float, deadline: float, done: Done) -> CreditRequest:
        """Gather credit for `amount` samples; `done` gets (pin, deadline of the pin) or an error.

        Raises
        ------
        ProtocolError
            If this is not the home of a limiter.
        """
        if self.ledger is None:
            raise ProtocolError(f"table {self._stored.table.name!r} has no limiter to ask for credit on this shard")
        request = CreditRequest(client, amount, parties, ttl, deadline, done)
        self._requests.append(request)
        return request

    def await_items(self, client: int, above: int, done: Done) -> None:
        """Call `done` when anything can be drawn, and more than `above` items."""
        self._awaiting.append((client, above, done))

    def serve(self) -> bool:
        """Serve what can be served now; whether anything moved."""
        moved = False
        if self._awaiting and self._stored.drawable():
            items = int(self._stored.counters[f.LIVE_ITEMS])
            over = [request for request in self._awaiting if not request[1] or request[1] < items]
            self._awaiting = [request for request in self._awaiting if request[1] and request[1] >= items]
            for _, _, done in over:
                done(None)
        while self._requests and self.ledger is not None:
            request = self._requests[0]
            given = self.ledger.promise(request.amount - request.given)
            request.given += given
            moved |= given > 0
            if request.given < request.amount:
                break
            self._requests.popleft()
            request.over = True
            pins = self._stored.pins
            request.done(pins.add_credit(request.amount, request.client, request.parties, request.ttl))
        return moved

    def reset(self) -> None:
        """The table was emptied and counts anew: nothing is promised but what waiting requests have gathered."""
        self._stored.counters[f.CREDITED] = sum(request.given for request in self._requests)

    def forget(self, client: int) -> None:
        """Drop what a client that is gone asked for."""
        self._drop([r for r in self._requests if r.client == client])
        self._awaiting = [request for request in self._awaiting if request[0] != client]

    def expire(self, now: float) -> bool:
        """End requests whose deadline passed; whether there were any."""
        late = [r for r in self._requests if r.deadline <= now]
        self._drop(late)
        for request in late:
            assert self.ledger is not None
            reason = obstacles.of_credit(self._stored, self.ledger)
            request.done(DeadlineExceeded(f"sample of {request.amount} timed out: {reason}"))
        return bool(late)

    def _drop(self, requests: list[CreditRequest]) -> None:
        for request in requests:
            self._requests.remove(request)
            request.over = True
            if self.ledger is not None:
                self.ledger.take_back(request.given)

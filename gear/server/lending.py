"""Limiter credit between the shards of a server: a home lends inserts to the others, which say what they did with them.

For each table whose limiter counts several shards there is one conversation from every other holder to its home, the
same that clients have. A shard reports its `Account` when it has changed, one report at a time; the home answers with
what it lends, and lends more later, unasked, as there is more. A report numbers itself: what the home lends in answer
to an older one counts no more at either end, so that both always agree. Nothing here waits.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gear.errors import ProtocolError
from gear.parts import holders, is_limited, is_spread
from gear.schema import MinSize
from gear.server.runtime import SOCKET, shard_directory
from gear.storage import fields as f
from gear.storage.ledger import Account, Ledger
from gear.transport import messages as m
from gear.transport.conversation import Conversation
from gear.transport.door import DOOR, holds

if TYPE_CHECKING:
    from gear.server.bulk import Send
    from gear.server.clients import Client
    from gear.server.tables import Hosted, Place, Tables
    from gear.transport.conversation import Call

_LOOK_SECONDS = 0.05
"""How often a shard that fell silent is looked at until it is known to be dead or is back."""


_AGAIN_SECONDS = 0.5
"""After which a report that was refused is made again."""


@dataclass(eq=False)
class _Borrower:
    """A shard as the home of a table knows it."""

    shard: int
    client: Client
    serial: int
    called_back: bool = False


@dataclass(eq=False)
class _Home:
    """A table whose limiter this shard keeps."""

    ledger: Ledger
    borrowers: dict[int, _Borrower] = field(default_factory=dict)


@dataclass(eq=False)
class _Debt:
    """A table whose limiter another shard keeps."""

    home: int
    serial: int = 0
    answered: bool = True
    reported: tuple[int, int, int, int] | None = None
    reconnects: int = 0
    again: float = 0.0
    floor: int = 0


class Lending:
    """The credit of all tables of a shard that lie on others too.

    Parameters
    ----------
    place : Place
    tables : Tables
    send : see `bulk.Send`
    token : str
        Of the server.
    heartbeat : float
        Seconds after which a silent shard counts as gone.
    """

    def __init__(self, place: Place, tables: Tables, send: Send, token: str, heartbeat: float) -> None:
        self._place, self._tables, self._send = place, tables, send
        self._token, self._heartbeat = token, heartbeat
        self._homes: dict[int, _Home] = {}
        self._debts: dict[int, _Debt] = {}
        self._talks: dict[int, Conversation] = {}
        self._silent: set[Client] = set()
        self._look_at = 0.0

    # Both

    def adopt(self, hosted: Hosted) -> None:
        """A table was created: keep its limiter, or borrow from the shard that does."""
        if not is_spread(hosted.declared, hosted.parts) or not is_limited(hosted.declared):
            return
        if hosted.part == 0:
            ledger = Ledger(hosted.declared, hosted.stored.counters, self._place.shard)
            if hosted.stored.found is not None:  # nothing is lent or promised before all have said what they did
                ledger.unheard = set(holders(hosted.declared, self._place.shards)) - {self._place.shard}
            self._homes[hosted.index] = _Home(ledger)
            hosted.queue.credits.ledger = ledger
        else:
            home = holders(hosted.declared, self._place.shards)[0]
            self._debts[hosted.index] = _Debt(home)
            hosted.queue.elsewhere = lambda: self._obstacle(hosted, home)

    def forget(self, hosted: Hosted) -> None:
        """A table is no more."""
        self._homes.pop(hosted.index, None)
        self._debts.pop(hosted.index, None)

    @property
    def active(self) -> bool:
        """Whether there is anything to lend or to borrow."""
        return bool(self._homes or self._debts)

    def tick(self, now: float) -> None:
        """Lend, report and look after shards that fell silent, as far as there is anything to do."""
        if not self.active:
            return
        if self._silent and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._look()
        for talk in self._talks.values():
            with talk.lock:
                talk.look()
        for index, debt in self._debts.items():
            self._report(self._tables[index], debt)
        for index, home in self._homes.items():
            for shard in [s for s in home.ledger.unheard if not (self._lives(s) or self._returns(s))]:
                home.ledger.unheard.discard(shard)  # it does not come back
            self._lend(self._tables[index], home)

    def next_due(self, now: float) -> float | None:
        """`time.monotonic()` at which `tick` has something to do by itself."""
        due = [self._look_at] if self._silent else []
        due += [debt.again for debt in self._debts.values() if debt.again > now]
        due += [now + talk.link.patience(now) for talk in self._talks.values() if not talk.lost]
        return min(due, default=None)

    def descriptors(self) -> set[tuple[int, int, int]]:
        """What becomes readable when another shard has answered: (shard, number of the connection, descriptor)."""
        return {
            (shard, talk.link.attempts, descriptor)
            for shard, talk in self._talks.items()
            if not talk.lost
            for descriptor in talk.link.descriptors()
        }

    def close(self) -> None:
        """Leave the other shards."""
        for talk in self._talks.values():
            with talk.lock:
                talk.close()

    # The home

    def account(self, client: Client, body: m.Account) -> m.Lend:
        """Take in what a shard reports; what it is lent at once.

        Raises
        ------
        ProtocolError
            If this shard does not keep that limiter, or the other one does not hold the table.
        """
        hosted = self._tables.named(body.table)
        home = self._homes.get(hosted.index) if hosted is not None else None
        if (
            hosted is None
            or home is None
            or body.shard == self._place.shard
            or body.shard not in holders(hosted.declared, self._place.shards)
        ):
            raise ProtocolError(f"Account: shard {body.shard} has nothing to report about table {body.table!r} here")
        home.borrowers[body.shard] = _Borrower(body.shard, client, body.serial)
        home.ledger.accounts[body.shard] = Account(body.inserted, body.deleted, body.credit, body.want)
        home.ledger.unheard.discard(body.shard)
        hosted.queue.advance()  # samples and local inserts that waited for this
        if isinstance(hosted.declared.limiter, MinSize):
            return m.Lend(body.table, body.serial, 0, False, max(0, home.ledger.relax(body.shard)))
        return m.Lend(body.table, body.serial, home.ledger.lend_to(body.shard))

    def _lend(self, hosted: Hosted, home: _Home) -> None:
        ledger, counters = home.ledger, hosted.stored.counters
        if isinstance(hosted.declared.limiter, MinSize):
            if len(hosted.queue.credits):
                self._call_back(hosted, home, ledger.in_doubt())
            return
        own = ledger.accounts[self._place.shard]
        waiting = hosted.queue.wanted
        own.want = max(0, waiting - max(0, own.credit))
        if own.credit > 0 and not waiting:
            counters[f.INSERT_CREDIT] = 0
        idle = ledger.idle()
        if self._place.shard in idle:
            own.credit = 0
        self._call_back(hosted, home, idle)
        for shard, amount in ledger.lend().items():
            if shard == self._place.shard:
                hosted.queue.advance()
            else:
                borrower = home.borrowers[shard]
                self._send(borrower.client, 0, m.Lend(hosted.name, borrower.serial, amount), [])

    def _call_back(self, hosted: Hosted, home: _Home, shards: list[int]) -> None:
        """Ask shards for a new account, once: of inserts they do not use, or of items that may have left."""
        for shard in shards:
            borrower = home.borrowers.get(shard)
            if borrower is not None and not borrower.called_back:
                borrower.called_back = True
                self._send(borrower.client, 0, m.Lend(hosted.name, borrower.serial, 0, True), [])

    def fell_silent(self, client: Client) -> None:
        """A client's connection broke: it may be a shard's that has died."""
        if any(b.client is client for home in self._homes.values() for b in home.borrowers.values()):
            self._silent.add(client)
            self._look_at = 0.0

    def _look(self) -> None:
        for index, home in self._homes.items():
            for borrower in list(home.borrowers.values()):
                if borrower.client in self._silent and not self._lives(borrower.shard):
                    home.ledger.bury(borrower.shard)
                    del home.borrowers[borrower.shard]
                    self._tables[index].queue.advance()
        known = {b.client for home in self._homes.values() for b in home.borrowers.values()}
        self._silent = {client for client in self._silent if client.silent and client in known}

    # The others

    def _report(self, hosted: Hosted, debt: _Debt) -> None:
        """Tell the home what has changed, unless the last report is still unanswered."""
        talk = self._talk(debt.home)
        if talk.lost:
            return
        if debt.reconnects != talk.link.reconnects:  # what was lent meanwhile may not have arrived
            debt.reconnects, debt.reported = talk.link.reconnects, None
        if not debt.answered or time.monotonic() < debt.again or hosted.hidden:
            return
        counters, limited = hosted.stored.counters, not isinstance(hosted.declared.limiter, MinSize)
        waiting = hosted.queue.wanted if limited else 0
        credit = max(0, int(counters[f.INSERT_CREDIT])) if limited else 0
        if credit and not waiting:
            credit = counters[f.INSERT_CREDIT] = 0
        now = (int(counters[f.INSERTED_ITEMS]), int(counters[f.DELETED_ITEMS]), credit, max(0, waiting - credit))
        if now == debt.reported or (not limited and debt.reported is not None and now[0] - now[1] >= debt.floor):
            return
        debt.serial, debt.answered, debt.reported = debt.serial + 1, False, now
        with talk.lock:
            talk.post(
                m.Account(hosted.name, self._place.shard, debt.serial, *now),
                on_answer=lambda call: self._answered(hosted, debt, call),
            )

    def _answered(self, hosted: Hosted, debt: _Debt, call: Call) -> None:
        debt.answered = True
        if isinstance(call.answer, m.Lend):
            self._borrow(hosted, debt, call.answer)
        else:  # the table is not there: nothing to do but to ask again
            debt.reported, debt.again = None, time.monotonic() + _AGAIN_SECONDS

    def _lent(self, body: Any) -> None:
        """The home lends, or calls back, unasked."""
        for index, debt in self._debts.items():
            hosted = self._tables[index]
            if isinstance(body, m.Lend) and hosted.name == body.table:
                self._borrow(hosted, debt, body)

    def _borrow(self, hosted: Hosted, debt: _Debt, lent: m.Lend) -> None:
        if lent.serial != debt.serial or debt.reported is None:
            return
        counters = hosted.stored.counters
        if isinstance(hosted.declared.limiter, MinSize):
            items = debt.reported[0] - debt.reported[1]
            debt.floor = lent.floor if lent.floor < items else f.UNLIMITED  # without slack every change counts
            debt.reported = None if lent.back else debt.reported
            return
        if lent.back:
            counters[f.INSERT_CREDIT] = min(0, int(counters[f.INSERT_CREDIT]))
        if lent.amount:
            inserted, deleted, credit, want = debt.reported
            counters[f.INSERT_CREDIT] = max(0, int(counters[f.INSERT_CREDIT])) + lent.amount
            debt.reported = inserted, deleted, credit + lent.amount, max(0, want - lent.amount)
            hosted.queue.advance()

    def _talk(self, shard: int) -> Conversation:
        talk = self._talks.get(shard)
        if talk is None:
            endpoint = f"ipc://{self._directory(shard) / SOCKET}"
            alive: Callable[[], bool] = lambda: self._lives(shard) or self._returns(shard)
            talk = Conversation(endpoint, self._heartbeat, secrets.token_bytes(16), self._token, alive, self._lent)
            self._talks[shard] = talk
        return talk

    def _obstacle(self, hosted: Hosted, home: int) -> str:
        name = hosted.name
        if home in self._talks and self._talks[home].lost:
            return (
                f"shard {home}, the home of the limiter of table {name!r}, is gone: nothing can be inserted before the "
                "server is started again"
            )
        return f"the limiter {hosted.declared.limiter} of table {name!r}, kept by shard {home}, waits for samples"

    def _directory(self, shard: int) -> Path:
        return shard_directory(self._place.directory.parent, shard, self._place.shards)

    def _returns(self, shard: int) -> bool:
        """Whether a shard that has died may be started again: its door stands."""
        return (self._directory(shard) / DOOR).exists()

    def _lives(self, shard: int) -> bool:
        """Whether the process of a shard lives: it holds its door."""
        return holds(self._directory(shard) / DOOR)

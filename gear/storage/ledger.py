"""The limiter of a table that lies on several shards, kept by its home: what each shard inserted, may insert and wants.

Samples are promised for a whole batch by the home, whichever shards it is drawn from. Inserts are lent to the shards
in batches: what is lent and not used counts as inserted for other inserts, and not yet for samples, so that neither
bound is ever passed. Plain accounting: the caller carries the words between the shards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gear.schema import MinSize, StalenessBudget, Table
from gear.selection.limiter import samples_allowed
from gear.storage import fields as f

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(eq=False)
class Account:
    """One shard's part: items it inserted and deleted, inserts lent to it and not used, and how many it waits for.

    slack: how many of its items may leave without a word, where only a least size counts.
    """

    inserted: int = 0
    deleted: int = 0
    credit: int = 0
    want: int = 0
    slack: int = 0


class _Own:
    """The home's own account, read from the counters of its part."""

    def __init__(self, counters: npt.NDArray[np.int64]) -> None:
        self._counters = counters
        self.want = self.slack = 0

    @property
    def inserted(self) -> int:
        return int(self._counters[f.INSERTED_ITEMS])

    @property
    def deleted(self) -> int:
        return int(self._counters[f.DELETED_ITEMS])

    @property
    def credit(self) -> int:
        return int(self._counters[f.INSERT_CREDIT])

    @credit.setter
    def credit(self, credit: int) -> None:
        self._counters[f.INSERT_CREDIT] = credit


class Ledger:
    """The accounts of one table.

    Parameters
    ----------
    table : Table
    counters : int64[COUNTERS]
        Of the home's part; ``CREDITED`` holds the samples promised or delivered.
    home : int
        The shard that keeps it.

    Attributes
    ----------
    accounts : by shard.
    unheard : shards that have inserted and not said how much since the home was started.
    """

    def __init__(self, table: Table, counters: npt.NDArray[np.int64], home: int) -> None:
        self._counters = counters
        self._ratio = not isinstance(table.limiter, MinSize)
        self._least = table.limiter.n if isinstance(table.limiter, MinSize) else table.limiter.min_size
        self._spi, self._low, self._high = 0.0, 0.0, 0.0
        if not isinstance(table.limiter, (MinSize, StalenessBudget)):  # budgets are those of tables on one shard
            self._spi = table.limiter.samples_per_insert
            self._low, self._high = table.limiter.bounds
        self.accounts: dict[int, Account | _Own] = {home: _Own(counters)}
        self._last = -1  # the shard that was lent to last
        self.unheard: set[int] = set()

    @property
    def items(self) -> int:
        """Items on all shards."""
        return self._inserted - self._deleted

    @property
    def balance(self) -> str:
        """How many were inserted and sampled, for people."""
        return f"{self._inserted} items inserted on all shards, {int(self._counters[f.CREDITED])} sampled or promised"

    @property
    def _inserted(self) -> int:
        return sum(account.inserted for account in self.accounts.values())

    @property
    def _deleted(self) -> int:
        return sum(account.deleted for account in self.accounts.values())

    @property
    def _slack(self) -> int:
        return sum(account.slack for account in self.accounts.values())

    def promise(self, want: int) -> int:
        """Promise up to `want` samples; how many."""
        if self.unheard:
            return 0
        given = samples_allowed.py_func(  # type: ignore[attr-defined]
            want, self._inserted, self._deleted + self._slack, int(self._counters[f.CREDITED]), self._ratio,
            self._least, self._spi, self._low,
        )  # fmt: skip
        self._counters[f.CREDITED] += given
        return int(given)

    def relax(self, shard: int) -> int:
        """Down to how many items a shard that has just reported need not again: its part of what is to spare."""
        account = self.accounts[shard]
        account.slack = 0
        account.slack = max(0, self.items - self._slack - self._least) // len(self.accounts)
        return account.inserted - account.deleted - account.slack

    def in_doubt(self) -> list[int]:
        """Shards whose silence leaves open whether there are enough items."""
        if not self.items - self._slack < self._least <= self.items:
            return []
        return [shard for shard, account in self.accounts.items() if account.slack]

    def take_back(self, samples: int) -> None:
        """Samples that were promised were not delivered."""
        self._counters[f.CREDITED] -= samples

    def lend(self) -> dict[int, int]:
        """Lend what may be inserted now to the shards that wait, in turn; how much to each that gets some."""
        waiting = [shard for shard, account in sorted(self.accounts.items()) if account.want > 0]
        if not self._ratio or not waiting or self.unheard:
            return {}
        room = min(self._room(), sum(self.accounts[shard].want for shard in waiting))
        lent = dict.fromkeys(waiting, 0)
        turn = [shard for shard in waiting if shard > self._last] + [shard for shard in waiting if shard <= self._last]
        while room > 0 and turn:  # as many rounds at once as all of them take part in: they may want billions
            rounds = max(1, min(room // len(turn), *(self.accounts[shard].want for shard in turn)))
            for shard in turn[:room]:
                account = self.accounts[shard]
                account.want -= rounds
                account.credit = max(0, account.credit) + rounds
                lent[shard] += rounds
                room -= rounds
                self._last = shard
            turn = [shard for shard in turn if self.accounts[shard].want]
        return {shard: amount for shard, amount in lent.items() if amount}

    def lend_to(self, shard: int) -> int:
        """Lend to one shard what is there for it, if no other waits; how much."""
        if any(account.want for other, account in self.accounts.items() if other != shard):
            return 0  # in turn, with the others
        return self.lend().get(shard, 0)

    def idle(self) -> list[int]:
        """Shards with inserts that they were lent and do not use, while another one waits for some."""
        if not self._ratio or not any(account.want for account in self.accounts.values()):
            return []
        return [shard for shard, account in self.accounts.items() if account.credit > 0 and not account.want]

    def _room(self) -> int:
        """Inserts that may be lent besides those that are."""
        lent = sum(max(0, account.credit) for account in self.accounts.values())
        inserted, deleted = self._inserted + lent, self._deleted
        by_size = self._least - (inserted - deleted)
        room = (self._high - (self._spi * inserted - int(self._counters[f.CREDITED]))) / self._spi
        room += 1e-9 * max(1.0, abs(room))
        return max(0, by_size, min(math.floor(room), 1 << 31))

    def bury(self, shard: int) -> None:
        """A shard died: what it inserted stays inserted, its items are gone, what it was lent returns."""
        account = self.accounts.get(shard)
        if isinstance(account, Account):
            account.deleted, account.credit, account.want, account.slack = account.inserted, 0, 0, 0

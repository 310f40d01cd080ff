"""Claims: items delivered to a consumer and not yet acknowledged, and whose they are.

A claim lives while its client is connected. When the client falls silent what it has not acknowledged stands first in
its consumer's line; when it comes back, what nobody else has been served meanwhile is its again. Acknowledgements
stand in the segment and survive the shard, claims do not. Single-threaded, like the table that owns them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.errors import DataError
from gear.query import MOST_ITEMS
from gear.storage import fields as f
from gear.storage.acknowledge import acknowledge, items_of_ids, reclaim
from gear.storage.draw_claimed import select_claimed
from gear.storage.lines import give_back, relist

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout

_CLIENT = (1 << f.CLAIM_CLIENT_BITS) - 1
NOBODY = f.MAX_CLIENTS - 1
"""Number of no client: whose what is drawn for ranks is until they ask for it."""


@dataclass(eq=False, slots=True)
class Claim:
    """What one client was served at once, in that order."""

    consumer: int
    ids: npt.NDArray[np.int64]


class Claims:
    """The claims of one table that has consumers."""

    def __init__(self, segment: npt.NDArray[np.uint8], layout: Layout) -> None:
        self._segment, self._params, self._layout = segment, layout.params, layout
        self._lines = layout.view(segment, "lines").reshape(-1, f.LINE_FIELDS)
        self._units = layout.view(segment, "units")
        self._claimed = layout.view(segment, "claims").reshape(layout.table.lines, -1)
        self._of: dict[int, dict[int, Claim]] = {}
        self._numbers = itertools.count(1)
        self._count, self._enough = 0, 64
        self.restored = 0
        """How often items went back into a line."""

    def units(self, consumer: int) -> int:
        """Items, or groups, that wait for a consumer."""
        return int(self._lines[consumer, f.LINE_UNITS])

    def take(
        self, client: int, consumer: int, units: int
    ) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Claim and pin the first `units` units; its number, and ids, starts and lengths of the items."""
        group = max(1, self._layout.table.group_size)
        if units * group > MOST_ITEMS:
            raise DataError(f"a batch of {units} groups of {group} has more than {MOST_ITEMS} items; draw several")
        room = units * group
        ids, starts, lengths = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int32)
        number = next(self._numbers) << f.CLAIM_CLIENT_BITS | client
        n = select_claimed(self._segment, self._params, consumer, units, number, ids, starts, lengths)
        if n < room:
            ids, starts, lengths = ids[:n].copy(), starts[:n].copy(), lengths[:n].copy()
        self._of.setdefault(client, {})[number] = Claim(consumer, ids)
        self._count += 1
        if self._count >= self._enough:
            self._sweep()
        return number, ids, starts, lengths

    def _sweep(self) -> None:
        """Forget claims of which nothing is left: acknowledged, or evicted."""
        for claims in self._of.values():
            for number, claim in list(claims.items()):
                if not (self._claimed[claim.consumer, self._items(claim)] == number).any():
                    del claims[number]
        self._count = sum(map(len, self._of.values()))
        self._enough = 64 + 2 * self._count

    def _items(self, claim: Claim) -> npt.NDArray[np.int64]:
        items = np.empty(len(claim.ids), np.int64)
        return items[: items_of_ids(self._segment, self._params, claim.ids, items)]

    def units_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of the unit of each of these stored items, int64[N]: those of a group have one."""
        items = np.empty(len(ids), np.int64)
        items_of_ids(self._segment, self._params, ids, items)
        return self._units[items]

    def shorten(self, number: int, items: int) -> None:
        """All but the first items of a claim wait again, as if they had not been claimed."""
        claim = self._of[number & _CLIENT][number]
        kept, rest = claim.ids[:items].copy(), claim.ids[items:].copy()
        claim.ids = rest
        give_back(self._segment, self._params, claim.consumer, number, self._items(claim))
        self._lines[claim.consumer, f.LINE_SERVED] -= len(rest)
        claim.ids = kept
        if not items:
            del self._of[number & _CLIENT][number]
            self._count -= 1

    def move(self, number: int, ids: npt.NDArray[np.int64], client: int) -> int:
        """These items of a claim become a claim of that client; its number, 0 if they are not all claimed any more."""
        claim = self._of.get(number & _CLIENT, {}).get(number)
        if claim is None:
            return 0
        words, items = self._claimed[claim.consumer], np.empty(len(ids), np.int64)
        there = items_of_ids(self._segment, self._params, ids, items)
        if not (words[items[:there]] == number).all():
            return 0
        new = next(self._numbers) << f.CLAIM_CLIENT_BITS | client
        words[items[:there]] = new
        self._of.setdefault(client, {})[new] = Claim(claim.consumer, ids)
        claim.ids = claim.ids[~np.isin(claim.ids, ids)]
        if len(claim.ids):
            self._count += 1
        else:
            del self._of[number & _CLIENT][number]
        return new

    def settle(self, number: int, delivered: bool) -> None:
        """The claim's rows were delivered, or nobody got them: then its items wait again."""
        client = number & _CLIENT
        claim = self._of.get(client, {}).get(number)
        if claim is None:
            return
        if not delivered:
            self._give_back(number, claim)
            del self._of[client][number]
            self._count -= 1
        elif not self._layout.table.consumers:  # groups that nobody consumes by name: delivered is done with
            self.acknowledge(client, 0, claim.ids)
            del self._of[client][number]
            self._count -= 1

    def _give_back(self, number: int, claim: Claim) -> None:
        self.restored += give_back(self._segment, self._params, claim.consumer, number, self._items(claim))

    def acknowledge(self, client: int, consumer: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
        """Acknowledge items; what became of each, one of `acknowledge.STALE` and the others."""
        outcomes = np.empty(len(ids), np.int8)
        acknowledge(self._segment, self._params, consumer, client, ids, outcomes)
        return outcomes

    def suspend(self, client: int) -> None:
        """The client fell silent: what it has claimed stands first in the lines, as it stood before."""
        for number, claim in self._of.get(client, {}).items():
            self._give_back(number, claim)

    def resume(self, client: int) -> None:
        """The client is back: what it had claimed and nobody else was served is its again."""
        for number, claim in self._of.get(client, {}).items():
            reclaim(self._segment, self._params, claim.consumer, number, self._items(claim))

    def forget(self, client: int) -> None:
        """The client is gone for good."""
        self.suspend(client)
        self._count -= len(self._of.pop(client, {}))

    def reset(self) -> None:
        """The table has been emptied and counts anew."""
        self._of.clear()
        self._count = 0
        self._lines[:, f.LINE_SERVED : f.LINE_DROPPED + 1] = 0

    def restart(self, items: npt.NDArray[np.int64]) -> None:
        """Make the lines anew from the acknowledgements in the segment.

        items : int64[N], the indices of those that may be served, in the order of their publication.
        """
        self._layout.view(self._segment, "links")[:] = -2
        self._lines[:, [f.LINE_HEAD, f.LINE_TAIL]] = -1
        self._lines[:, [f.LINE_UNITS, f.LINE_WAITING]] = 0
        relist(self._segment, self._params, items)

    def info(self) -> dict[str, Any]:
        """Per consumer: items that wait, are claimed, and were served, acknowledged and dropped. Plain data."""
        names = self._layout.table.consumers or ("",)
        claimed = np.count_nonzero(self._claimed, axis=1)
        return {
            name: {
                "waiting": int(line[f.LINE_WAITING]),
                "claimed": int(claimed[k]),
                "served": int(line[f.LINE_SERVED]),
                "acknowledged": int(line[f.LINE_ACKNOWLEDGED]),
                "dropped": int(line[f.LINE_DROPPED]),
            }
            for k, (name, line) in enumerate(zip(names, self._lines, strict=True))
        }

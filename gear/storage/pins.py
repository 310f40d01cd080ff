"""Pins: which slots readers are reading, until every party has let go or the deadline passed.

A pin has two ends. Its credit is settled when the parties have let go, at its deadline or when it is
revoked, whichever comes first. Its rows are freed only when nobody can be reading them any more: silence
frees nothing. Single-threaded, like the table that owns it.
"""

from __future__ import annotations

import itertools
import secrets
import time
from typing import TYPE_CHECKING

import numpy as np

from gear.batch import NO_NEIGHBOURS
from gear.errors import PinLost
from gear.storage import fields as f
from gear.storage import settle
from gear.storage.claims import NOBODY
from gear.storage.fields import ERA_SHIFT, ERAS
from gear.storage.pin import Pin

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.claims import Claims
    from gear.storage.layout import Layout


ABANDONED = 60.0
"""Seconds that a selection waits for its parties, at most, when its selector is gone and nobody holds it: what a
selection lasts by default. Else a client that dies could leave rows and credit to nobody, for as long as it liked."""


class Pins:
    """The pins of one table."""

    def __init__(
        self, segment: npt.NDArray[np.uint8], layout: Layout, claims: Claims | None = None, era: int = 0
    ) -> None:
        self._claims = claims
        self._segment, self._params, self._layout = segment, layout.params, layout
        self._blocks, self._slots = layout.view(segment, "blocks"), layout.view(segment, "slots")
        self._counters = layout.view(segment, "counters")
        self._pins: dict[int, Pin] = {}
        self._of: dict[int, set[int]] = {}
        # Where numbers start is random: a selection of another server is told apart, one before a restart by its era.
        self._numbers = itertools.count(1 + (era % ERAS << ERA_SHIFT) + secrets.randbits(ERA_SHIFT - 8))
        self._haunted: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._expected: set[int] = set()
        self.next_expiry = float("inf")
        """`time.time()` of the next deadline."""
        self.stirred = False
        """Whether a part of a draw was let go of or ended; who looks at them lowers it."""
        self.lost_parts = 0
        """Parts of draws that ended without having been delivered."""

    def __len__(self) -> int:
        return len(self._pins)

    def unsettled(self) -> list[Pin]:
        """Draws that are not delivered yet, the oldest first."""
        return [pin for pin in self._pins.values() if not pin.settled]

    def haunt(self, slots: npt.NDArray[np.int64], clients: set[int]) -> None:
        """Slots (int64[N]) that one of these clients may be reading since before a restart stay until all say no."""
        self._haunted, self._expected = slots, set(clients)
        self.laid(-1)

    def laid(self, client: int) -> bool:
        """The client reads nothing of before the restart any more; whether slots were let go of thereby."""
        self._expected.discard(client)
        if self._expected or not len(self._haunted):
            return False
        settle.release_slots(self._segment, self._params, self._haunted.astype(np.int32))
        self._haunted = self._haunted[:0]
        return True

    def add(
        self,
        ids: npt.NDArray[np.int64],
        selector: int,
        parties: int,
        ttl: float,
        which: int = 0,
        neighbours: npt.NDArray[np.int32] = NO_NEIGHBOURS,
        void: bool = False,
        claim: int = 0,
    ) -> tuple[int, float]:
        """Record a draw from set number `which` whose slots, and neighbours' slots, are pinned; (number, deadline).

        void: it was no draw and costs neither credit nor uses.
        """
        number, deadline = next(self._numbers), time.time() + ttl
        # With several parties the selector may be a mere coordinator: a party holds from its first collect.
        holders = {selector} if parties == 1 else set()
        self._pins[number] = Pin(
            ids, neighbours, selector, parties, deadline, holders, which, False, False, claim, 0, void
        )
        mine = self._of.get(selector)
        if mine is None:
            mine = self._of[selector] = set()
        mine.add(number)
        if deadline < self.next_expiry:
            self.next_expiry = deadline
        return number, deadline

    def add_credit(self, amount: int, selector: int, parties: int, ttl: float) -> tuple[int, float]:
        """Record credit for a draw from several shards; returns (number, deadline)."""
        number, deadline = self.add(np.empty(0, np.int64), selector, parties, ttl)
        self._pins[number].credit = amount
        return number, deadline

    def split(self, number: int, parts: list[npt.NDArray[np.int64]], selector: int) -> list[tuple[int, Pin]]:
        """Make a pin of each of these parts of a new pin's ids, which nobody holds; (number, pin) of each."""
        whole = self._pins.pop(number)
        self._of[whole.selector].discard(number)
        made = []
        for ids in parts:
            new = next(self._numbers)
            pin = Pin(ids, NO_NEIGHBOURS, selector, 1, whole.deadline, set(), whole.which, claim=whole.claim, part=True)
            self._pins[new] = pin
            self._of.setdefault(selector, set()).add(new)
            made.append((new, pin))
        return made

    def hand(self, client: int, number: int, parties: int, neighbours: npt.NDArray[np.int32]) -> None:
        """A rank takes its part, for that many parties, and pinned neighbours; see `hold`."""
        pin = self._pins[number]
        if len(pin.neighbours):  # of the client that let go of it
            settle.release_slots(self._segment, self._params, pin.neighbours)
        pin.neighbours = neighbours
        if parties == 1:
            self.hold(client, number)
        else:
            pin.parties = parties

    def end(self, number: int) -> None:
        """End a pin that nobody holds, undelivered."""
        self._settle(self._pins[number])
        self._end_if_over(number, self._pins[number])

    def hold(self, client: int, number: int) -> None:
        """A party joins a pin before it reads.

        Raises
        ------
        PinLost
            If the pin has ended, its deadline passed, or there are as many parties already as it is for.
        """
        pin, name = self._pins.get(number), self._layout.table.name
        if pin is None or pin.settled or pin.deadline <= time.time():
            raise PinLost(f"pin {number} of table {name!r} has ended; select again")
        if client in pin.holders:
            return
        if len(pin.holders) >= pin.parties:
            raise PinLost(
                f"all parties that pin {number} of table {name!r} was selected for hold it or have let go; select "
                "with a larger parties="
            )
        pin.holders.add(client)
        self._of.setdefault(client, set()).add(number)

    def held(self, client: int, number: int) -> npt.NDArray[np.int32]:
        """Make sure that the client holds the pin; returns the neighbours' slots that it keeps too, int32[K].

        Raises
        ------
        PinLost
            If it does not, or not any more.
        """
        pin = self._pins.get(number)
        if pin is None or client not in pin.holders:
            raise PinLost(f"pin {number} of table {self._layout.table.name!r} is not held by this client any more")
        return pin.neighbours

    def holds(self, client: int, number: int) -> bool:
        """Whether the client holds the pin; from any thread."""
        pin = self._pins.get(number)
        return pin is not None and client in pin.holders

    def release(self, client: int, number: int, delivered: bool) -> None:
        """One party lets go; the last one ends the pin. Who does not hold it is ignored: messages may come twice."""
        pin = self._pins.get(number)
        if pin is None or client not in pin.holders:
            return
        pin.delivered |= delivered
        self._let_go(client, number, pin)

    def drop(self, client: int) -> None:
        """The client can not read any more: it lets go of everything, undelivered.

        What it selected for several parties stays for them: it may have been a coordinator that ended well.
        """
        for number in list(self._of.get(client, ())):
            pin = self._pins[number]
            if client == pin.selector:
                pin.selector = -1
                self._abandon(pin)
            if client in pin.holders:
                self._let_go(client, number, pin)
        self._of.pop(client, None)

    def entrust(self, client: int, to: int) -> None:
        """What the client has claimed with parts of draws, and not delivered, becomes the claim of `to`.

        A claim ends when its client falls silent; a part waits for the next client of its rank.
        """
        for number in self._of.get(client, ()):
            pin = self._pins[number]
            if pin.part and pin.holders == {client} and pin.parties == 1 and not pin.settled:
                self._entrust(pin, to)

    def _entrust(self, pin: Pin, to: int) -> None:
        if pin.claim and self._claims is not None:
            pin.claim = self._claims.move(pin.claim, pin.ids, to) or pin.claim

    def _let_go(self, client: int, number: int, pin: Pin) -> None:
        pin.holders.discard(client)
        self.stirred |= pin.part
        if not pin.part or pin.delivered or pin.parties > 1:
            pin.parties -= 1
        elif not pin.settled:
            self._entrust(pin, NOBODY)
        if client != pin.selector:
            self._of[client].discard(number)
        self._end_if_over(number, pin)
        self._abandon(pin)

    def _abandon(self, pin: Pin) -> None:
        """It may be that nobody who is there has it any more: see `ABANDONED`. A part of a draw waits for its rank."""
        if pin.selector < 0 and not pin.holders and not pin.settled and not pin.part:
            pin.deadline = min(pin.deadline, time.time() + ABANDONED)
            self.next_expiry = min(self.next_expiry, pin.deadline)

    def reset(self) -> None:
        """The table is emptied and counts anew: what was drawn before stays readable and counts no more."""
        for pin in self._pins.values():
            if not pin.settled and not pin.void:
                self._settle(pin)
                pin.settled, pin.void = False, True

    def any_of(self, client: int) -> bool:
        """Whether the client has a pin."""
        return bool(self._of.get(client))

    def expire(self, now: float) -> list[tuple[int, int]]:
        """Settle pins whose deadline (`time.time()`) passed; (client, pin) for each holder to be told.

        Undelivered credit returns at once; the rows stay until the holders let go or are dropped.
        """
        if now < self.next_expiry:
            return []
        told: list[tuple[int, int]] = []
        for number, pin in list(self._pins.items()):
            if not pin.settled and pin.deadline <= now:
                told += [(client, number) for client in pin.holders]
                self._settle(pin)
                self._end_if_over(number, pin)
        self.next_expiry = min((p.deadline for p in self._pins.values() if not p.settled), default=float("inf"))
        return told

    def revoke_beyond(self, share: int) -> list[tuple[int, int]]:
        """Settle the oldest pins of clients that keep more than `share` evicted blocks; (client, pin) to be told.

        Pins that nobody has joined yet count against their selector and end at once.
        """
        kept: dict[int, set[int]] = {}
        told: list[tuple[int, int]] = []
        for number, pin in reversed(list(self._pins.items())):
            slots = set() if pin.settled else set(self._evicted_slots(pin).tolist())
            if not slots:
                continue
            beyond = False
            for client in pin.charged:
                mine = kept.setdefault(client, set())
                mine |= slots
                blocks = int(self._slots[list(mine), f.CURSOR].sum())
                beyond |= blocks > (share if client >= 0 else 0)
            if beyond:
                told += [(client, number) for client in pin.holders]
                self._settle(pin)
                self._end_if_over(number, pin)
        return told

    def blocking(self) -> list[int]:
        """Clients that keep evicted blocks from being reused."""
        return sorted({c for pin in self._pins.values() if len(self._evicted_slots(pin)) for c in pin.charged} - {-1})

    def _evicted_slots(self, pin: Pin) -> npt.NDArray[np.int32]:
        rows = pin.ids & ((1 << self._layout.row_bits) - 1)
        own = self._blocks[rows // self._layout.block_steps, f.SLOT]
        slots: npt.NDArray[np.int32] = np.unique(np.concatenate((own, pin.neighbours)))
        return slots[self._slots[slots, f.STATE] == f.EVICTED]

    def _settle(self, pin: Pin) -> None:
        if not pin.settled:
            self.stirred |= pin.part
            self.lost_parts += pin.part and not pin.delivered
            if pin.claim and self._claims is not None and not pin.void:
                self._claims.settle(pin.claim, pin.delivered)
            elif not pin.void:
                settle.settle(self._segment, self._params, pin.which, pin.ids, pin.delivered)
                if not pin.delivered:
                    self._counters[f.CREDITED] -= pin.credit
            pin.settled = True

    def _end_if_over(self, number: int, pin: Pin) -> None:
        if pin.parties > 0 and not pin.settled:
            return
        if pin.holders:  # somebody may still be reading: settle the credit, keep the rows
            self._settle(pin)
            return
        self._settle(pin)
        settle.release(self._segment, self._params, pin.ids)
        if len(pin.neighbours):
            settle.release_slots(self._segment, self._params, pin.neighbours)
        del self._pins[number]
        if pin.selector >= 0:
            self._of[pin.selector].discard(number)

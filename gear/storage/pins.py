"""Pins: which slots readers are reading, until every party has let go or the deadline passed.

A pin has two ends. Its credit is settled when the parties have let go, at its deadline or when it is
revoked, whichever comes first. Its rows are freed only when nobody can be reading them any more: silence
frees nothing. Single-threaded, like the table that owns it.
"""

from __future__ import annotations

import itertools
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gear.errors import PinLost
from gear.storage import fields as f
from gear.storage import settle

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout


@dataclass(eq=False, slots=True)
class Pin:
    """Items kept readable; `holders` counts, per client, who may be reading them."""

    ids: npt.NDArray[np.int64]
    selector: int
    holders: dict[int, int]
    parties: int
    deadline: float
    settled: bool = False
    delivered: bool = False
    joined: tuple[int, ...] = ()


class Pins:
    """The pins of one table."""

    def __init__(self, segment: npt.NDArray[np.uint8], layout: Layout) -> None:
        self._segment, self._params, self._layout = segment, layout.params, layout
        self._blocks, self._slots = layout.view(segment, "blocks"), layout.view(segment, "slots")
        self._pins: dict[int, Pin] = {}
        self._of: dict[int, set[int]] = {}
        # Where numbers start is random: a selection of another server, or of one before a restart, is told apart.
        self._numbers = itertools.count(1 + secrets.randbits(61))
        self.next_expiry = float("inf")
        """`time.time()` of the next deadline."""

    def __len__(self) -> int:
        return len(self._pins)

    def add(self, ids: npt.NDArray[np.int64], selector: int, parties: int, ttl: float) -> tuple[int, float]:
        """Record a draw whose slots are pinned; returns (number, deadline)."""
        number, deadline = next(self._numbers), time.time() + ttl
        # With several parties the selector may be a mere coordinator: a party holds from its first collect.
        self._pins[number] = Pin(ids, selector, {selector: 1} if parties == 1 else {}, parties, deadline)
        self._of.setdefault(selector, set()).add(number)
        if deadline < self.next_expiry:
            self.next_expiry = deadline
        return number, deadline

    def hold(self, client: int, number: int) -> None:
        """A party joins a pin before it reads.

        Raises
        ------
        PinLost
            If the pin has ended or its deadline passed.
        """
        pin = self._pins.get(number)
        if pin is None or pin.settled:
            raise PinLost(f"pin {number} of table {self._layout.table.name!r} has ended; select again")
        pin.holders[client] = pin.holders.get(client, 0) + 1
        pin.joined += (client,)
        self._of.setdefault(client, set()).add(number)

    def release(self, client: int, number: int, delivered: bool) -> None:
        """One party lets go; the last one ends the pin. An unknown pin is ignored: messages may come twice."""
        pin = self._pins.get(number)
        if pin is None or (client not in pin.holders and client != pin.selector):
            return
        held = pin.holders.get(client, 0)
        if held > 1:
            pin.holders[client] = held - 1
        else:
            pin.holders.pop(client, None)
        pin.delivered |= delivered
        pin.parties -= 1
        self._end_if_over(number, pin)

    def drop(self, client: int) -> None:
        """The client can not read any more: it lets go of everything, undelivered."""
        for number in list(self._of.pop(client, ())):
            pin = self._pins[number]
            pin.holders.pop(client, None)
            if pin.parties == 1 or client == pin.selector:
                pin.parties = 0
            self._end_if_over(number, pin)

    def any_of(self, client: int) -> bool:
        """Whether the client has a pin."""
        return bool(self._of.get(client))

    def numbers_of(self, client: int) -> set[int]:
        """Pins the client made or joined."""
        return set(self._of.get(client, ()))

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
        """Settle the oldest pins of clients that keep more than `share` evicted blocks; (client, pin) to be told."""
        kept: dict[int, int] = {}
        told: list[tuple[int, int]] = []
        for number, pin in reversed(list(self._pins.items())):
            held = 0 if pin.settled else self._evicted_blocks(pin)
            if not held:
                continue
            for client in pin.holders:
                kept[client] = kept.get(client, 0) + held
            if any(kept[client] > share for client in pin.holders):
                told += [(client, number) for client in pin.holders]
                self._settle(pin)
        return told

    def blocking(self) -> list[int]:
        """Clients that keep evicted blocks from being reused."""
        return sorted({c for pin in self._pins.values() if self._evicted_blocks(pin) for c in pin.holders})

    def _evicted_blocks(self, pin: Pin) -> int:
        rows = pin.ids & ((1 << self._layout.row_bits) - 1)
        slots = np.unique(self._blocks[rows // self._layout.block_steps, f.SLOT])
        evicted = slots[self._slots[slots, f.STATE] == f.EVICTED]
        return int(self._slots[evicted, f.CURSOR].sum())

    def _settle(self, pin: Pin) -> None:
        if not pin.settled:
            settle.settle(self._segment, self._params, pin.ids, pin.delivered)
            pin.settled = True

    def _end_if_over(self, number: int, pin: Pin) -> None:
        if pin.parties > 0 and not pin.settled:
            return
        if pin.holders:  # somebody may still be reading: settle the credit, keep the rows
            self._settle(pin)
            return
        settle.release(self._segment, self._params, pin.ids, pin.delivered, not pin.settled)
        del self._pins[number]
        for client in (pin.selector, *pin.joined):
            if client in self._of:
                self._of[client].discard(number)

"""Draws for data-parallel ranks that were made: whose each part is, and what has become of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gear.batch import Selection
    from gear.errors import GearError
    from gear.storage.pin import Pin
    from gear.storage.ranks_asks import Ask, Wanted
    from gear.storage.selects import Select


@dataclass(eq=False, slots=True)
class Part:
    """A rank's part of a draw, or why there is none."""

    selection: Selection | None = None
    pin: Pin | None = None
    error: GearError | None = None
    holder: int = -1
    """The client that was handed it last."""
    told: bool = False
    """Whether the rank knows that it is lost."""

    @property
    def waits(self) -> bool:
        """Whether the rank may have it."""
        pin = self.pin
        return pin is not None and not self.lost and not pin.delivered and not pin.holders and pin.parties == 1

    @property
    def lost(self) -> bool:
        """Whether nobody can have it any more, though nobody got it."""
        pin = self.pin
        return pin is None or (not pin.delivered and (pin.settled or pin.deadline <= time.time()))

    @property
    def held(self) -> bool:
        """Whether a client has it, which may yet deliver it."""
        return self.pin is not None and bool(self.pin.holders)

    @property
    def over(self) -> bool:
        """Whether nothing is to be done about it any more."""
        return self.told or (self.pin is not None and self.pin.delivered)

    def away(self, client: int) -> bool:
        """Whether another client of the rank has it, perhaps one that is gone soon."""
        return self.holder not in (-1, client) and not (self.over or self.waits or self.lost)


@dataclass(eq=False, slots=True)
class Draw:
    """One draw for all ranks: a part for each."""

    number: int
    wanted: Wanted
    by: int
    """The rank for which it was made."""
    parts: list[Part]
    empty: bool = False
    """Whether nothing is kept of it but which ranks are still to be told that their part is lost."""

    def settle(self) -> None:
        """Where nobody can have any of it any more, drop what the parts held."""
        if not self.empty and all(part.over or (part.lost and not part.held) for part in self.parts):
            for part in self.parts:
                part.told = part.over
                part.selection = part.pin = None
            self.empty = True


@dataclass(eq=False, slots=True)
class Together:
    """The ranks that draw together: those of a consumer, or of a table without any."""

    count: int
    consumer: int
    number: int = 0
    """Of the next draw that is made."""
    draws: dict[int, Draw] = field(default_factory=dict)
    asks: list[Ask] = field(default_factory=list)
    making: Select | None = None
    blocked: bool = False
    """Whether a rank that is behind keeps the next draw from being made."""

"""What a data-parallel rank asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gear.errors import DataError

if TYPE_CHECKING:
    from gear.storage.budget import Budget


class Share(NamedTuple):
    """Whose part: rank `rank` of `ranks`, of draw number `draw`; -1: its next one."""

    ranks: int
    rank: int
    draw: int = -1

    @staticmethod
    def checked(ranks: int, rank: int, draw: int | None) -> Share:
        """As a client says it.

        Raises
        ------
        DataError
            If there is no such rank.
        """
        if not 0 <= rank < ranks:
            raise DataError(f"rank: expected a number from 0 to {ranks - 1} (world_size {ranks}), got {rank}")
        return Share(ranks, rank, -1 if draw is None else draw)


class Wanted(NamedTuple):
    """What all ranks must ask for alike."""

    size: int
    which: int
    budget: Budget | None

    def __str__(self) -> str:
        steps = "" if self.budget is None else f", max_steps={self.budget.steps}, alone={self.budget.alone}"
        return f"size={self.size}{steps}, set of items {self.which}"


@dataclass(eq=False, slots=True)
class Ask:
    """A client that asks for a part; `done` gets a Selection or a GearError."""

    client: int
    wanted: Wanted
    reach: tuple[int, int]
    consumer: int
    share: Share
    parties: int
    ttl: float
    deadline: float
    done: Callable[[Any], None]
    over: bool = False

"""A table that lies on several shards, as one client holds it: its parts, what they weigh, how a batch is divided."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.plan import make_plan
from gear.transport.base import OpenTable

if TYPE_CHECKING:
    from gear.plan import Plan
    from gear.storage.layout import Layout
    from gear.transport.watch import Watch

_PLANS = 256


class Mass(NamedTuple):
    """What a part was last known to weigh: mass, items that can be drawn, smallest probability of any."""

    mass: float
    items: int
    smallest: float


@dataclass(eq=False)
class SpreadTable(OpenTable):
    """A table on several shards.

    Attributes
    ----------
    opened : the part on each shard that lived when it was opened, its home first.
    home : the shard that keeps the limiter, None if that limits nothing.
    masses : of the parts, as last seen.
    watches : requests for first items that are not answered.
    lock : guards the random numbers and the watches.
    """

    opened: dict[int, OpenTable] = field(default_factory=dict)
    home: int | None = None
    masses: dict[int, Mass] = field(default_factory=dict)
    watches: dict[int, Watch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._plans: dict[tuple[int, object, int, int], Plan] = {}
        self.lock = threading.Lock()
        self._process = os.getpid()
        self._random = np.random.default_rng([self.table.seed, self.row])

    @property
    def layouts(self) -> dict[int, Layout]:
        """The geometry of the parts by their shards."""
        return {shard: opened.layout for shard, opened in self.opened.items()}

    def plan(self, shard: int, whole: Plan) -> Plan:
        """The plan of a whole batch for the rows of one part."""
        if whole.packed:
            return make_plan(self.opened[shard].layout, whole.views, whole.size, whole.length, whole.total)
        key = (shard, whole.views, whole.size, whole.length)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[key] = make_plan(self.opened[shard].layout, whole.views, whole.size, whole.length)
        return plan

    def own(self) -> None:
        """In the child of a fork: random numbers of its own, and nothing asked yet."""
        if self._process != os.getpid():
            self._process, self.lock = os.getpid(), threading.Lock()
            self._random = np.random.default_rng()
            self.watches = {}

    def divide(self, size: int, masses: dict[int, Mass]) -> dict[int, int]:
        """How many of `size` items each part gives: by chance, in proportion to their masses."""
        whole = sum(mass.mass for mass in masses.values())
        with self.lock:
            counts = self._random.multinomial(size, [mass.mass / whole for mass in masses.values()])
        divided = dict(zip(masses, counts.tolist(), strict=True))
        if self.table.distinct:
            self._cap(divided, masses)
        return divided

    def _cap(self, divided: dict[int, int], masses: dict[int, Mass]) -> None:
        """A part gives no item twice: what is beyond its items goes to the parts with the most left."""
        beyond = 0
        for shard, count in divided.items():
            divided[shard] = min(count, masses[shard].items)
            beyond += count - divided[shard]
        for shard in sorted(masses, key=lambda shard: divided[shard] - masses[shard].items):
            more = min(beyond, masses[shard].items - divided[shard])
            divided[shard] += more
            beyond -= more

"""What `make bench` measures, by group: what is set up once, and the measurements made on it.

A group is set up only if one of its measurements was asked for; the peers that do the same work join each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.measure import Finding, Measurement
from benchmarks.suite import (
    crowd,
    frames,
    growth,
    inserts,
    items,
    limits,
    network,
    responses,
    start,
    steps,
    together,
    waiting,
    windows,
)  # fmt: skip
from benchmarks.workloads import Columns

Group = tuple[tuple[str, ...], Callable[[Columns], Iterator[Measurement | Finding]]]

GROUPS: list[Group] = [
    (limits.NAMES, limits.limits),
    (start.NAMES, start.start),
    (steps.UNIFORM, steps.uniform),
    (steps.PRIORITIZED, steps.prioritized),
    (steps.INSERTS, steps.inserts),
    (windows.NAMES, windows.embedded),
    (frames.NAMES, frames.frames),
    (inserts.names("inproc"), inserts.embedded),
    (inserts.names("shm"), inserts.shared),
    (items.NAMES, items.items),
    (items.HERE, items.embedded),
    (network.NAMES, network.networked),
    (responses.NAMES, responses.responses),
    (together.NAMES, together.together),
    (growth.NAMES, growth.growth),
    (growth.MEMORY, growth.memory),
    (waiting.NAMES, waiting.beside_waiting),
    (crowd.NAMES, crowd.crowd),
]
"""Names of a group's measurements, and what makes them."""

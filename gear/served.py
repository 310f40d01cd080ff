"""What tables have to be whose items are served once: queues and stacks, consumers, groups.

Parts of a `Table`'s own validation, called while it is constructed. Nothing here knows memory, sockets or kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import force_setattr

from gear.grouping import Groups
from gear.limiters import MinSize, Queue, Stack, StalenessBudget
from gear.rules import Fifo, Steps, Trajectories, Whole, require

if TYPE_CHECKING:
    from gear.schema import Table

MAX_CONSUMERS = 8
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")


def check_line(table: Table, owner: str, line: Queue | Stack) -> None:
    """A queue or stack delivers each item once and has room for all of them."""
    require(
        table.max_times_sampled in (0, 1),
        f"{owner}: limiter {line!r} needs max_times_sampled=1, got {table.max_times_sampled}; leave it out, "
        "or use another limiter",
    )
    force_setattr(table, "max_times_sampled", 0 if table.lines else 1)
    capacity = table.capacity
    bounded = isinstance(capacity, Steps) or (isinstance(capacity, Trajectories) and isinstance(table.item, Whole))
    require(
        not bounded or line.size <= capacity.n,
        f"{owner}: capacity {capacity!r} never holds the {line.size} items of limiter {line!r}: items would "
        "be evicted before they are delivered; raise the capacity or lower the size",
    )


def check_consumers(table: Table, owner: str) -> None:
    """A few different names; becomes a tuple."""
    names = table.consumers
    if isinstance(names, Mapping):
        force_setattr(table, "consumer_needs", tuple(names.values()))
        names = tuple(names)
    require(
        isinstance(names, (tuple, list)) and all(isinstance(n, str) and _NAME.fullmatch(n) for n in names),
        f"{owner}: consumers must be a sequence of names of letters, digits or '_.-', got {names!r}",
    )
    force_setattr(table, "consumers", tuple(names))
    require(
        len(names) <= MAX_CONSUMERS and len(set(names)) == len(names),
        f"{owner}: consumers must be at most {MAX_CONSUMERS} different names, got {names!r}",
    )


def check_needs(table: Table, owner: str) -> None:
    """What consumers need of an item are late columns; becomes a tuple for each of them, empty where none needs any."""
    given, late = table.consumer_needs, [c.name for c in table.columns if c.late]
    require(
        isinstance(given, (tuple, list)) and len(given) in (0, len(table.consumers)),
        f"{owner}: consumer_needs must name late columns for each of {table.consumers}, got {given!r}",
    )
    needs = []
    for consumer, entry in zip(table.consumers, given or (), strict=False):
        names = (entry,) if isinstance(entry, str) else entry
        require(
            isinstance(names, (tuple, list, set, frozenset)) and set(names) <= set(late),
            f"{owner}: consumer {consumer!r} needs {entry!r}, expected late columns ({', '.join(late) or 'none'})",
        )
        needs.append(tuple(name for name in late if name in names))
    force_setattr(table, "consumer_needs", tuple(needs) if any(needs) else ())


def check_served_once(table: Table, owner: str) -> None:
    """What consumers and groups need of the rest."""
    why = f"consumers {', '.join(table.consumers)}" if table.consumers else f"sampler {table.sampler!r}"
    require(
        isinstance(table.sampler, (Fifo, Groups)) and isinstance(table.limiter, (MinSize, Queue, StalenessBudget)),
        f"{owner}: {why}: expected sampler Fifo or Groups and limiter MinSize, Queue or StalenessBudget, got "
        f"{table.sampler!r} and {table.limiter!r}",
    )
    require(
        not table.max_times_sampled,
        f"{owner}: {why}: every item is served once (to each consumer); leave max_times_sampled out",
    )
    require(
        not table.requirements and not table.include_open,
        f"{owner}: {why}: items are served in turn; leave requirements and include_open out"
        + (", and say what each consumer needs: consumers={name: late columns}" if table.consumers else ""),
    )
    require(
        table.shards in (0, 1),
        f"{owner}: {why}: they are served by one shard, got shards={table.shards}; leave it out",
    )
    force_setattr(table, "shards", 1)
    if not isinstance(table.sampler, Groups):
        return
    groups = table.sampler
    require(isinstance(table.item, Whole), f"{owner}: {groups!r} needs item=Whole(), got {table.item!r}")
    require(
        not isinstance(table.limiter, Queue) or groups.deadline != float("inf"),
        f"{owner}: a Queue that is full of incomplete groups lets nobody complete them; give Groups a deadline",
    )
    if groups.filter is not None:
        column = table.column(groups.filter.column)
        require(
            column.per == "trajectory" and column.shape == (),
            f"{owner}: {groups.filter!r} needs a column with one number per trajectory, got {column!r}",
        )

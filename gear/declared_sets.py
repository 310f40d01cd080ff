"""What a table declares about late columns, open trajectories and versions, checked together.

Nothing here knows memory, sockets or kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from gear.columns import Column
from gear.limiters import Limiter, MinSize, StalenessBudget
from gear.rules import Fifo, Fresh, Lifo, Uniform, require

MOST_REQUIREMENTS = 8
MOST_LATE = 62

Requirements = tuple[tuple[str, ...], ...]


def requirements_of(owner: str, columns: Sequence[Column], given: object) -> Requirements:
    """Sets of late columns that draws may require, each in the order of the columns.

    Raises
    ------
    SchemaError
    """
    late = [c.name for c in columns if c.late]
    require(len(late) <= MOST_LATE, f"{owner}: {len(late)} late columns, at most {MOST_LATE} are supported")
    require(
        any(c.per == "step" and not c.late for c in columns),
        f"{owner}: columns has none with per='step' that comes with the insert; a trajectory needs at least one",
    )
    require(
        isinstance(given, (tuple, list)),
        f"{owner}: requirements must be a sequence of sets of late columns, got {given!r}",
    )
    found: list[tuple[str, ...]] = []
    for entry in given:  # type: ignore[attr-defined]
        names = (entry,) if isinstance(entry, str) else entry
        require(
            isinstance(names, (tuple, list, set, frozenset))
            and len(names) > 0
            and all(isinstance(name, str) for name in names),
            f"{owner}: a requirement must name one or more late columns, got {entry!r}",
        )
        unknown = sorted(set(names) - set(late))
        require(
            not unknown,
            f"{owner}: requirements name {', '.join(map(repr, unknown))}, expected late columns "
            f"({', '.join(late) or 'none is declared'}); declare Column(..., late=True)",
        )
        names = tuple(name for name in late if name in names)
        require(names not in found, f"{owner}: requirement {names} is declared twice")
        found.append(names)
    require(
        len(found) <= MOST_REQUIREMENTS,
        f"{owner}: {len(found)} requirements, at most {MOST_REQUIREMENTS} are supported",
    )
    return tuple(found)


def check_open(owner: str, sampler: object, limiter: Limiter, max_times: int, max_staleness: int | None) -> None:
    """Refuse what cannot go with draws of open trajectories.

    Raises
    ------
    SchemaError
    """
    problem = "include_open=True: what is drawn of a trajectory that still grows can not be"
    require(
        isinstance(sampler, (Uniform, Fifo, Lifo)),
        f"{owner}: {problem} weighed or shuffled; expected sampler Uniform, Fifo or Lifo, got {sampler!r}",
    )
    require(
        isinstance(limiter, MinSize) and not max_times,
        f"{owner}: {problem} counted; expected limiter MinSize and max_times_sampled=0, got {limiter!r} "
        f"and {max_times}",
    )
    require(max_staleness is None, f"{owner}: {problem} expired; leave max_staleness out")


def check_versions(owner: str, publish: str, sampler: object, limiter: Limiter, max_staleness: int | None) -> None:
    """Refuse versions where a trajectory is published before it ends: its version counts for the whole of it.

    Raises
    ------
    SchemaError
    """
    by_version = max_staleness is not None or isinstance(sampler, Fresh)
    require(
        not by_version or publish == "end",
        f"{owner}: max_staleness and sampler Fresh go by the version of whole trajectories; declare publish='end'",
    )


def is_versioned(sampler: object, limiter: Limiter, max_staleness: int | None) -> bool:
    """Whether trajectories have versions."""
    return max_staleness is not None or isinstance(sampler, Fresh) or isinstance(limiter, StalenessBudget)

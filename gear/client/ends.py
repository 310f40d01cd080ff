"""The ends of several environments' trajectories in one step: masks and what is stored with them, checked at once.

Everything that can be refused is refused here, before a row of the step is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gear.client.priorities import as_priorities
from gear.client.values import rows_of
from gear.errors import DataError
from gear.schema import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from gear.client.port import Port
    from gear.client.spread import Spread
    from gear.client.track import Track


class End(NamedTuple):
    """A trajectory that has ended and is to be submitted.

    Attributes
    ----------
    env : number of its environment.
    final : dtype[*shape] per per-step column, None where none is given.
    values : dtype[*shape] per per-trajectory column, None if they are given already.
    """

    env: int
    terminated: bool
    final: list[np.ndarray | None] | None
    priority: float | None
    values: list[np.ndarray] | None


def mask(name: str, given: Any, count: int) -> npt.NDArray[np.bool_]:
    """bool[count]; None stands for False.

    Raises
    ------
    DataError
    """
    if type(given) is np.ndarray and given.dtype is _BOOL and given.shape == (count,):
        return given
    return np.zeros(count, np.bool_) if given is None else rows_of(Column(name, (), "bool"), given, count)


def endings(
    port: Port | Spread,
    tracks: Sequence[Track],
    by_rows: bool,
    ended: npt.NDArray[np.bool_],
    terminated: npt.NDArray[np.bool_],
    final: Mapping[str, Any] | None,
    priority: Any,
    trajectory: Mapping[str, Any] | None,
) -> list[End]:
    """The ends of the environments `ended`; rows of the others are not looked at.

    Parameters
    ----------
    ended, terminated : bool[N]
    final, trajectory : columns of [N, *shape], optional
    priority : float[N], optional

    Raises
    ------
    DataError
        If what is given does not fit the table, or what it needs is not given.
    """
    count, which = len(ended), np.flatnonzero(ended)
    finals = None if final is None else port.codec.finals(final, count)
    values = None if trajectory is None else port.codec.values_of(trajectory, count)
    raw = [None] * len(which) if priority is None else _priorities(priority, which, count, by_rows)
    for i in which.tolist():
        if values is not None and by_rows and tracks[i].described:
            raise DataError(
                f"environment {i}: rows may be published already; give the per-trajectory columns once, with set()"
            )
        if values is None and not tracks[i].described:
            names = ", ".join(c.name for c in port.codec.trajectory_columns)
            raise DataError(
                f"environment {i}: the trajectory needs its per-trajectory columns ({names}): give them with set() "
                "or trajectory="
            )
    return [
        End(
            i,
            bool(terminated[i]),
            None if finals is None else [None if f is None else np.array(f[i]) for f in finals],
            one,
            None if values is None else [np.array(v[i]) for v in values],
        )
        for i, one in zip(which.tolist(), raw, strict=True)
    ]


def _priorities(given: Any, which: npt.NDArray[np.intp], count: int, by_rows: bool) -> list[float]:
    """Raw priorities of the trajectories `which` alone: others have none yet, their rows may hold anything."""
    if by_rows:
        raise DataError(
            "priority covers all items of a trajectory, but with publish='rows' part of it may be published already; "
            'open the writer with publish="end", or update_priorities once they are sampled'
        )
    array = np.asarray(given)
    if array.shape != (count,):
        raise DataError(f"priority: expected {count} numbers, one per environment, got shape {list(array.shape)}")
    return as_priorities(array[which]).tolist()


_BOOL = np.dtype(np.bool_)

"""A client's verbs that store trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from gear.client import arguments as check
from gear.client.autoreset import autoreset_mode
from gear.client.deadline import left, until
from gear.client.state import State
from gear.errors import DataError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gear.client.port import Priority
    from gear.client.vector import VectorWriter
    from gear.client.writer import Writer
    from gear.grouping import Key


class Inserting(State):
    """Insert whole trajectories, or open a writer that appends their steps."""

    def insert(
        self,
        trajectory: Mapping[str, Any],
        table: str | None = None,
        *,
        priority: Priority = None,
        final: Mapping[str, Any] | None = None,
        terminated: bool = False,
        version: int | None = None,
        wait: bool = True,
        timeout: float | None = None,
        group: Key | None = None,
    ) -> None:
        """Insert one whole trajectory.

        Parameters
        ----------
        trajectory : dict
            Per-step columns as [T, *shape], per-trajectory columns as [*shape]; nested dicts are ``a/b``.
        priority : float or array of one per item, optional
            Default: the largest raw priority so far. Its resolution is that of float32, see `update_priorities`.
        final : dict, optional
            Last values of any per-step columns, such as the observation after the last step.
        terminated : bool
            Whether the environment reached a terminal state.
        version : int, optional
            Of the policy that made it, in tables that go by versions; default the table's (`set_version`) when it is
            committed.
        wait : bool
            Return when it is committed; False queues it behind a bounded window, see `flush`.
        group : int, str or bytes, optional
            Key of the trajectory's group, an int64 or up to 30 bytes, where the table draws `Groups`. One key names
            one group at a time: a key used again begins a new group once the one before is complete.

        Raises
        ------
        DataError
            If it does not fit the table; nothing has changed.
        TableNotFound
            Showing the line that creates the table.
        DeadlineExceeded
            Nothing was inserted, unless the message says how many pieces of it were.
        """
        timeout = check.seconds(timeout)
        port = self._tables.ports.get(table) or self._tables.port(table, timeout, trajectory)
        encoded, checked, last = port.encode(trajectory, priority, final, group)
        number = check.version_of(port.table, version)
        deadline = until(timeout)
        chosen, sequences = port.insert(encoded, checked, last, terminated, timeout, number)
        if wait:
            chosen.settle(sequences, left(deadline))

    def insert_many(
        self,
        trajectories: Sequence[Mapping[str, Any]] | Mapping[str, Any],
        table: str | None = None,
        *,
        offsets: Any = None,
        priorities: Any = None,
        terminated: Any = False,
        final: Mapping[str, Any] | None = None,
        versions: Any = None,
        wait: bool = True,
        timeout: float | None = None,
        groups: Sequence[Key] | None = None,
    ) -> npt.NDArray[np.int64] | None:
        """Insert N whole trajectories, pipelined; each is committed by itself, in order.

        Parameters
        ----------
        trajectories : sequence of dict, or dict
            Trajectories as for `insert`; or packed: per-step columns as [sum T, *shape], all trajectories one
            behind the other, and per-trajectory columns as [N, *shape].
        offsets : int64[N + 1], optional
            Packed: trajectory k is rows offsets[k] to offsets[k + 1], at least one.
        priorities : float[N] or sequence, optional
            As `insert` takes each.
        terminated : bool or bool[N]
        final : dict, optional
            Last values of any per-step columns, [N, *shape].
        versions : int or int[N], optional
            As `insert` takes each.
        wait : bool
            Return when all are committed; False queues them behind a bounded window, see `flush`.
        groups : sequence of N keys, optional
            As `insert` takes each.

        Returns
        -------
        int64[N] or None
            If waited for, an id of each trajectory, of the item that begins with its first row: for `fill`,
            `select(ids=...)` and `update_priorities`, without a draw in between.

        Raises
        ------
        DataError
            Naming the trajectory that does not fit; nothing was inserted.
        DeadlineExceeded
            Its message and its attribute `committed` say how many were committed; the others were not.
        """
        timeout = check.seconds(timeout)
        if not hasattr(trajectories, "__len__"):
            raise DataError(
                f"insert_many: expected a list of dicts, or one dict with offsets=, got {type(trajectories).__name__}"
            )
        if not len(trajectories):
            return np.empty(0, np.int64) if wait else None
        from gear.client.packed import insert_many

        example = None if isinstance(trajectories, Mapping) else trajectories[0]
        port = self._tables.port(table, timeout, example)
        return insert_many(port, trajectories, offsets, priorities, terminated, final, versions, timeout, groups, wait)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was inserted or written without waiting is committed.

        Raises
        ------
        DeadlineExceeded
            Saying how many commits are still queued; they stay so.
        """
        timeout = check.seconds(timeout)
        deadline = until(timeout)
        for writer in list(self._writers):
            writer.publish(left(deadline))
        for port in self._tables:
            port.flush(left(deadline))

    @overload
    def writer(
        self,
        table: str | None = None,
        *,
        publish: Literal["end", "rows"] | None = None,
        version: int | None = None,
    ) -> Writer: ...

    @overload
    def writer(
        self,
        table: str | None = None,
        *,
        num_envs: int,
        autoreset: object = None,
        publish: Literal["end", "rows"] | None = None,
        version: int | None = None,
    ) -> VectorWriter: ...

    def writer(
        self,
        table: str | None = None,
        *,
        num_envs: int | None = None,
        autoreset: object = None,
        publish: Literal["end", "rows"] | None = None,
        version: int | None = None,
    ) -> Writer | VectorWriter:
        """A writer that appends the steps of one trajectory after the other.

        Parameters
        ----------
        num_envs : int, optional
            Steps of that many vectorised environments are appended at once, each to a trajectory of its own.
        autoreset : {"next_step", "same_step", "disabled"} or gymnasium.vector.AutoresetMode, optional
            What these environments do after an episode's end, ``envs.metadata["autoreset_mode"]``. With
            ``next_step`` the step after an end is a mere reset and not stored. Default: ``next_step``, and a
            step after an end that does not start from the final observation is refused.
        publish : {"end", "rows"}, optional
            When rows become visible. Default: what the table declares, and "rows" needs a table that does.
        version : int, optional
            Of the policy that acts, as for `insert`: of trajectories that begin until ``writer.version = v`` says
            another one. A trajectory is of the version with which it began.
        """
        port = self._tables.port(table, None)
        when = check.publishing(port.table, publish)
        made: Writer | VectorWriter
        if num_envs is None:
            from gear.client.writer import Writer

            made = Writer(port, when)
        else:
            from gear.client.vector import VectorWriter

            if port.table.group_size:
                raise SchemaError(
                    f"writer: table {port.name!r} draws groups; insert their trajectories with insert(..., group=key)"
                )
            made = VectorWriter(
                port, when, check.count("num_envs", num_envs, check.MOST_ENVS), autoreset_mode(autoreset)
            )
        if version is not None:
            made.version = version
        self._writers.add(made)
        return made

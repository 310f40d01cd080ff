"""A client's verbs for trajectories that belong to a table and grow there, by whoever goes on with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gear.batch import Update
from gear.client import arguments as check
from gear.client.priorities import as_ids, as_priorities
from gear.client.state import State
from gear.errors import DataError
from gear.storage.fields import ID_SHARD_SHIFT, ID_TABLE_SHIFT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gear.client.port import Port, Priority


class Growing(State):
    """Open, append, seal. The rows go to the shard with the call, on every data path."""

    def open(
        self,
        table: str | None = None,
        *,
        columns: Mapping[str, Any] | None = None,
        version: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Open a trajectory that belongs to the table: any client may append to it, and no client's death ends it.

        It is not evicted while it is open; open ones take at most half of the capacity, and this call, like `append`,
        waits where they would take more. One that is not appended to for the table's `open_ttl` seconds is dropped. It
        is sampled once it is sealed, before only with ``include_open=True``.

        Parameters
        ----------
        columns : dict, optional
            The per-trajectory columns; zeros until `seal` gives them.
        version : int, optional
            Of the policy that begins it; default the table's. `max_staleness` goes by it.

        Returns
        -------
        int
            Its id, good for `append`, `seal`, and afterwards as that of its first item.

        Raises
        ------
        DeadlineExceeded
            Saying what it waited for.
        """
        timeout = check.seconds(timeout)
        port = self._tables.port(table, timeout).choose()
        number = check.version_of(port.table, version)
        return port.session.begin(port.open, _values(port, columns), number, timeout)

    def append(
        self,
        trajectory: int,
        rows: Mapping[str, Any],
        *,
        at: int,
        table: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Append rows to an open trajectory, if it has `at` of them: applied once, however often it is tried.

        Parameters
        ----------
        trajectory : int
            The id from `open`.
        rows : dict
            Every per-step column as [n, *shape].
        at : int
            Its length before.
        table : str, optional
            Needed where the client has not used the table yet and there are several.

        Returns
        -------
        int
            Its length now.

        Raises
        ------
        DataError
            If it has another length (which the message says), is sealed or gone, or the rows do not fit. Nothing was
            appended.
        DeadlineExceeded
            Saying what it waited for; nothing was appended.
        """
        timeout, port = check.seconds(timeout), self._port_of(trajectory, table, timeout)
        length = check.position("at", at)
        steps, arrays = port.codec.chunk(rows)
        if not steps:
            raise DataError("append: expected at least one row, got none")
        columns = {c.name: array.tobytes() for c, array in zip(port.codec.step_columns, arrays, strict=True)}
        return port.session.append(port.open, int(trajectory), length, steps, columns, timeout)

    def seal(
        self,
        trajectory: int,
        *,
        terminated: bool = False,
        final: Mapping[str, Any] | None = None,
        columns: Mapping[str, Any] | None = None,
        priority: Priority = None,
        table: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """End an open trajectory: from now on it is as one that was inserted.

        Parameters
        ----------
        terminated, final, priority
            As in `insert`.
        columns : dict, optional
            The per-trajectory columns, unless `open` gave them.

        Returns
        -------
        int
            Its length.

        Raises
        ------
        DataError
            If it is sealed or gone, has no rows, or something does not fit.
        DeadlineExceeded
            Saying what the limiter waited for; it is still open.
        """
        timeout, port = check.seconds(timeout), self._port_of(trajectory, table, timeout)
        last = {} if final is None else _final(port, final)
        given = np.empty(0)
        if priority is not None:
            given = as_priorities(np.atleast_1d(priority))  # type: ignore[arg-type]
        values = _values(port, columns)
        return port.session.seal(port.open, int(trajectory), bool(terminated), last, values, given, timeout)

    def length(self, trajectory: int, *, table: str | None = None, timeout: float | None = None) -> int:
        """Rows of an open trajectory: where to go on after an append whose outcome is not known.

        Raises
        ------
        DataError
            If it is sealed or gone.
        """
        timeout = check.seconds(timeout)
        port = self._port_of(trajectory, table, timeout)
        return port.session.length(port.open, int(trajectory), timeout)

    def drop(self, trajectories: Any, *, table: str | None = None, timeout: float | None = None) -> Update:
        """Drop trajectories, open or sealed; they leave at once, also for consumers that have not acknowledged them.

        Whoever reads one of them keeps its rows until he lets go. A member of a group goes with all of the group.

        Parameters
        ----------
        trajectories : int or int64[N]
            Each names its trajectory by any of its items, as in `Batch.ids` or `Page.ids`.

        Returns
        -------
        Update
            How many ids were applied and how many were stale: their trajectory has left.

        Raises
        ------
        DataError
            If a writer still writes one of them; none of its table is dropped then.
        """
        timeout, ids = check.seconds(timeout), check.at_once(as_ids(np.atleast_1d(trajectories)))
        applied = stale = 0
        for part in np.unique(ids >> ID_SHARD_SHIFT).tolist():
            mine = ids[ids >> ID_SHARD_SHIFT == part].copy()
            port = self._port_of(int(mine[0]), table, timeout)
            dropped = port.session.drop(port.open, mine, timeout)
            applied, stale = applied + dropped.applied, stale + dropped.stale
        return Update(applied, stale)

    def _port_of(self, trajectory: int, table: str | None, timeout: float | None) -> Port:
        """The part of a table that an id is of."""
        number = int(as_ids([trajectory])[0])
        index, shard = number >> ID_TABLE_SHIFT, number >> ID_SHARD_SHIFT & 0xFF
        known = [self._tables.port(table, timeout)] if table is not None else list(self._tables)
        for port in known or [self._tables.port(None, timeout)]:
            layout = port.open.layouts.get(shard)
            if layout is not None and layout.index == index:
                return port.on(shard)
        if table is not None:
            raise DataError(f"trajectory {trajectory} is not of table {table!r}; name its table")
        raise DataError(f"trajectory {trajectory} is of a table that this client has not used yet; name it, table=")


def _values(port: Port, given: Mapping[str, Any] | None) -> bytes:
    """The bytes of the per-trajectory columns, none if they are not given."""
    return b"" if given is None else b"".join(row.tobytes() for row in port.codec.trajectory_rows(given))


def _final(port: Port, given: Mapping[str, Any]) -> dict[str, bytes]:
    rows = port.codec.final(given)
    return {c.name: r.tobytes() for c, r in zip(port.codec.step_columns, rows, strict=True) if r is not None}

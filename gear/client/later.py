"""A client's verbs about what comes after an insert: late columns and versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gear.batch import Update
from gear.client import arguments as check
from gear.client.filling import encode
from gear.client.priorities import as_ids
from gear.client.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping


class Later(State):
    """`fill` completes what was inserted, `set_version` makes it old."""

    def fill(
        self,
        ids: Any,
        columns: Mapping[str, Any],
        *,
        offsets: Any = None,
        timeout: float | None = None,
    ) -> Update:
        """Fill late columns of whole trajectories.

        Draws that require them (``require=``) may have these trajectories from now on, and those that wait are
        woken. Columns that are there already are overwritten; that wakes nobody and changes no draw.

        Parameters
        ----------
        ids : int64[N]
            Each names its trajectory by any of its items, as in `Batch.ids` or `Page.ids`; all of one table. Of
            duplicates the last wins.
        columns : dict
            Per-step columns as a list of N arrays [T, *shape], a row for every step of the trajectory (of the piece,
            where it was split at `max_length`), or packed with `offsets`: [sum T, *shape]. Per-trajectory columns
            as [N, *shape].
        offsets : int64[N + 1], optional
            Packed: the rows of ids[k] are offsets[k] to offsets[k + 1], as `cu_seqlens` of packed batches.

        Returns
        -------
        Update
            How many ids were applied and how many were stale: their trajectory has left.

        Raises
        ------
        DataError
            Naming the column or id that does not fit; nothing was filled.
        """
        timeout, named = check.seconds(timeout), check.at_once(as_ids(ids))
        parts = self._tables.by_id(named)
        if not parts:
            return Update(0, 0)
        port = check.one_table(parts).choose()  # tables with late columns lie on one shard
        lengths, rows = encode(port.table, len(named), columns, offsets)
        return port.session.fill(port.open, named, lengths, rows, timeout)

    def set_version(self, table: str | None, version: int, *, timeout: float | None = None) -> int:
        """Tell a table the version of the policy that is being trained.

        Trajectories that are then more than `max_staleness` versions behind leave, and inserts that waited for a
        newer version (`StalenessBudget`) go on. It never falls: an older version changes nothing.

        Returns
        -------
        int
            The table's version now.
        """
        timeout, number = check.seconds(timeout), check.version(version)
        parts = self._tables.port(table, timeout).living()
        return max(port.session.set_version(port.open, number, timeout) for port in parts)

    def version(self, table: str | None = None, *, timeout: float | None = None) -> int:
        """The version that the table was told last, 0 at first."""
        timeout = check.seconds(timeout)
        parts = self._tables.port(table, timeout).living()
        return max(port.session.set_version(port.open, None, timeout) for port in parts)

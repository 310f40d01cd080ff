"""What comes after an insert, over tables of this process: late columns, versions, open trajectories."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gear.transport.local import Local, LocalSession, deadline_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from gear.batch import Update
    from gear.storage.growing import Waits
    from gear.transport.base import OpenTable


class LaterLocally(LocalSession):
    """The part of an `InprocSession` that changes what is stored already."""

    def fill(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        columns: Mapping[str, memoryview],
        timeout: float | None,
    ) -> Update:
        """Write late columns of whole trajectories."""
        with self._lock:
            local = self._local(table)
            update = local.stored.fill(ids, lengths, columns)
            self._advance(local)
            return update

    def set_version(self, table: OpenTable, version: int | None, timeout: float | None) -> int:
        """Raise the table's policy version, or ask for it."""
        with self._lock:
            local = self._local(table)
            if version is None:
                return local.stored.version
            current = local.queue.set_version(version)
            self._advance(local)
            return current

    def begin(self, table: OpenTable, values: bytes, version: int | None, timeout: float | None) -> int:
        """Open a trajectory that belongs to the table."""
        number = -1 if version is None else version
        return self._attempt(
            table, "open", lambda local: local.stored.growing.open(local.client, values, number), timeout
        )

    def append(
        self,
        table: OpenTable,
        trajectory: int,
        at: int,
        rows: int,
        columns: Mapping[str, bytes],
        timeout: float | None,
    ) -> int:
        """Append rows if the trajectory has `at` of them."""
        run = lambda local: local.stored.growing.append(local.client, trajectory, at, rows, columns)
        return self._attempt(table, "append", run, timeout)

    def seal(
        self,
        table: OpenTable,
        trajectory: int,
        terminated: bool,
        final: Mapping[str, bytes],
        values: bytes,
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> int:
        """End an open trajectory."""
        run = lambda local: local.stored.growing.seal(local.client, trajectory, terminated, final, values, priorities)
        return self._attempt(table, "seal", run, timeout)

    def length(self, table: OpenTable, trajectory: int, timeout: float | None) -> int:
        """Rows of an open trajectory."""
        with self._lock:
            local = self._local(table)
            self._expire(local)
            return local.stored.growing.length(trajectory)

    def drop(self, table: OpenTable, ids: npt.NDArray[np.int64], timeout: float | None) -> Update:
        """Drop trajectories."""
        with self._lock:
            local = self._local(table)
            try:
                return local.queue.drop(ids)
            finally:
                self._advance(local)

    def _attempt(self, table: OpenTable, what: str, run: Callable[[Local], int | Waits], timeout: float | None) -> int:
        deadline = deadline_of(timeout)
        with self._lock:
            local = self._local(table)
            self._expire(local)
            result: int = self._await(
                local,
                deadline,
                lambda done: local.queue.attempt(local.client, what, lambda: run(local), deadline, done),
            )
            self._keep_time(local)
            return result

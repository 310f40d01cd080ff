"""Commits to tables of the own process: done at once, or parked behind the limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.errors import GearError
from gear.storage.fields import BEGIN
from gear.storage.layout import COMMIT_ENTRY
from gear.storage.names import names_of
from gear.storage.queue import CommitDone
from gear.transport.base import NO_SEAM, OpenTable, Seam
from gear.transport.entries import number
from gear.transport.local import Local, LocalSession, deadline_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

WINDOW = 1024
"""Commit entries that may wait for the limiter before `submit` waits too."""

_NO_PRIORITIES = np.empty(0, np.float64)


class CommitsLocally(LocalSession):
    """The part of an in-process `Session` that commits."""

    def submit(
        self,
        table: OpenTable,
        slot: int,
        blocks: Sequence[int],
        length: int,
        flags: int,
        priorities: float | npt.NDArray[np.float64] | None,
        timeout: float | None,
        seam: Seam = NO_SEAM,
    ) -> int:
        """Commit one entry now, or queue it behind the limiter."""
        if priorities is None:
            given = _NO_PRIORITIES
        else:
            given = np.array(priorities, np.float64, ndmin=1)  # a copy: the entry may have to wait
        entry = np.empty(1, COMMIT_ENTRY)
        with self._lock:
            local = self._local(table)
            if local.pending >= WINDOW:
                self._sleep_until(local, lambda: local.pending < WINDOW, deadline_of(timeout))
            local.sequence += 1
            sequence = local.sequence
            entry[0] = (sequence, slot, len(blocks), length, flags, len(given), seam.steps, seam.follows)
            named = np.array(blocks, np.int32)
            self._commit(local, entry, named, given, named, entry["slot"][: flags & BEGIN != 0])
            return sequence

    def submit_many(
        self,
        table: OpenTable,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> int:
        """Commit entries now, or queue them behind the limiter."""
        n = len(entries)
        with self._lock:
            local = self._local(table)
            if local.pending + n > WINDOW:
                self._sleep_until(local, lambda: local.pending + n <= WINDOW, deadline_of(timeout))
            first = local.sequence + 1
            number(entries, first)
            local.sequence += n
            self._commit(local, entries, blocks, priorities, blocks, entries["slot"].copy())
            return first

    def _commit(
        self,
        local: Local,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
        leased: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int32],
    ) -> None:
        """Commit numbered entries now or later; `leased` and `slots` end with them if they are refused."""
        n, first = len(entries), int(entries["sequence"][0])
        local.pending += n

        def done(result: CommitDone | GearError) -> None:
            local.pending -= n
            if isinstance(result, CommitDone):
                if result.lost:
                    local.open.lost.update(result.lost)
            else:
                local.errors[first] = result
                local.stored.end_leases(local.client, leased, slots)

        local.queue.commit(local.client, entries, blocks, priorities, done)
        if self._waiting:
            self._changed.notify_all()
        if local.served:  # a group may be late sooner than readers that sleep know of
            self._keep_time(local)
        error = local.errors.pop(first, None)
        if error is not None:
            raise error

    def wait(self, table: OpenTable, sequence: int, timeout: float | None) -> None:
        """Return once every entry up to `sequence` is committed."""
        with self._lock:
            local = self._local(table)

            def over() -> bool:
                if not local.pending or local.stored.committed(local.client) >= sequence:
                    return True
                return bool(local.errors) and min(local.errors) <= sequence

            if local.pending:
                self._sleep_until(local, over, deadline_of(timeout))
            if local.errors and min(local.errors) <= sequence:
                raise local.errors.pop(min(local.errors))

    def withdraw(self, table: OpenTable, first: int, last: int) -> int:
        """Drop the entries first..last that are not committed; returns how many."""
        with self._lock:
            local = self._local(table)
            dropped = local.queue.withdraw(local.client, first, last)
            self._changed.notify_all()
            return dropped

    def identify(
        self, table: OpenTable, sequences: npt.NDArray[np.int64], timeout: float | None
    ) -> npt.NDArray[np.int64]:
        """Ids of trajectories that this client committed."""
        with self._lock:
            local = self._local(table)
            return names_of(local.stored, local.client, sequences)

    def committed(self, table: OpenTable) -> int:
        """Highest sequence number committed."""
        with self._lock:
            local = self._local(table)
            return local.stored.committed(local.client)

    def acknowledged(self, table: OpenTable) -> int:
        """Highest sequence number committed."""
        return self.committed(table)

    def pending(self, table: OpenTable) -> int:
        """Commit entries that wait for the limiter."""
        return self._by_open[id(table)].pending

"""Blocks and slots a client holds in advance, so that an insert need not ask the shard.

A pool belongs to one table of one client. It hands out runs of neighbouring blocks where it can, asks for
more in bulk, and must give back what it holds. After a fork it is empty in the child: the parent's leases
are the parent's.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from gear.storage.layout import Grant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from gear.transport.base import OpenTable, Session

    Blocks = Sequence[int] | npt.NDArray[np.int32]

MOST_AHEAD = 128
"""Trajectories' worth of leases that a busy client keeps at most."""


class LeasePool:
    """Leases of one table.

    Parameters
    ----------
    session, table
        Where leases come from.
    """

    def __init__(self, session: Session, table: OpenTable) -> None:
        self._session, self._table = session, table
        self._lock = threading.Lock()
        self._runs: list[list[int]] = []  # [first block, how many], the last one is used first
        self._loose: list[npt.NDArray[np.int32]] = []  # blocks held that nobody has looked at
        self._slots: list[int] = []
        self._held = 0
        self._ahead = 1

    @property
    def blocks(self) -> int:
        """Blocks held."""
        return self._held

    @property
    def slots(self) -> int:
        """Slots held."""
        return len(self._slots)

    def take(self, blocks: int, timeout: float | None) -> tuple[int, Sequence[int]] | None:
        """A slot and that many blocks, neighbours if possible; None if the shard lends no more.

        Raises
        ------
        ConnectionLost, DeadlineExceeded
            From the session; nothing is taken then.
        """
        with self._lock:
            runs, slots = self._runs, self._slots
            if slots and runs:
                run = runs[-1]
                first, count = run
                if count >= blocks:
                    if count == blocks:
                        runs.pop()
                    else:
                        run[0] += blocks
                        run[1] -= blocks
                    self._held -= blocks
                    return slots.pop(), range(first, first + blocks)
            if not self._refill(blocks, 1, timeout):
                return None
            return slots.pop(), self._cut(blocks)

    def take_blocks(self, blocks: int, timeout: float | None) -> Sequence[int] | None:
        """That many blocks for a trajectory that has its slot; None if the shard lends no more."""
        with self._lock:
            return self._cut(blocks) if self._refill(blocks, 0, timeout) else None

    def take_many(
        self, needs: npt.NDArray[np.int64], timeout: float | None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Leases for as many trajectories, from the first on, as there are: (slots, blocks).

        Parameters
        ----------
        needs : int64[N]
            Blocks that each trajectory takes, at least one.

        Returns
        -------
        slots : int32[n], n <= N, one for each trajectory that has its leases.
        blocks : int32[sum of needs[:n]], theirs one behind the other.
        """
        bounds = needs.cumsum()
        total, count = int(bounds[-1]), len(needs)
        with self._lock:
            missing = total - self._held, count - len(self._slots)
            if missing[0] > 0 or missing[1] > 0:
                grant = self._session.lease(self._table, max(0, missing[0]), max(0, missing[1]), timeout)
                if len(grant.blocks) == total and len(grant.slots) == count:  # nothing was held, as mostly
                    return grant.slots, grant.blocks
                self._slots.extend(grant.slots.tolist())
                self._loose.append(grant.blocks)
                self._held += len(grant.blocks)
                count = min(count, len(self._slots))
                if self._held < total:
                    count = min(count, int(np.searchsorted(bounds, self._held, "right")))
                if not count:
                    return np.empty(0, np.int32), np.empty(0, np.int32)
                total = int(bounds[count - 1])
            slots = np.array(self._slots[-count:], np.int32)
            del self._slots[-count:]
            return slots, self._cut_all(total)

    def drain(self, blocks: int, want_slot: bool) -> tuple[int | None, list[int]]:
        """Up to that many blocks, and a slot if wanted and held, without asking for more."""
        with self._lock:
            slot = self._slots.pop() if want_slot and self._slots else None
            return slot, list(self._cut(min(blocks, self._held)))

    def put(self, slots: Iterable[int], blocks: Blocks) -> None:
        """Take back leases that were not used."""
        with self._lock:
            self._slots.extend(slots)
            self._add(blocks)

    def surrender(self, blocks: int | None = None) -> Grant:
        """Remove up to that many blocks (default: all) from the pool, to be given back.

        Slots that no block is left for go with them.
        """
        with self._lock:
            gone = self._cut(self._held if blocks is None else min(blocks, self._held))
            slots, self._slots = self._slots[self._held :], self._slots[: self._held]
            self._ahead = 1
        return Grant(np.array(list(gone), np.int32), np.array(slots, np.int32))

    def forget(self) -> None:
        """Drop everything without giving it back, in the child of a fork."""
        self._lock = threading.Lock()
        self._runs, self._loose, self._slots, self._held, self._ahead = [], [], [], 0, 1

    def _refill(self, blocks: int, slots: int, timeout: float | None) -> bool:
        """Have at least that many, asking for a growing number ahead of need."""
        if self._held >= blocks and len(self._slots) >= slots:
            return True
        ahead = self._ahead
        grant = self._session.lease(self._table, blocks * ahead, max(slots, ahead), timeout)
        self._ahead = min(2 * ahead, MOST_AHEAD)
        self._slots.extend(grant.slots.tolist())
        self._add(grant.blocks)
        return self._held >= blocks and len(self._slots) >= slots

    def _sort_loose(self) -> None:
        """Make runs of the blocks that were only kept as they came."""
        for blocks in self._loose:
            self._held -= len(blocks)
            self._add(blocks)
        self._loose.clear()

    def _add(self, blocks: Blocks) -> None:
        """Add block numbers as runs."""
        runs = self._runs
        if not len(blocks):
            return
        falling = np.sort(np.asarray(blocks, np.int64))[::-1]
        breaks = np.flatnonzero(np.diff(falling) != -1) + 1
        firsts, lasts = [0, *breaks.tolist()], [*breaks.tolist(), len(falling)]
        lowest = falling[np.array(lasts) - 1].tolist()
        # Taken from the end of the list and cut from the front of a run: numbers rise again in use.
        added = [[low, last - first] for low, first, last in zip(lowest, firsts, lasts, strict=True)]
        if runs and runs[-1][0] == falling[0] + 1:
            runs[-1][0] = added[0][0]
            runs[-1][1] += added.pop(0)[1]
        runs += added
        self._held += len(falling)

    def _cut_all(self, blocks: int) -> npt.NDArray[np.int32]:
        """Remove that many held blocks: as they came, then run after run."""
        loose = self._loose
        if loose:
            there = loose[0] if len(loose) == 1 else np.concatenate(loose)
            self._loose = [there[blocks:]] if len(there) > blocks else []
            self._held -= min(blocks, len(there))
            if len(there) >= blocks:
                return there[:blocks]
        parts, left, runs = ([there], blocks - len(there), self._runs) if loose else ([], blocks, self._runs)
        blocks = left
        while left:
            first, count = runs[-1]
            part = min(count, left)
            parts.append(np.arange(first, first + part, dtype=np.int32))
            if part == count:
                runs.pop()
            else:
                runs[-1] = [first + part, count - part]
            left -= part
        self._held -= blocks
        return np.concatenate(parts)

    def _cut(self, blocks: int) -> Sequence[int]:
        """Remove that many held blocks: one run if there is a long enough one, else the longest first."""
        self._sort_loose()
        runs = self._runs
        self._held -= blocks
        for index in range(len(runs) - 1, -1, -1):
            first, count = runs[index]
            if count >= blocks:
                if count == blocks:
                    del runs[index]
                else:
                    runs[index] = [first + blocks, count - blocks]
                return range(first, first + blocks)
        taken: list[int] = []
        runs.sort(key=lambda run: run[1])
        while len(taken) < blocks:
            first, count = runs[-1]
            part = min(count, blocks - len(taken))
            taken.extend(range(first, first + part))
            if part == count:
                runs.pop()
            else:
                runs[-1] = [first + part, count - part]
        return taken

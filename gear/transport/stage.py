"""Where rows wait that travel to their shard: private memory laid out as the table's, and numbers leased from it.

Blocks and slots of the stage are the client's own; the shard gives the rows a place of theirs when their commit's
turn comes. A number is free again once the shard has acknowledged the rows, so what the stage lends bounds what is
under way. Low numbers go first: only as much of the memory is ever touched as is used at a time.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from gear.storage.layout import Grant

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from gear.storage.layout import Layout

AHEAD = 16 << 20
"""Bytes of rows that are lent in advance; commits of longer trajectories get theirs on top."""


class Stage:
    """The numbers of one table's stage.

    Parameters
    ----------
    layout : Layout
    segment : uint8[layout.nbytes]
    """

    def __init__(self, layout: Layout, segment: npt.NDArray[np.uint8]) -> None:
        region = layout.regions["arena"]
        self.blocks = segment[region.offset :][: region.nbytes].reshape(layout.blocks, layout.block_bytes)
        self._numbers = _Numbers(layout.blocks), _Numbers(layout.slots)
        # What is kept back is there for commits, which end by themselves: no two writers wait for each other.
        longest = layout.blocks_for(layout.max_length + 1)
        self._lent = min(max(1, AHEAD // layout.block_bytes), max(0, layout.blocks - longest)), layout.slots - 1
        self.most = min(layout.blocks, self._lent[0] + longest)
        """Blocks that are lent at most at a time, those of trajectories that grow apart."""
        base, values = layout.regions["trajectories"], layout.per_trajectory
        self._values = [
            segment[base.offset + p.offset :][: layout.slots * p.stride].reshape(-1, p.stride)[:, : p.width]
            for p in values
        ]
        if layout.table.versioned:
            self._values.append(layout.view(segment, "versions")[:, None].view(np.uint8))

    def lease(self, blocks: int, slots: int) -> Grant:
        """Up to that many, at once."""
        taken = [
            numbers.take(max(0, min(want, most - numbers.used)))
            for numbers, want, most in zip(self._numbers, (blocks, slots), self._lent, strict=True)
        ]
        return Grant(*(np.array(one, np.int32) for one in taken))

    def has(self, blocks: int, slots: int, kept: int) -> bool:
        """Whether exactly that many are free for a commit; `kept` blocks stay though their rows have arrived."""
        room = min(self._numbers[0].free, self.most + kept - self._numbers[0].used)
        return room >= blocks and self._numbers[1].free >= slots

    def take(self, blocks: int, slots: int) -> Grant:
        """Exactly that many."""
        return Grant(
            *(np.array(n.take(want), np.int32) for n, want in zip(self._numbers, (blocks, slots), strict=True))
        )

    def put(self, blocks: Iterable[int], slots: Iterable[int]) -> None:
        """Free numbers; those that are free already stay so."""
        for numbers, back in zip(self._numbers, (blocks, slots), strict=True):
            numbers.put(back)

    def values(self, slots: npt.NDArray[np.int32]) -> bytes:
        """The per-trajectory rows of slots, one slot after the other."""
        if not self._values:
            return b""
        return np.concatenate([column[slots] for column in self._values], axis=1).tobytes()


class _Numbers:
    """Numbers 0..count-1, the lowest free ones first."""

    def __init__(self, count: int) -> None:
        self._count, self._next, self.used = count, 0, 0
        self._back: list[int] = []
        self._taken = bytearray(count)

    @property
    def free(self) -> int:
        """How many are free."""
        return self._count - self.used

    def take(self, want: int) -> list[int]:
        """That many; the caller knows that they are free."""
        taken = [heapq.heappop(self._back) for _ in range(min(want, len(self._back)))]
        more = want - len(taken)
        taken += range(self._next, self._next + more)
        self._next += more
        self.used += want
        for number in taken:
            self._taken[number] = 1
        return taken

    def put(self, numbers: Iterable[int]) -> None:
        """Free those that are taken."""
        for number in numbers:
            if self._taken[number]:
                self._taken[number] = 0
                heapq.heappush(self._back, number)
                self.used -= 1

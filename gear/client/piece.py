"""The piece of a trajectory that a writer is filling: its slot, its blocks, what of it is published.

Blocks are taken one after the other. When none can be leased, the piece goes on in private blocks, which
become real ones when it is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.client.deadline import left, until
from gear.client.rows import strips
from gear.storage.fields import BEGIN, END, HAS_FINAL
from gear.transport.base import NO_SEAM, Seam

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.client.port import Port


class Piece:
    """Rows of one slot, being written.

    Parameters
    ----------
    port : Port
    flags : int
        Flags of its first commit besides BEGIN.
    seam : Seam
        What it goes on behind, if it has CONTINUES.

    Attributes
    ----------
    published : rows committed (or on their way to be).
    begun : whether anything of it was submitted.
    sequence : number of its last commit.
    version : of the policy that made its trajectory; None for the table's at the first commit.
    """

    def __init__(self, port: Port, flags: int, seam: Seam = NO_SEAM) -> None:
        self._port = port
        self.flags, self.seam = flags, seam
        self.version: int | None = None
        self.sequence = 0
        self.published = 0
        self.begun = False
        self._slot = -1
        self._chain: list[int] = []
        self._private: list[npt.NDArray[np.uint8]] = []
        self._submitted = 0  # blocks of the chain named in an entry
        self._ended = False

    @property
    def lost(self) -> bool:
        """Whether the table has evicted or closed what was published of the piece."""
        return self.begun and self._slot in self._port.open.lost

    def extend(self) -> list[np.ndarray]:
        """One more block; returns dtype[block_steps, *shape] per step column."""
        port = self._port
        if not self._private and port.rows.arena is None and self._take(1, None):
            block = self._chain[-1]
            return [strip[block] for strip in port.rows.strips]
        memory = port.rows.private_block()  # rows not written yet go along with the others
        self._private.append(memory)
        return [strip[0] for strip in strips(port.layout, memory, 0, 1)]

    def strips_of(self, index: int) -> list[np.ndarray] | None:
        """The strips of the piece's block number `index` in shared memory, None if it is private or not there."""
        if index >= len(self._chain):
            return None
        return [strip[self._chain[index]] for strip in self._port.rows.strips]

    def lend(self) -> bool:
        """Whether the piece needs no further blocks, or leases for its private ones are there at once."""
        return not self._private or self._settle(len(self._private), None, wait=False)

    def commit(
        self,
        length: int,
        flags: int,
        final: list[np.ndarray | None] | None,
        values: list[np.ndarray] | None,
        priority: float | npt.NDArray[np.float64] | None,
        timeout: float | None,
    ) -> None:
        """Submit the first `length` rows; an error leaves the piece as it was."""
        port, steps = self._port, self._port.layout.block_steps
        deadline = until(timeout)
        used = port.layout.blocks_for(length + (final is not None))
        if used > len(self._chain):
            self._settle(used - len(self._chain), timeout, wait=True)
        if final is not None:
            flags |= HAS_FINAL
            port.rows.write_row(self._chain[length // steps], length % steps, final)
        if not self.begun:
            flags |= BEGIN | self.flags
            if values:
                port.rows.write_values(self._slot, values)
        used = max(used, self._submitted)  # a row that did not fit may have taken one more, which stays empty
        blocks = self._chain[self._submitted : used]
        seam = NO_SEAM if self.begun else self.seam
        self.sequence = port.submit(
            self._slot, blocks, length - self.published, flags, priority, left(deadline), self.version, seam
        )
        self.begun, self.published, self._submitted = True, length, used
        self._ended = bool(flags & END)
        if self._ended and used < len(self._chain):
            port.pool.put([], self._chain[used:])

    def unpublished(self, length: int) -> list[np.ndarray]:
        """Copies of the rows from `published` to `length`: dtype[n, *shape] per step column."""
        steps, first = self._port.layout.block_steps, self.published
        parts: list[list[np.ndarray]] = []
        for ordinal in range(first // steps, -(-length // steps)):
            low, high = max(first - ordinal * steps, 0), min(length - ordinal * steps, steps)
            parts.append([strip[low:high] for strip in self._strips(ordinal)])
        if not parts:
            return [strip[0, :0] for strip in self._port.rows.strips]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def abandon(self) -> None:
        """Give up the piece: unsubmitted leases return to the pool, a published part that was lost is let go."""
        if self._ended:
            return
        port = self._port
        lost = self.lost
        slots = [self._slot] if self._slot >= 0 and not self.begun else []
        port.pool.put(slots, self._chain[self._submitted :])
        self._ended = True
        if lost:
            port.open.lost.discard(self._slot)
            port.submit(self._slot, [], 0, END, None, None)

    def _strips(self, ordinal: int) -> list[np.ndarray]:
        port = self._port
        if ordinal < len(self._chain):
            return [strip[self._chain[ordinal]] for strip in port.rows.strips]
        memory = self._private[ordinal - len(self._chain)]
        return [strip[0] for strip in strips(port.layout, memory, 0, 1)]

    def _take(self, blocks: int, timeout: float | None) -> bool:
        """Lease the slot, if there is none, and more blocks for the chain."""
        port = self._port
        if self._slot >= 0:
            more = port.pool.take_blocks(blocks, timeout)
        else:
            taken = port.pool.take(blocks, timeout)
            more = None if taken is None else taken[1]
            if taken is not None:
                self._own(taken[0])
        if more is None:
            return False
        self._chain.extend(more)
        return True

    def _settle(self, blocks: int, timeout: float | None, wait: bool) -> bool:
        """Have `blocks` more in the chain and the private rows in them."""
        had = len(self._chain)
        if not self._take(blocks, timeout):
            if not wait:
                return False
            slot, more = self._port.allocate(blocks, timeout, self._slot if self._slot >= 0 else None)
            self._own(slot)
            self._chain.extend(more)
        for memory, block in zip(self._private, self._chain[had:], strict=False):
            self._port.rows.put_block(block, memory)
        del self._private[: len(self._chain) - had]
        return True

    def _own(self, slot: int) -> None:
        if self._slot < 0:
            self._slot = slot
            # A loss that the slot's earlier use left behind says nothing about this one.
            self._port.open.lost.discard(slot)

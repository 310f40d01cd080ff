"""Trajectories that are written and submitted together, to one shard: one scatter per column for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gear.client.deadline import left, patiently
from gear.client.port import WHOLE
from gear.client.priorities import item_count
from gear.errors import DeadlineExceeded
from gear.storage.fields import CONTINUED, CONTINUES, HAS_FINAL, TERMINATED
from gear.transport.base import NO_SEAM, Seam

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.client.port import Port

GROUP = 64
"""Pieces written and submitted together at most: what one message to the shard takes."""

GROUP_BYTES = 4 << 20
"""Bytes of rows after which a group is full: it should not leave the cache between gathering and writing."""


class Part(NamedTuple):
    """Steps begin..begin + steps of trajectory number `of`, to be committed as one entry."""

    of: int
    begin: int
    steps: int
    last: bool


class Many(NamedTuple):
    """Trajectories that fit their table.

    Attributes
    ----------
    lengths : steps of each, all >= 1.
    rows : gives arrays that hold the rows of some pieces, dtype[n, *shape] per step column, and the first row of
        each piece in them.
    values : dtype[N, *shape] per per-trajectory column.
    """

    lengths: list[int]
    rows: Callable[[list[Part]], tuple[list[np.ndarray], Sequence[int]]]
    values: list[np.ndarray]


class Group:
    """Pieces that have their leases and are written and submitted together."""

    def __init__(
        self,
        port: Port,
        many: Many,
        ends: npt.NDArray[np.bool_],
        finals: list[np.ndarray | None] | None,
        priorities: list[Any],
        versions: list[int | None],
    ) -> None:
        self.port = self._port = port
        self._many, self._ends, self._finals, self._raw = many, ends.tolist(), finals, priorities
        self._versions = versions
        self._row_bytes = sum(c.row_bytes for c in port.codec.step_columns)
        self.sequences: list[int] = []
        self._last_pieces: list[int] = []  # pieces up to the end of each trajectory
        self._count = 0
        self._clear()

    @property
    def empty(self) -> bool:
        """Whether nothing waits for being submitted."""
        return not self._pieces

    @property
    def sent(self) -> int:
        """Trajectories of which anything was submitted."""
        sent = len(self.sequences)
        return sum(end <= sent for end in self._last_pieces)

    def add_all(self, index: int, length: int, deadline: float | None) -> None:
        """Add every piece of a trajectory."""
        port, begin = self._port, 0
        parts = port.pieces(length) if length > port.max_length else (length,)
        for steps in parts:
            self.add(Part(index, begin, steps, begin + steps == length), deadline)
            begin += steps
        self._count += len(parts)
        self._last_pieces.append(self._count)

    def wait(self, deadline: float | None) -> None:
        """Wait until all that was submitted is committed."""
        if self.sequences:
            patiently(self._port.session.wait, self._port.open, self.sequences[-1], timeout=left(deadline))

    def withdraw(self) -> int:
        """Take back what is not committed; how many trajectories are, whole."""
        done = self._port.withdraw(self.sequences)
        return sum(end <= done for end in self._last_pieces)

    def give_back(self) -> None:
        """Return the leases of what was not submitted."""
        self._port.pool.put(self._slots, self._blocks)
        self._clear()

    def _clear(self) -> None:
        self._pieces: list[Part] = []
        self._slots: list[int] = []
        self._blocks: list[int] = []
        self._at: list[int] = []  # where each piece's blocks begin
        self._bytes = 0

    def add(self, piece: Part, deadline: float | None) -> None:
        """Lease what the piece needs; the group goes first where there is nothing left or it is full."""
        port = self._port
        need = port.layout.blocks_for(piece.steps + (piece.last and self._finals is not None))
        taken = port.pool.take(need, left(deadline))
        if taken is None:
            self.submit(deadline)
            taken = port.pool.take(need, left(deadline)) or port.allocate(need, left(deadline))
        self._pieces.append(piece)
        self._slots.append(taken[0])
        self._at.append(len(self._blocks))
        self._blocks.extend(taken[1])
        self._bytes += piece.steps * self._row_bytes
        if len(self._pieces) == GROUP or self._bytes >= GROUP_BYTES:
            self.submit(deadline)

    def submit(self, deadline: float | None) -> None:
        """Write the rows of the group and queue its commits; an error gives back what was not queued."""
        port, pieces, slots, blocks = self._port, self._pieces, self._slots, self._blocks
        bounds = [*self._at, len(blocks)]
        queued = 0
        try:
            self._write()
            for number, piece in enumerate(pieces):
                flags = WHOLE | (CONTINUES if piece.begin else 0) | (0 if piece.last else CONTINUED)
                if piece.last:
                    flags |= (TERMINATED if self._ends[piece.of] else 0) | (HAS_FINAL if self._finals else 0)
                chain = blocks[bounds[number] : bounds[number + 1]]
                priority = self._priority(piece)
                queued = number + 1  # until the shard has it: what it refuses it takes back itself
                seam = Seam(piece.begin, self.sequences[-1]) if piece.begin else NO_SEAM
                given = (priority, left(deadline), self._versions[piece.of], seam)
                self.sequences.append(port.submit(slots[number], chain, piece.steps, flags, *given))
        except BaseException as error:
            queued -= isinstance(error, DeadlineExceeded)
            port.pool.put(slots[queued:], blocks[bounds[queued] :])
            raise
        finally:
            self._clear()

    def _write(self) -> None:
        pieces, rows = self._pieces, self._port.rows
        if not pieces:
            return
        arrays, begins = self._many.rows(pieces)
        spans = np.empty((len(pieces), 3), np.int64)
        spans[:, 0], spans[:, 1], spans[:, 2] = begins, [p.steps for p in pieces], self._at
        rows.scatter(np.array(self._blocks, np.int32), spans, arrays)
        of = [p.of for p in pieces]
        for place, value in zip(rows.values, self._many.values, strict=True):
            place[self._slots] = value[of]
        if self._finals is not None:
            steps = self._port.layout.block_steps
            ending = [k for k, p in enumerate(pieces) if p.last]
            block = [self._blocks[self._at[k] + pieces[k].steps // steps] for k in ending]
            row, index = [pieces[k].steps % steps for k in ending], [pieces[k].of for k in ending]
            for strip, final in zip(rows.strips, self._finals, strict=True):
                strip[block, row] = 0 if final is None else final[index]

    def _priority(self, piece: Part) -> Any:
        """Of the piece: one number, or its share of one per item."""
        raw = self._raw[piece.of]
        if not isinstance(raw, np.ndarray):
            return raw
        table, longest = self._port.table, self._port.max_length
        before = piece.begin // longest * item_count(table, longest)
        return raw[before : before + item_count(table, piece.steps)]

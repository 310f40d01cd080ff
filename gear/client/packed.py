"""Inserting many trajectories at once: their rows behind each other, one scatter per column for all of them.

Trajectories (pieces of them, where they are longer than `max_length`) are taken in groups, as many as there are
leases for. Each is committed by itself, in order, exactly as one inserted alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gear.client import arguments as check
from gear.client.deadline import left, patiently, until
from gear.client.ends import mask
from gear.client.port import WHOLE
from gear.client.priorities import as_priorities, item_count
from gear.errors import ConnectionLost, DataError, DeadlineExceeded, GearError
from gear.storage.fields import CONTINUED, CONTINUES, HAS_FINAL, TERMINATED
from gear.transport.base import NO_SEAM, Seam

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.client.encode import Encoded
    from gear.client.port import Port, Priority
    from gear.client.spread import Spread

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


def insert_many(
    port: Port | Spread,
    trajectories: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    offsets: Any,
    priorities: Any,
    terminated: Any,
    final: Mapping[str, Any] | None,
    versions: Any,
    timeout: float | None,
) -> None:
    """What `Client.insert_many` does, for one table."""
    deadline = until(timeout)
    first = port.living()[0]
    many = _packed(first, trajectories, offsets) if isinstance(trajectories, Mapping) else _listed(first, trajectories)
    count = len(many.lengths)
    if not count:
        return
    ends = np.full(count, bool(terminated)) if np.ndim(terminated) == 0 else mask("terminated", terminated, count)
    finals = None if final is None else first.codec.finals(final, count)
    raw, numbers = _priorities(first, priorities, many.lengths), _versions(first, versions, count)
    groups = [_Group(one, many, ends, finals, raw, numbers) for one in port.living()]
    turn = 0
    try:
        for index, length in enumerate(many.lengths):
            group = groups[turn % len(groups)]
            group.add_all(index, length, deadline)
            turn += group.empty  # it has just been submitted: the next one goes to the next shard
        for group in groups:
            group.submit(deadline)
        for group in groups:
            group.wait(deadline)
    except DeadlineExceeded as error:
        whole = sum(group.withdraw() for group in groups)
        if whole < count:
            late = DeadlineExceeded(f"{error}; {whole} of {count} trajectories were committed, the others were not")
            late.committed = whole  # type: ignore[attr-defined]
            raise late from None
    except ConnectionLost:
        if len(groups) == 1 and groups[0].port.shard is None:
            raise
        raise _lost(groups, count, deadline) from None
    except KeyboardInterrupt:
        for group in groups:
            with contextlib.suppress(GearError):
                group.withdraw()
        raise
    finally:
        for group in groups:
            group.give_back()


def _lost(groups: list[_Group], count: int, deadline: float | None) -> ConnectionLost:
    """The error for a shard that died meanwhile; what was sent to the others is waited for."""
    whole = unknown = 0
    dead = groups[0].port
    for group in groups:
        try:
            group.wait(deadline)
            whole += group.sent
        except DeadlineExceeded:
            whole += group.withdraw()
        except ConnectionLost:
            dead, unknown = group.port, unknown + group.sent
    lost = dead.lost_with(unknown, f", {whole} of {count} were committed on other shards")
    lost.committed = whole  # type: ignore[attr-defined]
    return lost


class _Group:
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


def _packed(port: Port, values: Mapping[str, Any], offsets: Any) -> Many:
    """Columns that hold all trajectories behind each other."""
    if offsets is None:
        raise DataError(
            "insert_many: one dict is the packed form, which needs offsets=int64[N + 1] saying where each trajectory "
            "begins; or give a list of trajectories"
        )
    bounds, arrays, rows = port.codec.packed(values, offsets)
    starts, lengths = bounds.tolist(), np.diff(bounds).tolist()
    for index, length in enumerate(lengths):
        try:
            port.pieces(length)
        except DataError as error:
            raise _refused(index, len(lengths), error) from None
    arrays = [np.ascontiguousarray(array) for array in arrays]
    return Many(lengths, lambda pieces: (arrays, [starts[p.of] + p.begin for p in pieces]), rows)


def _listed(port: Port, trajectories: Sequence[Mapping[str, Any]]) -> Many:
    """Trajectories of their own, joined when they are written."""
    encoded: list[Encoded] = []
    for index, trajectory in enumerate(trajectories):
        try:
            encoded.append(port.codec.trajectory(trajectory))
            port.pieces(encoded[-1].steps)
        except DataError as error:
            raise _refused(index, len(trajectories), error) from None

    room = [a[:0] for a in encoded[0].arrays] if encoded else []  # used again and again: fresh pages are slow

    def rows(pieces: list[Part]) -> tuple[list[np.ndarray], Sequence[int]]:
        total = sum(p.steps for p in pieces)
        if total > len(room[0]):
            room[:] = [np.empty((total, *a.shape[1:]), a.dtype) for a in room]
        parts = [
            e.arrays if p.steps == e.steps else [a[p.begin : p.begin + p.steps] for a in e.arrays]
            for p, e in ((p, encoded[p.of]) for p in pieces)
        ]
        joined = [np.concatenate(c, out=a[:total]) for c, a in zip(zip(*parts, strict=True), room, strict=True)]
        return joined, list(accumulate((p.steps for p in pieces[:-1]), initial=0))

    columns = zip(*(one.rows for one in encoded), strict=True)
    return Many([one.steps for one in encoded], rows, [np.stack(column) for column in columns])


def _versions(port: Port, given: Any, count: int) -> list[int | None]:
    """The policy version of each trajectory, None for the table's."""
    if given is None:
        return [None] * count
    each = np.broadcast_to(np.asarray(given), (count,)) if np.ndim(given) == 0 else np.asarray(given)
    if each.shape != (count,):
        raise DataError(f"insert_many: expected {count} versions, one per trajectory, got {list(each.shape)}")
    return [check.version_of(port.table, version) for version in each.tolist()]


def _priorities(port: Port, given: Any, lengths: list[int]) -> list[Priority]:
    """Per trajectory: None, one number for all its items, or one each."""
    count = len(lengths)
    if given is None:
        return [None] * count
    if len(given) != count:
        raise DataError(f"insert_many: expected {count} priorities, one per trajectory, got {len(given)}")
    if not isinstance(given, (list, tuple)) or all(isinstance(one, (int, float)) for one in given):
        return as_priorities(given, count).tolist()  # type: ignore[no-any-return]
    checked: list[Priority] = []
    for index, (one, steps) in enumerate(zip(given, lengths, strict=True)):
        try:
            checked.append(None if one is None else port.priorities(one, steps))
        except DataError as error:
            raise _refused(index, count, error) from None
    return checked


def _refused(index: int, count: int, error: object) -> DataError:
    return DataError(f"trajectory {index} of {count}: {error}; nothing was inserted")

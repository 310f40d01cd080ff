"""One client's way into one table: encode a trajectory, write its rows, submit its commit.

A port joins the codec, the strided columns and the lease pool of a table. Whatever fails on the way,
nothing half-done stays: leases that were taken return to the pool, pieces already submitted are withdrawn.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.client.deadline import left, patiently, until
from gear.client.encode import Codec, Encoded
from gear.client.leases import LeasePool
from gear.client.priorities import as_priorities, item_count
from gear.client.rows import Rows
from gear.errors import ConnectionLost, DataError, DeadlineExceeded, GearError
from gear.grouping import encode_key
from gear.schema import Bytes, Steps
from gear.storage.fields import (
    BEGIN,
    CONTINUED,
    CONTINUES,
    END,
    HAS_FINAL,
    ID_SHARD_SHIFT,
    ID_TABLE_SHIFT,
    TERMINATED,
)
from gear.transport.base import NO_SEAM, Seam

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from gear.grouping import Key
    from gear.transport.base import OpenTable, Session

    Priority = float | Sequence[float] | npt.NDArray[np.float64] | None

WHOLE = BEGIN | END


class Port:
    """Inserts into one table.

    Parameters
    ----------
    session, table
        The table as `Session.open_table` gave it.
    """

    def __init__(self, session: Session, table: OpenTable) -> None:
        self.session, self.open, self.table, self.layout = session, table, table.table, table.layout
        self.name = table.table.name
        self.codec = Codec(table.table)
        self.rows = Rows(table.layout, table.segment, table.arena)
        self.pool = LeasePool(session, table)
        table.recall = self.pool.surrender
        self.max_length = table.layout.max_length
        self.capacity = _capacity(table)
        self.id_keys = id_keys(table)
        self.row_bytes = max(1, sum(c.row_bytes for c in self.codec.step_columns))
        self._steps = table.layout.block_steps
        self._grouped = table.table.group_size > 0
        self._lock = threading.Lock()
        self.shard: int | None = None  # where the table lies on several: errors name it
        self._last = 0
        self._withdrawn: list[tuple[int, int]] = []  # first and last of the numbers that nobody waits for any more

    def encode(
        self,
        trajectory: Mapping[str, Any],
        priority: Priority,
        final: Mapping[str, Any] | None,
        group: Key | None = None,
    ) -> tuple[Encoded, float | npt.NDArray[np.float64] | None, list[np.ndarray | None] | None]:
        """Check a trajectory, its priorities, its final values and its group's key, before anything is touched."""
        encoded = self.codec.trajectory(trajectory)
        if group is not None or self._grouped:
            encoded.rows.append(self.group_key(group))
        if encoded.steps > self.max_length:
            self.pieces(encoded.steps)
        return (
            encoded,
            None if priority is None else self.priorities(priority, encoded.steps),
            None if final is None else self.codec.final(final),
        )

    def insert(
        self,
        encoded: Encoded,
        priority: float | npt.NDArray[np.float64] | None,
        final: list[np.ndarray | None] | None,
        terminated: bool,
        timeout: float | None,
        version: int | None = None,
    ) -> tuple[Port, list[int]]:
        """Write and submit one trajectory; returns this port and the sequence number of each piece.

        Waits for no commit.
        """
        if encoded.steps <= self.max_length:
            flags = WHOLE | TERMINATED if terminated else WHOLE
            return self, [self._piece(encoded, priority, final, flags, timeout, version)]
        return self, self._split(encoded, priority, final, terminated, timeout, version)

    def choose(self) -> Port:
        """Where the next trajectory goes."""
        return self

    def on(self, shard: int) -> Port:
        """The part of the table on a shard: there is one."""
        return self

    def living(self) -> list[Port]:
        """Where trajectories can go."""
        return [self]

    @property
    def last(self) -> int:
        """Number of the last commit."""
        return self._last

    def lost_with(self, trajectories: int, rest: str = "") -> ConnectionLost:
        """The error for a shard of several that died with trajectories under way."""
        return ConnectionLost(
            f"shard {self.shard} of the server died: {trajectories} "
            f"{'trajectory' if trajectories == 1 else 'trajectories'} of table {self.name!r} sent to it "
            f"{'is' if trajectories == 1 else 'are'} lost or unknown{rest}; later ones go to the other shards"
        )

    def submit(
        self,
        slot: int,
        blocks: Sequence[int],
        length: int,
        flags: int,
        priority: float | npt.NDArray[np.float64] | None,
        timeout: float | None,
        version: int | None = None,
        seam: Seam = NO_SEAM,
    ) -> int:
        """Queue one commit entry and remember it for `flush`; `version` None: the table's at the commit."""
        if self.rows.versions is not None and flags & BEGIN:
            self.rows.versions[slot] = -1 if version is None else version
        submit = self.session.submit if seam is NO_SEAM else partial(self.session.submit, seam=seam)
        sequence = patiently(submit, self.open, slot, blocks, length, flags, priority, timeout=timeout)
        with self._lock:
            if sequence > self._last:
                self._last = sequence
        return sequence

    def submit_many(
        self,
        entries: npt.NDArray[np.void],
        blocks: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
    ) -> int:
        """Queue whole trajectories at once and remember them for `flush`; the number of the first."""
        first = patiently(self.session.submit_many, self.open, entries, blocks, priorities, timeout=timeout)
        with self._lock:
            self._last = max(self._last, first + len(entries) - 1)
        return first

    def allocate(self, count: int, timeout: float | None, slot: int | None = None) -> tuple[int, list[int]]:
        """A slot (or the one there is) and `count` blocks for a commit; the table evicts for them where it must."""
        held, blocks = self.pool.drain(count, slot is None)
        slot = held if slot is None else slot
        try:
            grant = patiently(self.session.allocate, self.open, count - len(blocks), int(slot is None), timeout=timeout)
        except BaseException:
            self.pool.put([] if held is None else [held], blocks)
            raise
        blocks += grant.blocks.tolist()
        return int(grant.slots[0]) if slot is None else slot, blocks

    def priorities(self, priority: Priority, steps: int) -> float | npt.NDArray[np.float64]:
        """Checked priorities of a trajectory's items: one for all of them, or one each."""
        if np.ndim(priority) == 0:  # type: ignore[arg-type]
            return float(as_priorities([priority])[0])
        return as_priorities(priority, sum(item_count(self.table, n) for n in self.pieces(steps)))

    def group_key(self, group: Key | None) -> npt.NDArray[np.uint8]:
        """The key of a trajectory's group as it is stored.

        Raises
        ------
        DataError
            If it is no key, missing, or not wanted here.
        """
        if not self._grouped:
            raise DataError(f"table {self.name!r} draws no groups: got group={group!r}; declare sampler=gear.Groups(n)")
        if group is None:
            raise DataError(f"table {self.name!r} draws groups: expected group=key with every trajectory, got none")
        return encode_key(group)

    def pieces(self, steps: int) -> list[int]:
        """Lengths of the pieces in which a trajectory is stored.

        Raises
        ------
        DataError
            If it is longer than the table's capacity.
        """
        if steps > self.capacity:
            raise DataError(
                f"trajectory of {steps} steps does not fit into table {self.name!r}: its capacity is "
                f"{self.capacity} steps; raise the capacity or insert shorter trajectories"
            )
        if self._grouped and steps > self.max_length:
            raise DataError(
                f"trajectory of {steps} steps: table {self.name!r} draws groups, whose members are not stored in "
                f"pieces of max_length {self.max_length} steps; raise it"
            )
        full, rest = divmod(steps, self.max_length)
        return [self.max_length] * full + [rest] * (rest > 0)

    def withdraw(self, sequences: Sequence[int]) -> int:
        """Take back those commits that have not happened; returns how many have."""
        done, start = len(sequences), 0
        for index in range(1, len(sequences) + 1):  # other threads' numbers may lie between ours
            if index == len(sequences) or sequences[index] != sequences[index - 1] + 1:
                first, last = sequences[start], sequences[index - 1]
                dropped = self.session.withdraw(self.open, first, last)
                with self._lock:
                    if self._last == last and dropped == last - first + 1:
                        self._last = first - 1
                    if dropped:  # entries are committed in order: what was dropped is the end of the range
                        begin = last - dropped + 1
                        if self._withdrawn and self._withdrawn[-1][1] == begin - 1:
                            begin = self._withdrawn.pop()[0]
                        self._withdrawn.append((begin, last))
                done, start = done - dropped, index
        return done

    def settle(self, sequences: Sequence[int], timeout: float | None) -> None:
        """Wait until all are committed; at the timeout those that are not are taken back.

        Raises
        ------
        DeadlineExceeded
            Saying what the commit waited for.
        """
        try:
            patiently(self.session.wait, self.open, sequences[-1], timeout=timeout)
            self._settled(sequences[-1])
        except DeadlineExceeded as error:
            done = self.withdraw(sequences)
            if done == len(sequences):
                return
            raise self._late(error, done, len(sequences)) from None
        except ConnectionLost as error:
            if self.shard is None:
                raise ConnectionLost(f"{error}; whether this trajectory was stored is unknown") from None
            raise self.lost_with(1) from None
        except KeyboardInterrupt:  # nobody waits for it any more; a silent server keeps Ctrl-C for a second at most
            with contextlib.suppress(GearError):
                self.withdraw(sequences)
            raise

    def flush(self, timeout: float | None) -> None:
        """Return once everything submitted so far is committed.

        Raises
        ------
        DeadlineExceeded
            Saying how many commits are still queued; they stay so.
        ConnectionLost
            Saying how many commits are lost or unknown.
        """
        with self._lock:
            last = self._last
        if last == 0:
            return
        try:
            patiently(self.session.wait, self.open, last, timeout=timeout)
            self._settled(last)
        except DeadlineExceeded as error:
            queued = self._queued(self.session.committed(self.open), last)
            raise DeadlineExceeded(f"{error}; up to {queued} commits of table {self.name!r} are still queued") from None
        except ConnectionLost as error:
            unknown = self._queued(self.session.acknowledged(self.open), last)
            if self.shard is None:
                raise ConnectionLost(
                    f"{error}; {unknown} commit{'s' * (unknown != 1)} of table {self.name!r} sent without an answer "
                    f"{'are' if unknown != 1 else 'is'} lost or unknown"
                ) from None
            with self._lock:
                self._last, self._withdrawn = 0, []  # said once
            if unknown:
                raise self.lost_with(unknown) from None

    def forget(self) -> None:
        """Drop leases and commits without a word, in the child of a fork: they are the parent's."""
        self.pool.forget()
        self._lock = threading.Lock()
        self._last, self._withdrawn = 0, []

    def _queued(self, committed: int, last: int) -> int:
        """How many of the entries up to `last` are neither committed nor withdrawn."""
        with self._lock:
            gone = sum(max(0, min(end, last) - max(begin, committed + 1) + 1) for begin, end in self._withdrawn)
        return max(0, last - committed - gone)

    def _settled(self, sequence: int) -> None:
        """Everything up to `sequence` is committed or withdrawn: no need to remember which."""
        if self._withdrawn:
            with self._lock:
                self._withdrawn = [part for part in self._withdrawn if part[1] > sequence]

    def _piece(
        self,
        encoded: Encoded,
        priority: float | npt.NDArray[np.float64] | None,
        final: list[np.ndarray | None] | None,
        flags: int,
        timeout: float | None,
        version: int | None,
        seam: Seam = NO_SEAM,
    ) -> int:
        """Write and submit one piece that fits into a slot."""
        steps, arrays, rows = encoded
        if final is None:
            count = -(-steps // self._steps)
        else:
            flags |= HAS_FINAL
            count = steps // self._steps + 1
        slot, blocks = self.pool.take(count, timeout) or self.allocate(count, timeout)
        ours = True  # until the shard has them: what it refuses it takes back itself
        try:
            self.rows.write(blocks, 0, arrays)
            if rows:
                self.rows.write_values(slot, rows)
            if final is not None:
                self.rows.write_row(blocks[steps // self._steps], steps % self._steps, final)
            ours = False
            return self.submit(slot, blocks, steps, flags, priority, timeout, version, seam)
        except BaseException as error:
            if ours or isinstance(error, DeadlineExceeded):
                self.pool.put([slot], blocks)
            raise

    def _split(
        self,
        encoded: Encoded,
        priority: float | npt.NDArray[np.float64] | None,
        final: list[np.ndarray | None] | None,
        terminated: bool,
        timeout: float | None,
        version: int | None,
    ) -> list[int]:
        """Submit a trajectory in pieces of `max_length`."""
        deadline = until(timeout)
        sequences: list[int] = []
        lengths = self.pieces(encoded.steps)
        at = items = 0
        try:
            for number, steps in enumerate(lengths, 1):
                last = number == len(lengths)
                flags = WHOLE | (CONTINUES if at else 0) | (0 if last else CONTINUED)
                flags |= TERMINATED if last and terminated else 0
                part = Encoded(steps, [a[at : at + steps] for a in encoded.arrays], encoded.rows)
                share = priority
                if isinstance(priority, np.ndarray):
                    count = item_count(self.table, steps)
                    share = priority[items : items + count]
                    items += count
                seam = Seam(at, sequences[-1]) if at else NO_SEAM
                final_row = final if last else None
                sequences.append(self._piece(part, share, final_row, flags, left(deadline), version, seam))
                at += steps
        except DeadlineExceeded as error:
            raise self._late(error, self.withdraw(sequences), len(lengths)) from None
        except BaseException:
            self.withdraw(sequences)
            raise
        return sequences

    @staticmethod
    def _late(error: DeadlineExceeded, done: int, pieces: int) -> DeadlineExceeded:
        """The error for a deadline that passed when so many pieces of a trajectory were committed."""
        part = f"{done} of its {pieces} pieces were committed" if done else "nothing was inserted"
        return DeadlineExceeded(f"{error}; {part}")


def id_keys(table: OpenTable) -> list[int]:
    """What the ids of a table begin with on each of its shards: table and shard number."""
    shift = ID_TABLE_SHIFT - ID_SHARD_SHIFT
    return [layout.index << shift | shard for shard, layout in table.layouts.items()]


def _capacity(table: OpenTable) -> int:
    """Steps of the longest trajectory that may be inserted."""
    capacity, layout = table.table.capacity, table.layout
    stored = layout.data_blocks * layout.block_steps
    if isinstance(capacity, Steps):
        return capacity.n
    return layout.max_length if isinstance(capacity, Bytes) else min(capacity.n * table.table.mean_length, stored)

"""What a client asks of a shard after an insert: late columns, versions, open trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.batch import Update
from gear.errors import DataError
from gear.transport import messages as m
from gear.transport.remote import Remote, deadline_of, expect
from gear.transport.wire import array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from gear.transport.base import OpenTable
    from gear.transport.channel import Buffer
    from gear.transport.conversation import Call


def _carried(what: str, frames: Sequence[Buffer]) -> Sequence[Buffer]:
    """Buffers that one message carries.

    Raises
    ------
    DataError
        If it does not: the other end would hang up.
    """
    sizes = [len(frame) for frame in frames]
    if max(sizes, default=0) > m.MAX_FRAME or sum(sizes) > m.MAX_MESSAGE:
        raise DataError(
            f"{what}: {sum(sizes)} bytes, {max(sizes)} of one column, are more than a message carries ({m.MAX_MESSAGE} "
            f"bytes, {m.MAX_FRAME} of one column); give fewer rows at once"
        )
    return frames


class LaterSession(Remote):
    """The part of a `Session` with one shard that sends the bytes of rows along with requests, on every path."""

    def fill(
        self,
        table: OpenTable,
        ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        columns: Mapping[str, memoryview],
        timeout: float | None,
    ) -> Update:
        """Write late columns of whole trajectories."""
        frames = _carried("fill", [ids.tobytes(), lengths.tobytes(), *columns.values()])
        with self._talking() as talk:
            call = talk.ask(m.Fill(table.layout.index, list(columns)), deadline_of(timeout), frames)
        answer: m.Updated = expect(call, m.Updated)
        return Update(answer.applied, answer.stale)

    def identify(
        self, table: OpenTable, sequences: npt.NDArray[np.int64], timeout: float | None
    ) -> npt.NDArray[np.int64]:
        """Ids of trajectories that this client committed."""
        parts = [np.empty(0, np.int64)]
        with self._talking() as talk:
            for first in range(0, len(sequences), m.MAX_ITEMS):
                asked = sequences[first : first + m.MAX_ITEMS]
                call = talk.ask(m.Identify(table.layout.index), deadline_of(timeout), (asked.tobytes(),))
                expect(call, m.Identified)
                parts.append(array(call.frames[0], np.int64, len(asked), "Identified"))
        return np.concatenate(parts)

    def set_version(self, table: OpenTable, version: int | None, timeout: float | None) -> int:
        """Raise the table's policy version, or ask for it."""
        with self._talking() as talk:
            call = talk.ask(m.SetVersion(table.layout.index, version), deadline_of(timeout))
        answer: m.Version = expect(call, m.Version)
        return answer.version

    def begin(self, table: OpenTable, values: bytes, version: int | None, timeout: float | None) -> int:
        """Open a trajectory that belongs to the table."""
        index = table.layout.index

        def undo(call: Call) -> None:
            talk.post(m.Drop(index), (np.array([call.answer.trajectory], np.int64).tobytes(),))

        with self._talking() as talk:
            call = talk.ask(m.Begin(index, version, timeout), deadline_of(timeout), (values,), undo)
        answer: m.Begun = expect(call, m.Begun)
        return answer.trajectory

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
        body = m.Append(table.layout.index, trajectory, at, rows, list(columns), timeout)
        with self._talking() as talk:
            call = talk.ask(body, deadline_of(timeout), _carried("append", [*columns.values()]))
        answer: m.Grown = expect(call, m.Grown)
        return answer.length

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
        body = m.Seal(table.layout.index, trajectory, terminated, list(final), timeout)
        with self._talking() as talk:
            call = talk.ask(body, deadline_of(timeout), [values, priorities.tobytes(), *final.values()])
        answer: m.Grown = expect(call, m.Grown)
        return answer.length

    def length(self, table: OpenTable, trajectory: int, timeout: float | None) -> int:
        """Rows of an open trajectory."""
        with self._talking() as talk:
            call = talk.ask(m.Length(table.layout.index, trajectory), deadline_of(timeout))
        answer: m.Grown = expect(call, m.Grown)
        return answer.length

    def drop(self, table: OpenTable, ids: npt.NDArray[np.int64], timeout: float | None) -> Update:
        """Drop trajectories."""
        with self._talking() as talk:
            call = talk.ask(m.Drop(table.layout.index), deadline_of(timeout), (ids.tobytes(),))
        answer: m.Updated = expect(call, m.Updated)
        return Update(answer.applied, answer.stale)

"""Writing a trajectory as it happens, step by step or in chunks, straight into leased blocks.

A writer holds one unended trajectory. Rows go where they will stay; only when the shard lends no more
blocks they wait in private memory of the same layout until a commit makes room for them. Rows that were
appended are never dropped in silence.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gear.client.arguments import seconds
from gear.client.piece import Piece
from gear.client.port import left, until
from gear.client.priorities import as_priorities, item_count
from gear.client.values import array_of, fast_scalar, storage_dtype
from gear.errors import Closed, DataError, GearError
from gear.schema import Column
from gear.storage.fields import CONTINUED, CONTINUES, END, TERMINATED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from gear.client.port import Port, Priority
    from gear.transport.base import OpenTable


class Writer:
    """Appends the steps of one trajectory after the other to a table; made by `Client.writer`.

    With ``publish="rows"`` rows become visible when a block is full, at `flush`, at `end`, and before the
    same client samples; with ``publish="end"`` at `end`. A trajectory longer than the table's `max_length`
    is stored in pieces. Use it as a context manager: leaving it ends an unended trajectory as truncated.
    """

    def __init__(self, port: Port, publish: Literal["end", "rows"]) -> None:
        self._port = port
        self._by_rows = publish == "rows"
        self._lock = threading.Lock()
        self._kinds = tuple(_kind(c) for c in port.codec.step_columns)
        self._width = len(self._kinds)
        self._closed = ""
        self._values: list[np.ndarray] | None = None
        self._before = self._at = self._limit = 0
        self._start(0)

    def append(self, step: Mapping[str, Any]) -> None:
        """Append one step: every per-step column, without a time axis.

        Raises
        ------
        DataError
            If the step does not fit the table; it is not appended then.
        """
        with self._lock:
            at = self._at
            if at == self._limit:
                self._advance()
                at = self._at
            try:
                if len(step) != self._width:
                    raise KeyError
                self._put(step, at)
            except KeyError:  # nested, or with wrong names
                checked = self._port.codec.step(step)
                for field in self._fields:
                    field[-1][at] = checked[field[0]]
            self._at = at = at + 1
            if at == self._limit and self._by_rows:
                self._publish(None, wait=False)

    def extend(self, chunk: Mapping[str, Any]) -> None:
        """Append consecutive steps: every per-step column with a leading time axis.

        Raises
        ------
        DataError
            If the chunk does not fit the table; nothing of it is appended then.
        """
        with self._lock:
            self._extend(*self._port.codec.chunk(chunk))

    def set(self, values: Mapping[str, Any]) -> None:
        """Give the per-trajectory columns of the trajectory before its end.

        Without them a table that has such columns publishes nothing of the trajectory before `end`.
        """
        with self._lock:
            self._check_open()
            if self._piece.begun:
                raise DataError("set: rows of this trajectory are published; give its per-trajectory columns before")
            self._values = self._port.codec.trajectory_rows(values)

    def end(
        self,
        terminated: bool = False,
        final: Mapping[str, Any] | None = None,
        priority: Priority = None,
        *,
        trajectory: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> None:
        """End the trajectory and submit its commit; `flush` waits for it.

        Parameters
        ----------
        terminated : bool
            True if the environment reached a terminal state, False if the trajectory was cut off.
        final : dict, optional
            Last values of any of the per-step columns, such as the observation after the last step.
        priority : float or array of one per item, optional
            Default: the largest raw priority so far. Refused when rows are already published.
        trajectory : dict, optional
            The per-trajectory columns, unless `set` gave them.
        timeout : float, optional
            Seconds to wait for memory or for a full window of commits.

        Raises
        ------
        DataError
            If something does not fit, or no step was appended.
        DeadlineExceeded
            The trajectory is still there; `end` may be called again.
        """
        timeout = seconds(timeout)
        with self._lock:
            self._check_open()
            if self._length == 0 and not self._piece.begun:
                raise DataError("end: no step was appended since the last end; append at least one")
            values = self._values if trajectory is None else self._port.codec.trajectory_rows(trajectory)
            if trajectory is not None and self._piece.begun:
                raise DataError("end: rows are published already; give the per-trajectory columns with set() before")
            last = None if final is None else self._port.codec.final(final)
            checked = self._priority(priority)
            self._values = values
            self._commit(END | (TERMINATED if terminated else 0), timeout, last, checked)
            self._values = None
            self._start(0)

    def publish(self, timeout: float | None = None) -> None:
        """Make the rows appended so far visible; does nothing with ``publish="end"``."""
        timeout = seconds(timeout)
        with self._lock:
            if self._by_rows and not self._closed:
                self._publish(timeout, wait=True)

    def flush(self, timeout: float | None = None) -> None:
        """Publish what may be published and wait until all commits of the table are done.

        Raises
        ------
        DeadlineExceeded
            Saying how many commits are still queued; they stay so.
        """
        timeout = seconds(timeout)
        deadline = until(timeout)
        self.publish(timeout)
        self._port.flush(left(deadline))

    def close(self, timeout: float | None = 30.0) -> None:
        """End an unended trajectory as truncated, wait for the commits, give leases back. Idempotent.

        Raises
        ------
        GearError
            If steps could not be sent: it says how many were dropped.
        """
        timeout = seconds(timeout)
        with self._lock:
            if self._closed:
                return
            deadline = until(timeout)
            try:
                if self._length or self._piece.begun:
                    self._commit(END, timeout, None, None)
            except GearError as error:
                lost = self._length - self._piece.published
                raise type(error)(
                    f"writer closed: {lost} steps of an unended trajectory were dropped: {error}"
                ) from error
            finally:
                self._closed = "this writer has been closed; ask the client for a new one"
                self._piece.abandon()
                self._at = self._limit
        self._port.flush(left(deadline))

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def abandon(self, why: str) -> None:
        """Refuse further use; whatever was not ended is gone."""
        with self._lock:
            self._closed = self._closed or why
            self._at = self._limit

    def forget(self) -> None:
        """Refuse further use, in the child of a fork: the rows and their blocks are the parent's."""
        self._lock = threading.Lock()
        self.abandon("this writer was opened before a fork; open one in the child process")

    @property
    def table(self) -> OpenTable:
        """The table it writes to."""
        return self._port.open

    @property
    def _length(self) -> int:
        """Rows in the present piece."""
        return self._before + self._at

    def _start(self, flags: int) -> None:
        """Begin a piece; its first block comes with the first row."""
        self._piece = Piece(self._port, flags)
        self._before = self._at = self._limit = 0
        self._fields: list[tuple[Any, ...]] = []

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(self._closed)

    def _put(self, step: Mapping[str, Any], at: int) -> None:
        """Write a step into row `at` of the current block."""
        ndarray = np.ndarray
        for name, dtype, shape, plain, native, low, high, column, strip in self._fields:
            value = step[name]
            kind = type(value)
            if kind is ndarray:
                if value.dtype is not dtype or value.shape != shape:
                    value = array_of(column, value)
            elif kind is native:
                if not low <= value <= high:
                    value = array_of(column, value)
            elif kind is not plain:
                value = array_of(column, value)
            strip[at] = value

    def _advance(self) -> None:
        """Move to the next block, or to the next piece at `max_length`."""
        self._check_open()
        length = self._length
        if length == self._port.max_length:
            self._commit(END | CONTINUED, None, None, None)
            self._start(CONTINUES)
            length = 0
        elif self._piece.lost:
            self._restart()
            if self._at == self._limit:
                self._advance()
            return
        strips = self._piece.extend()
        self._fields = [(*kind, strip) for kind, strip in zip(self._kinds, strips, strict=True)]
        self._before, self._at = length, 0
        self._limit = min(self._port.layout.block_steps, self._port.max_length - length)

    def _extend(self, count: int, arrays: list[np.ndarray]) -> None:
        done = 0
        while done < count:
            if self._at == self._limit:
                self._advance()
            at = self._at
            take = min(count - done, self._limit - at)
            for field, array in zip(self._fields, arrays, strict=True):
                field[-1][at : at + take] = array[done : done + take]
            done += take
            self._at = at + take
            if self._at == self._limit and self._by_rows:
                self._publish(None, wait=False)

    def _publish(self, timeout: float | None, wait: bool) -> None:
        """Commit the unpublished rows of an open trajectory, if it may be published now."""
        if self._port.rows.values and self._values is None:
            return
        if self._piece.lost:
            self._restart()
        if self._length > self._piece.published and (wait or self._piece.lend()):
            self._commit(0, timeout, None, None)

    def _restart(self) -> None:
        """The table evicted the open trajectory: go on with what it never had, as a new piece."""
        arrays = self._piece.unpublished(self._length)
        self._piece.abandon()
        self._start(CONTINUES)
        if len(arrays[0]):
            self._extend(len(arrays[0]), arrays)

    def _priority(self, priority: Priority) -> Any:
        if priority is None:
            return None
        if self._piece.begun or self._piece.flags & CONTINUES:
            raise DataError(
                "end: priority covers all items of a trajectory, but part of this one is published already; "
                'open the writer with publish="end", or update_priorities once they are sampled'
            )
        if np.ndim(priority) == 0:  # type: ignore[arg-type]
            return float(as_priorities([priority])[0])
        return as_priorities(priority, item_count(self._port.table, self._length))

    def _commit(self, flags: int, timeout: float | None, final: list[np.ndarray | None] | None, priority: Any) -> None:
        """Commit all rows so far; with END in `flags` the piece is complete."""
        if self._port.rows.values and self._values is None:
            names = ", ".join(c.name for c in self._port.codec.trajectory_columns)
            raise DataError(
                f"the trajectory needs its per-trajectory columns ({names}): give them with set() or end(trajectory=)"
            )
        try:
            self._piece.commit(self._length, flags, final, self._values, priority, timeout)
        finally:
            self._renew()

    def _renew(self) -> None:
        """Write on where the current block is now: a commit, also one that failed, may have given it a real place."""
        strips = self._piece.strips_of(self._before // self._port.layout.block_steps)
        if self._fields and strips is not None:
            self._fields = [(*kind, strip) for kind, strip in zip(self._kinds, strips, strict=True)]


def _kind(column: Column) -> tuple[Any, ...]:
    """What `Writer.append` compares: name, dtype, shape, scalar type, Python type and its range, column."""
    bits = column.dtype == "bfloat16"
    dtype = None if bits else storage_dtype(column)
    plain = None if bits or column.shape else np.dtype(column.dtype).type
    return (column.name, dtype, column.shape, plain, *fast_scalar(column), column)

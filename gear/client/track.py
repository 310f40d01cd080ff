"""One trajectory on its way into a table, row after row: blocks, pieces, what is published, what was lost.

Rows go where they will stay; only when the shard lends no more blocks they wait in private memory of the same
layout until a commit makes room for them. Not thread-safe: the writer that owns a track has the lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gear.client.piece import Piece
from gear.client.priorities import as_priorities, item_count
from gear.client.values import array_of, fast_scalar, storage_dtype
from gear.errors import Closed, ConnectionLost, DataError
from gear.storage.fields import CONTINUED, CONTINUES, END, TERMINATED
from gear.transport.base import NO_SEAM, Seam

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gear.client.port import Port, Priority
    from gear.client.spread import Spread
    from gear.schema import Column

_Fields = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]

_SHORT = 4096
"""Bytes of a row up to which a copy of it costs less than a view."""

CLOSED = "this writer has been closed; ask the client for a new one"


class Track:
    """The trajectory that is being written to a table; after its end the next one.

    Parameters
    ----------
    port : Port or Spread
        Each trajectory goes to the port that it chooses.
    by_rows : bool
        Publish when a block is full, not only at the end.

    Attributes
    ----------
    closed : why nothing can be appended any more, empty while it can.
    version : of the policy, for trajectories that begin from now on; None for the table's when they are committed.
    """

    def __init__(self, port: Port | Spread, by_rows: bool) -> None:
        self._source, self._by_rows = port, by_rows
        self._port = port.choose()
        self._kinds = [_kind(column) for column in port.codec.step_columns]
        self._width = len(self._kinds)
        self.closed = ""
        self.version: int | None = None
        self._version: int | None = None
        self._values: list[np.ndarray] | None = None
        self._before = self._at = self._limit = 0
        self._strips: list[np.ndarray] = []
        self._fields: _Fields | None = None
        self._start(0)

    @property
    def rows(self) -> int:
        """Rows in the present piece."""
        return self._before + self._at

    @property
    def open(self) -> bool:
        """Whether there is anything to end."""
        return bool(self.rows) or self._piece.begun

    @property
    def begun(self) -> bool:
        """Whether rows of the present piece are published."""
        return self._piece.begun

    @property
    def unpublished(self) -> int:
        """Rows of the present piece that are not submitted."""
        return self.rows - self._piece.published

    @property
    def described(self) -> bool:
        """Whether the per-trajectory columns, if the table has any, are given."""
        return self._values is not None or not self._port.rows.values

    def append(self, step: Mapping[str, Any]) -> None:
        """Append one step; a step that does not fit is not appended."""
        at = self._at
        if at == self._limit:
            self._advance()
            at = self._at
        ndarray = np.ndarray
        try:
            if len(step) != self._width:
                raise KeyError
            # Written out, without a call per column: this runs for every step of every environment.
            arrays, scalars = self._fields or self._prepare()
            for name, dtype, shape, column, strip, octets in arrays:
                value = step[name]
                if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                    strip[at] = array_of(column, value)
                elif octets is None:
                    strip[at] = value
                else:
                    octets[at] = value.tobytes()
            for name, plain, native, low, high, dtype, column, strip in scalars:
                value = step[name]
                kind = type(value)
                if (
                    kind is not plain
                    and (kind is not native or not low <= value <= high)
                    and (kind is not ndarray or value.dtype is not dtype or value.shape)
                ):
                    value = array_of(column, value)
                strip[at] = value
        except KeyError:  # nested, or with wrong names
            checked = self._port.codec.step(step)
            for column, strip in zip(self._port.codec.step_columns, self._strips, strict=True):
                strip[at] = checked[column.name]
        self._at = at = at + 1
        if at == self._limit and self._by_rows:
            self.publish(None, wait=False)

    def extend(self, arrays: Sequence[np.ndarray], begin: int, end: int) -> None:
        """Append rows begin..end of `arrays` (dtype[n, *shape] per step column)."""
        while begin < end:
            begin += self.fill(arrays, begin, end)
            self.filled()

    def fill(self, arrays: Sequence[np.ndarray], begin: int, end: int) -> int:
        """As `extend`, as far as the current block goes and without publishing; returns how many rows."""
        if self._at == self._limit:
            self._advance()
        at = self._at
        take = min(end - begin, self._limit - at)
        self._at = stop = at + take
        for strip, array in zip(self._strips, arrays, strict=True):
            strip[at:stop] = array[begin : begin + take]
        return take

    def filled(self) -> None:
        """After `fill`: publish what may be published, if the block is full."""
        if self._at == self._limit and self._by_rows:
            self.publish(None, wait=False)

    def describe(self, values: list[np.ndarray]) -> None:
        """Give the per-trajectory columns before the end."""
        self.check_open()
        if self._piece.begun:
            raise DataError("set: rows of this trajectory are published; give its per-trajectory columns before")
        self._values = values

    def end(
        self,
        terminated: bool,
        final: list[np.ndarray | None] | None,
        priority: Priority,
        values: list[np.ndarray] | None,
        timeout: float | None,
    ) -> None:
        """Submit the rest and start anew; an error leaves the trajectory as it was."""
        self.check_open()
        if not self.open:
            raise DataError("end: no step was appended since the last end; append at least one")
        if values is not None and self._piece.begun:
            raise DataError("end: rows are published already; give the per-trajectory columns with set() before")
        checked = self._priority(priority)
        self._values = self._values if values is None else values
        self._commit(END | (TERMINATED if terminated else 0), timeout, final, checked)
        self._values = None
        self._start(0)

    def publish(self, timeout: float | None, wait: bool) -> None:
        """Commit the unpublished rows of the open trajectory, if it may be published now."""
        if not self.described:
            return
        if self._piece.lost:
            self._restart()
        if self.unpublished and (wait or self._lend()):
            self._commit(0, timeout, None, None)

    def finish(self, timeout: float | None) -> None:
        """End an open trajectory as truncated and refuse further rows.

        Raises
        ------
        GearError
            If it cannot be submitted; `unpublished` rows of it are dropped then.
        """
        try:
            if self.open:
                self._commit(END, timeout, None, None)
                self._start(0)
        finally:
            self.drop(CLOSED)

    def drop(self, why: str) -> None:
        """Refuse further rows and give the leases of unsubmitted ones back."""
        self._piece.abandon()
        self.refuse(why)

    def refuse(self, why: str) -> None:
        """Refuse further rows; whatever was not ended is gone."""
        self.closed = self.closed or why
        self._limit = self._at  # the next row asks for a block first

    def check_open(self) -> None:
        """Raise `Closed` if it refuses rows."""
        if self.closed:
            raise Closed(self.closed)

    def _start(self, flags: int, seam: Seam = NO_SEAM) -> None:
        """Begin a piece; its first block comes with the first row."""
        self._piece = Piece(self._port, flags, seam)
        self._before = self._at = self._limit = 0
        self._place([])

    def _lend(self) -> bool:
        try:
            return self._piece.lend()
        except ConnectionLost as error:
            raise self._lost(error) from None

    def _lost(self, error: ConnectionLost) -> ConnectionLost:
        """The shard is gone; where there are others, its trajectory is lost and the next goes to one of them."""
        if self._port is self._source:
            return error
        rows = self.rows
        self._values = None
        self._start(0)
        return ConnectionLost(
            f"{error}; {rows} rows of the unended trajectory are lost with it, what is appended from now on is a new "
            "one on another shard"
        )

    def _choose(self) -> None:
        """A trajectory begins: on a shard of its own."""
        port = self._source.choose()
        if port is not self._port:
            self._port = port
            self._piece = Piece(port, 0)

    def _extend(self, length: int) -> list[np.ndarray]:
        """One more block behind `length` rows; the first of a trajectory from any shard that lives."""
        while True:
            begins = not length and not self._piece.begun and not self._piece.flags & CONTINUES
            if begins:
                self._version = self.version
                self._choose()
            try:
                return self._piece.extend()
            except ConnectionLost as error:
                if begins and self._port is not self._source and self._port.session.lost:
                    continue
                raise self._lost(error) from None

    def _advance(self) -> None:
        """Move to the next block, or to the next piece at `max_length`."""
        self.check_open()
        length = self.rows
        if length == self._port.max_length:
            self._commit(END | CONTINUED, None, None, None)
            self._start(CONTINUES, _behind(self._piece, length, self._piece.sequence))
            length = 0
        elif self._piece.lost:
            self._restart()
            if self._at == self._limit:
                self._advance()
            return
        self._place(self._extend(length))
        self._before, self._at = length, 0
        self._limit = min(self._port.layout.block_steps, self._port.max_length - length)

    def _restart(self) -> None:
        """The table evicted the open trajectory: go on with what it never had, as a new piece."""
        arrays = self._piece.unpublished(self.rows)
        seam = _behind(self._piece, self._piece.published, 0)
        self._piece.abandon()
        self._start(CONTINUES, seam)
        self.extend(arrays, 0, len(arrays[0]))

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
        return as_priorities(priority, item_count(self._port.table, self.rows))

    def _commit(self, flags: int, timeout: float | None, final: list[np.ndarray | None] | None, priority: Any) -> None:
        """Commit all rows so far; with END in `flags` the piece is complete."""
        if not self.described:
            names = ", ".join(c.name for c in self._port.codec.trajectory_columns)
            raise DataError(
                f"the trajectory needs its per-trajectory columns ({names}): give them with set() or end(trajectory=)"
            )
        self._piece.version = self._version
        try:
            self._piece.commit(self.rows, flags, final, self._values, priority, timeout)
        except ConnectionLost as error:
            raise self._lost(error) from None
        finally:
            self._renew()

    def _renew(self) -> None:
        """Write on where the current block is now: a commit, also one that failed, may have given it a real place."""
        strips = self._piece.strips_of(self._before // self._port.layout.block_steps)
        if self._strips and strips is not None:
            self._place(strips)

    def _place(self, strips: list[np.ndarray]) -> None:
        """Write on in a block, given its dtype[block_steps, *shape] per step column."""
        self._strips = strips
        self._fields = None

    def _prepare(self) -> _Fields:
        """What `append` needs of each column, made when it is called: of those with a shape, and of those without."""
        arrays: list[tuple[Any, ...]] = []
        scalars: list[tuple[Any, ...]] = []
        for column, kind, strip in zip(self._port.codec.step_columns, self._kinds, self._strips, strict=True):
            if column.shape:
                arrays.append((*kind, column, strip, _octets(strip)))
            else:
                scalars.append((*kind, column, strip))
        self._fields = arrays, scalars
        return self._fields


def _octets(strip: np.ndarray) -> np.ndarray | None:
    """The rows of a strip as strings of bytes, void[block_steps], if they are short and lie side by side.

    Bytes are assigned in half the time of an array, for which NumPy makes a view of the row first.
    """
    size = strip.strides[0]
    if not 0 < size <= _SHORT or not strip.flags.c_contiguous:
        return None
    return np.ndarray(len(strip), f"V{size}", strip)


def _behind(piece: Piece, rows: int, follows: int) -> Seam:
    """Where the piece behind the first `rows` rows of this one begins; steps are counted up to what an entry holds."""
    return Seam(min(piece.seam.steps + rows, 2**31 - 1), follows)


def _kind(column: Column) -> tuple[Any, ...]:
    """What `Track.append` compares.

    Of a column with a shape: name, dtype, shape. Of one without: name, scalar type, Python type and its range, dtype.
    """
    bits = column.dtype == "bfloat16"
    dtype = None if bits else storage_dtype(column)
    if column.shape:
        return column.name, dtype, column.shape
    return (column.name, None if bits else np.dtype(column.dtype).type, *fast_scalar(column), dtype)

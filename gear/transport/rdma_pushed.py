"""Short rows on the rdma path: the server gathers them and writes them to memory of this client's.

A batch of many short runs would take many reads of a few bytes each. What came is copied to its place in the batch; a
buffer that may still be written to is used again only when its queue pair is destroyed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.errors import DataError, DeadlineExceeded, DeviceError, InsufficientMemory, PinLost, SchemaError
from gear.kernels import records as r
from gear.plan import late_columns
from gear.transport import messages as m
from gear.transport.pieces import Piece, cut, place
from gear.transport.rdma_device import device
from gear.transport.rdma_mirror import SHORT
from gear.transport.rdma_pool import Pool
from gear.transport.rdma_queue import Broken
from gear.transport.rdma_verbs import verbs
from gear.transport.rdma_way import Way
from gear.transport.remote import LEAST, deadline_of, expect
from gear.transport.tcp import TcpSession, shape_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.batch import Selection
    from gear.plan import Plan
    from gear.schema import Table
    from gear.transport.base import OpenTable

PIECE = 4 << 20
"""Bytes of a push; longer items are pushed as they are, up to what a server stages."""

ALONG = 1 << 16
"""Bytes of a batch up to which rows come with their selection, over TCP: that is one round trip instead of two."""

VARIABLE = "GEAR_RDMA_SHORT"
"""Variable of the client: bytes of a block below which rows are pushed instead of read."""

_KEPT = 64 << 20


class PushedSession(TcpSession):
    """A `Session` to which rows can be pushed."""

    _way: Way

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._way = Way()
        self._pushed_to = Pool(_register, _KEPT)

    def _have_pushed(
        self, table: OpenTable, selection: Selection, plan: Plan, out: npt.NDArray[np.uint8], first: int, steps: int
    ) -> bool:
        """Have a batch pushed piece by piece; False if there is no way now.

        Raises
        ------
        PinLost
            If the pin was taken back.
        """
        lengths = selection.lengths
        whole = Piece(self._plan(table, plan, lengths), slice(0, len(lengths)), first, steps)
        for items in cut(plan, lengths, PIECE):
            piece = self._part(table, lengths, whole, items)
            with self._talking() as talk:
                pair, back = self._way.ready(talk), self._way.back
            if pair is None or back is None:
                return False
            try:
                buffer = self._pushed_to.take(piece.plan.nbytes)
            except (DeviceError, InsufficientMemory):  # so much is not there, or may not be locked
                return False
            body = m.Push(
                table.layout.index, selection.pin, shape_of(piece.plan), buffer.memory.ctypes.data, buffer.region.rkey
            )
            frames = selection.starts[piece.items].tobytes(), lengths[piece.items].tobytes()
            there, why = False, "interrupted"
            try:
                with self._talking() as talk:
                    answer = expect(talk.ask(body, deadline_of(LEAST), frames), m.Pushed)
                if answer.immediate:
                    back.wait_for(answer.immediate)
                    self._way.went_well()
                there = True
            except (PinLost, DataError, SchemaError):  # said before anything is written
                there = True
                raise
            except (Broken, DeviceError, DeadlineExceeded) as error:
                why = str(error)
                return False
            finally:
                if not there:  # something may still come, until the pair is destroyed
                    with self._talking():
                        self._way.broke(pair, why)
                    back.close()
                self._pushed_to.put(buffer)
            if not answer.immediate:
                return False
            place([buffer.memory[: piece.plan.nbytes].data], self._into(table, lengths, plan, piece, out, False))
            self._way.figures["pushed_bytes"] += piece.plan.nbytes
        return True


def reads(plan: Plan) -> bool:
    """Whether the rows of a batch are read by its reader; else the server gathers and sends them.

    It does where blocks are short or hold rows side by side of which items take single ones, for late columns, which
    may change while they are read, and where some rows lie on a GPU.
    """
    short = int(plan.rows[0, r.BLOCK_BYTES]) < shortest()
    return not (short or plan.stepwise or late_columns(plan.table, plan.views) or on_device(plan.table))


def pushes(plan: Plan, count: int) -> bool:
    """Whether rows of so many items of a batch are pushed, if they are not read."""
    return count * plan.nbytes > ALONG * plan.size and not on_device(plan.table)


def on_device(table: Table) -> bool:
    """Whether rows of a table lie on a GPU, where no adapter reaches them; a block of it on the host holds a part."""
    return any(column.placement == "device" for column in table.columns)


def shortest() -> int:
    """Bytes of a block from which it is read.

    Raises
    ------
    DeviceError
        If the variable is no number.
    """
    said = os.environ.get(VARIABLE, "")
    if not said:
        return SHORT
    if not said.isdecimal():
        raise DeviceError(f"{VARIABLE}: expected a number of bytes, got {said!r}")
    return int(said)


def _register(memory: npt.NDArray[np.uint8]) -> Any:
    e = verbs().enums
    return device().register(memory, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)

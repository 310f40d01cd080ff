"""The `shm` data path: a server on the same host, rows written and read straight in its shared segments.

A `ShmSession` sends small messages over the control channel and maps the segments; bulk bytes never travel. Both
ends know that memory is shared when the client has read a nonce through it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gear.errors import ConnectionLost, ProtocolError
from gear.storage import memory
from gear.storage.layout import Grant, Layout
from gear.transport import messages as m
from gear.transport.base import OpenTable
from gear.transport.conversation import Call, Conversation
from gear.transport.door import Door, NotShared
from gear.transport.mapped import Mapped
from gear.transport.outbox import MOST_ASKED, Outbox
from gear.transport.remote import deadline_of, expect
from gear.transport.session import RemoteSession
from gear.transport.wire import array

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.devices.arena import Arena


class ShmSession(RemoteSession, Mapped):
    """A `Session` with a shard whose memory this process maps.

    Raises
    ------
    NotShared
        If it cannot.
    """

    path = "shm"

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._door: Door | None = None

    def _enter(self, talk: Conversation, identity: bytes, deadline: float) -> None:
        assert talk.link.welcome is not None
        self._door = Door(talk.link.welcome.directory)
        self._door.enter(identity)
        try:
            talk.ask(m.Attach(self._door.nonce), deadline)
        except ProtocolError as error:
            raise NotShared(f"the server does not share its memory with this process: {error}") from None

    def _leave(self) -> None:
        if self._door is not None:
            self._door.leave()
            self._door = None

    def _present(self) -> bool:
        return self._door is not None and self._door.alive

    def _alive(self) -> bool:
        if self._door is None or self._door.alive:
            return True
        down = None if self._talk is None else self._talk.link.down_since
        waited = 0.0 if down is None else time.monotonic() - down
        return waited < m.FORGET * self._heartbeat and self._door.stands  # it may be started again

    def _box(self, talk: Conversation, table: OpenTable) -> Outbox:
        return Outbox(talk, table)

    def _segment(self, answer: m.Opened, layout: Layout) -> npt.NDArray[np.uint8]:
        path = Path(answer.segment)
        assert self._door is not None
        if path.parent != self._door.directory:
            raise ProtocolError(f"expected a segment in {self._door.directory}, the server offers {path}")
        try:
            return memory.attach(path, layout.nbytes)
        except OSError as error:
            raise ConnectionLost(f"the segment {path} cannot be mapped: {error}") from None

    def _reached(self, answer: m.Opened, layout: Layout) -> tuple[Layout, Arena | None]:
        from gear.devices.arena import Arena

        return layout, Arena(layout, answer.gpu, answer.arena)

    # Leases

    def lease(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Up to that many, at once; first those that came with acknowledgements."""
        with self._talking() as talk:
            box = self._boxes[table.layout.index]
            if box.flying:
                talk.look()
            box.asked = min(blocks, MOST_ASKED)
            mine, slot = box.spare(blocks, slots)
            if len(mine) == blocks and len(slot) == slots:
                return Grant(mine, slot)
            box.post()  # what is committed before the shard looks makes room in this client's share
            body = m.Lease(box.index, blocks - len(mine), slots - len(slot))
            try:
                more = _grant(talk.ask(body, deadline_of(timeout), undo=lambda call: _keep(box, call)))
            except BaseException:
                box.keep(mine, slot)
                raise
            # Some came with the acknowledgements before the answer.
            came = box.spare(blocks - len(mine) - len(more.blocks), slots - len(slot) - len(more.slots))
            return Grant(np.concatenate((mine, more.blocks, came[0])), np.concatenate((slot, more.slots, came[1])))

    def allocate(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Exactly that many, for a commit that follows."""
        with self._talking() as talk:
            box = self._boxes[table.layout.index]
            body = m.Allocate(box.index, blocks, slots, timeout)
            return _grant(talk.ask(body, deadline_of(timeout), undo=lambda call: _keep(box, call)))

    def give_back(self, table: OpenTable, grant: Grant) -> None:
        """Return unused leases."""
        with self._talking():
            self._boxes[table.layout.index].give_back(grant.blocks, grant.slots)


def _grant(call: Call) -> Grant:
    expect(call, m.Granted)
    return Grant(*(array(frame, np.int32, m.MAX_ROWS, "leases") for frame in call.frames))


def _keep(box: Outbox, call: Call) -> None:
    """Leases came after their caller had given up: the next caller gets them."""
    blocks, slots = _grant(call)
    box.keep(blocks, slots)

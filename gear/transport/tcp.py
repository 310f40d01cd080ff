"""The `tcp` data path: rows travel with the control messages, whole blocks in, gathered pieces out.

The segment of a table is a private stage (`stage`): rows are written there as anywhere else, and leave with their
commit entries straight from it. Only the shard touches the table's memory, so it frees at once whatever this
client held when the client is gone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gear.errors import DeadlineExceeded, PinLost
from gear.plan import default_views, make_plan
from gear.storage import memory
from gear.storage.layout import Grant, Layout
from gear.transport import messages as m
from gear.transport.arriving import PLACED
from gear.transport.per_plan import PerPlan
from gear.transport.pieces import GRAIN, Piece, along, cut, grains, most, place, places, runs
from gear.transport.reach import refuses
from gear.transport.remote import LEAST, deadline_of, expect
from gear.transport.session import RemoteSession
from gear.transport.staged import StagedOutbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from gear.batch import Selection
    from gear.devices.arena import Arena
    from gear.plan import Plan
    from gear.transport.base import OpenTable, Wanted
    from gear.transport.channel import Buffer
    from gear.transport.conversation import Call, Conversation

FLYING = 3
"""Pieces of a batch that are under way at a time: one gathered, one sent, one taken in."""

GATHERS = 8
"""Batches that threads of one client gather at a time."""

REFUSED = 15.0
"""Seconds after a break, or after the server last listed the shard, that nobody may listen at the shard's port, nor
answer for it: the server may be restarted, or be slow to answer."""

_PLANS = 1024
"""Kept: where a batch comes from several shards, its parts have many sizes."""


class TcpSession(RemoteSession):
    """A `Session` with a shard anywhere."""

    path, maps = "tcp", False
    bulk = True
    listed: Callable[[], bool | None] = staticmethod(lambda: None)
    """Whether the server still lists this shard, which may be being started again; None if it cannot be asked."""

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._promised = float("-inf")  # when the server last said that it lists the shard
        self._early: dict[tuple[int, int], list[Buffer]] = {}
        self._gathers = threading.BoundedSemaphore(GATHERS)
        self._plans: dict[tuple[int, m.Shape, int], Plan] = {}
        self._runs: PerPlan[list[tuple[int, int]]] = PerPlan(_PLANS)
        self._shapes: PerPlan[m.Shape] = PerPlan(_PLANS)

    def _alive(self) -> bool:
        """One that its server does not list is dead, and one where nobody listens and nobody can be asked for long.

        Long silence gives this client up.
        """
        down = None if self._talk is None else self._talk.link.down_since
        if down is None:
            return True
        silent = time.monotonic() - down
        if silent >= m.FORGET * self._heartbeat:
            return False
        if self._talk is not None and self._talk.link.ending:
            return True  # the next server is being started
        listed = self.listed()
        if listed is not None:
            self._promised = time.monotonic() if listed else self._promised
            return listed
        return time.monotonic() - max(down, self._promised) < REFUSED or not refuses(self._endpoint)

    def _box(self, talk: Conversation, table: OpenTable) -> StagedOutbox:
        return StagedOutbox(talk, table)

    def _segment(self, answer: m.Opened, layout: Layout) -> npt.NDArray[np.uint8]:
        return memory.sparse(layout.nbytes)

    def _reached(self, answer: m.Opened, layout: Layout) -> tuple[Layout, Arena | None]:
        return Layout(layout.table, layout.index, layout.shard, spread=layout.spread, staged=True), None

    # Leases

    def lease(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Up to that many of the stage, at once."""
        with self._talking() as talk:
            box = self._staged(table)
            if box.flying:
                talk.look()
            grant = box.stage.lease(blocks, slots)
            if len(grant.blocks) < blocks:
                box.post()
            return grant

    def allocate(self, table: OpenTable, blocks: int, slots: int, timeout: float | None) -> Grant:
        """Exactly that many; waits until enough of what is under way has arrived."""
        with self._talking() as talk:
            box = self._staged(table)
            if not box.room_for(blocks, slots):
                box.post()
                self._wait_for(talk, box, lambda: box.room_for(blocks, slots), timeout)
            return box.stage.take(blocks, slots)

    def give_back(self, table: OpenTable, grant: Grant) -> None:
        """Return unused leases."""
        with self._talking():
            self._staged(table).give_back(grant.blocks, grant.slots)

    def _staged(self, table: OpenTable) -> StagedOutbox:
        box = self._boxes[table.layout.index]
        assert isinstance(box, StagedOutbox)
        return box

    def names(self, table: OpenTable, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
        """The shard knows: its blocks are not those in which rows are written here."""
        return None

    # Rows that come

    def ahead(self, plan: Plan | None, count: int) -> m.Shape | None:
        """How items look whose rows are to come with their selection, in one round trip."""
        if plan is None or not count or not along(plan, count, self._laned):
            return None
        return self._shapes.of(plan, _short)

    def select(self, table: OpenTable, wanted: Wanted, timeout: float | None) -> Selection:
        """Draw and pin items; of fewer than were wanted the rows are asked for again if they have gone to their place.

        It is that of the batch that was wanted: their bytes may be as many, as columns are aligned.
        """
        selection = super().select(table, wanted, timeout)
        if len(selection) != wanted.size:
            key = table.layout.index, selection.pin
            if key in self._early and self._early[key][0] is PLACED:
                del self._early[key]
        return selection

    def _came(self, index: int, pin: int, rows: list[Buffer]) -> None:
        self._early[index, pin] = rows

    def arrived(self, table: OpenTable, selection: Selection, plan: Plan) -> npt.NDArray[np.uint8] | None:
        """Rows that came with their selection, in the memory that they were received in."""
        key = table.layout.index, selection.pin
        early = self._early.get(key)
        if early is None or len(early) != 2 or not isinstance(early[0], memoryview) or early[0].readonly:
            return None
        if early[1] == m.CUT and plan.nbytes > GRAIN:
            return None
        if len(early[0]) != plan.nbytes or len(selection) != plan.size:
            return None
        del self._early[key]
        return np.frombuffer(early[0], np.uint8)

    def gather(
        self,
        table: OpenTable,
        selection: Selection,
        plan: Plan,
        out: npt.NDArray[np.uint8],
        first: int = 0,
        steps: int = 0,
    ) -> bool:
        """Have the rows sent piece by piece, the next ones asked for while one is taken in.

        Raises
        ------
        DeadlineExceeded
            If none comes for `LEAST` seconds.
        """
        lengths = selection.lengths
        whole = Piece(self._plan(table, plan, lengths), slice(0, len(lengths)), first, steps)
        early = self._early.pop((table.layout.index, selection.pin), None)
        if early is not None:
            if early[0] is not PLACED:
                place(early[:-1], self._into(table, lengths, plan, whole, out, early[-1] == m.CUT))
            return True
        with self._gathers:
            flying: deque[tuple[Piece, Call]] = deque()
            try:
                for items in cut(plan, lengths, most(self._laned)):
                    if len(flying) == FLYING:
                        self._take_in(table, selection, plan, flying, out)
                    piece = self._part(table, lengths, whole, items)
                    flying.append((piece, self._ask_for(table, selection, plan, piece, out)))
                while flying:
                    self._take_in(table, selection, plan, flying, out)
            except PinLost:
                return False
            finally:
                if flying:  # nothing is to come to `out` any more
                    with self._talking() as talk:
                        for _, call in flying:
                            talk.abandon(call, None)
        return True

    @property
    def _laned(self) -> bool:
        return self._talk is not None and self._talk.link.laned

    def straight(self, table: OpenTable, plan: Plan, out: npt.NDArray[np.uint8]) -> Sequence[memoryview] | None:
        """Where the rows of a batch go in `out` as they come over a lane."""

        def of(plan: Plan) -> list[tuple[int, int]]:
            whole, lengths = Piece(plan, slice(0, plan.size), 0, 0), np.full(plan.size, plan.length, np.int32)
            return runs(self._grains(table, lengths, whole), plan)

        return places(self._runs.of(plan, of), out)

    def _part(self, table: OpenTable, lengths: npt.NDArray[np.int32], piece: Piece, items: slice) -> Piece:
        """Some of the items of a piece; `lengths` are those of all items, int32[B]."""
        own, begin = lengths[piece.items], piece.items.start
        before = piece.plan.steps_of(own[: items.start]) if piece.plan.packed else 0
        return Piece(
            self._plan(table, piece.plan, own[items]),
            slice(begin + items.start, begin + items.stop),
            piece.first + items.start,
            piece.before + before,
        )

    def _grains(self, table: OpenTable, lengths: npt.NDArray[np.int32], piece: Piece) -> list[Piece]:
        return [self._part(table, lengths, piece, items) for items in grains(piece.plan, lengths[piece.items])]

    def _into(
        self,
        table: OpenTable,
        lengths: npt.NDArray[np.int32],
        plan: Plan,
        piece: Piece,
        out: npt.NDArray[np.uint8],
        grained: bool,
    ) -> list[memoryview]:
        """Where the bytes of a piece belong in the batch `out`."""
        return places(runs(self._grains(table, lengths, piece) if grained else [piece], plan), out)

    def _ask_for(
        self, table: OpenTable, selection: Selection, plan: Plan, piece: Piece, out: npt.NDArray[np.uint8]
    ) -> Call:
        body = m.Collect(table.layout.index, selection.pin, shape_of(plan))
        frames = selection.starts[piece.items].tobytes(), selection.lengths[piece.items].tobytes()
        with self._talking() as talk:
            into = self._into(table, selection.lengths, plan, piece, out, True) if self._laned else None
            return talk.post(body, frames, into=into)

    def _take_in(
        self,
        table: OpenTable,
        selection: Selection,
        plan: Plan,
        flying: deque[tuple[Piece, Call]],
        out: npt.NDArray[np.uint8],
    ) -> None:
        """Wait for the piece asked for first, and copy it to its place if it did not go there at once."""
        piece, call = flying[0]
        with self._talking() as talk:
            if not talk.until(lambda: call.done or self.away, deadline_of(LEAST)):
                raise DeadlineExceeded(f"collect: the server sent no rows for {LEAST:g} s")
            talk.used = time.monotonic()
            if not call.done:
                raise PinLost("the shard is being started again; select again")
        if isinstance(call.answer, m.Failed):
            raise call.answer.error()
        expect(call, m.Gathered)
        flying.popleft()
        *frames, last = call.frames
        if last == m.BAD:  # the answer to the same question says why, or they are
            flying.append((piece, self._ask_for(table, selection, plan, piece, out)))
        elif frames[0] is not PLACED:
            place(frames, self._into(table, selection.lengths, plan, piece, out, last == m.CUT))

    def _plan(self, table: OpenTable, whole: Plan, lengths: npt.NDArray[np.int32]) -> Plan:
        """The plan of a piece of items of these lengths."""
        size = len(lengths)
        if size == whole.size:
            return whole
        if whole.packed:
            return make_plan(table.layout, whole.views, size, whole.length, whole.steps_of(lengths))
        key = (table.layout.index, shape_of(whole), size)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[key] = make_plan(table.layout, whole.views, size, whole.length)
        return plan

    def release(self, table: OpenTable, selection: Selection, delivered: bool) -> None:
        """End this party's hold; travels with the next message."""
        self._early.pop((table.layout.index, selection.pin), None)
        super().release(table, selection, delivered)


def shape_of(plan: Plan) -> m.Shape:
    """How the items of a plan look."""
    return m.Shape(plan.views, plan.length, plan.packed)


def _short(plan: Plan) -> m.Shape:
    """The same, without the views if they are what none stand for: to read them takes longer than to draw."""
    shape = shape_of(plan)
    return msgspec.structs.replace(shape, views=()) if plan.views == default_views(plan.table) else shape

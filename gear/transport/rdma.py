"""The `rdma` data path: rows are read from the shard's memory and written to it by the network adapters.

It is the `tcp` path, on whose connection everything small goes, with another way for rows where they are long enough:
a reader has the blocks of what it has pinned brought to memory of its own and gathers there, or has short rows pushed,
a writer has its rows brought to the blocks that it leased. Where the way is broken rows go over TCP until it is there
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gear.errors import DeviceError, GearError, InsufficientMemory, PinLost, ProtocolError
from gear.kernels import records as r
from gear.transport import messages as m
from gear.transport.rdma_device import device, enter, leave
from gear.transport.rdma_mirror import Found, Mirror
from gear.transport.rdma_outbox import RdmaOutbox
from gear.transport.rdma_pool import Pool
from gear.transport.rdma_pushed import PushedSession, on_device, pushes, reads
from gear.transport.rdma_queue import Broken, Key, QueuePair
from gear.transport.rdma_verbs import verbs
from gear.transport.remote import LEAST, deadline_of, expect
from gear.transport.wire import array

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.batch import Selection
    from gear.plan import Plan
    from gear.storage.layout import Layout
    from gear.transport.base import OpenTable
    from gear.transport.conversation import Call, Conversation
    from gear.transport.staged import StagedOutbox

PIECE = 32 << 20
"""Bytes of blocks that are brought at a time, as far as whole items allow."""


class NoWay(DeviceError):
    """Rows cannot be moved by RDMA between these two ends."""


class RdmaSession(PushedSession):
    """A `Session` with a shard on a host that an RDMA device of this one reaches.

    Raises
    ------
    NoWay
        If one of the ends has no device, or they do not reach each other.
    """

    path = "rdma"

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._entered = False
        self._pool = Pool(self._register)

    def _enter(self, talk: Conversation, identity: bytes, deadline: float) -> None:
        super()._enter(talk, identity, deadline)
        call: Call | None = None
        try:
            enter()
            self._entered = True
            call = self._way.dial(talk)
            talk.answer(call, "dial", deadline)
        except GearError as error:
            refused = call is not None and isinstance(call.answer, m.Failed)  # for whatever reason
            if not refused and not isinstance(error, (DeviceError, ProtocolError)):
                raise
            raise NoWay(str(error)) from None
        if self._way.pair is None:
            raise NoWay("the server's queue pair cannot be reached from here; see the log")

    def _leave(self) -> None:
        self._way.close()
        for box in self._boxes.values():
            if isinstance(box, RdmaOutbox):
                box.unregister()
        for pool in (self._pool, self._pushed_to):
            pool.close()
        if self._entered:
            self._entered = False
            leave()
        super()._leave()

    def info(self, timeout: float | None) -> dict[str, Any]:
        """Figures of the server and of each table, and of the way."""
        return {**super().info(timeout), "way": {**self._way.info(), "buffers": self._pool.made + self._pushed_to.made}}

    def _box(self, talk: Conversation, table: OpenTable) -> StagedOutbox:
        if on_device(table.table):
            return super()._box(talk, table)
        return RdmaOutbox(talk, table, self._way, self._register)

    @staticmethod
    def _register(memory: npt.NDArray[np.uint8]) -> Any:
        return device().register(memory, verbs().enums.IBV_ACCESS_LOCAL_WRITE)

    # Rows that are read

    def ahead(self, plan: Plan | None, count: int) -> m.Shape | None:
        """Rows come along with their selection only where they are not read."""
        if plan is None or not (reads(plan) or pushes(plan, count)):
            return super().ahead(plan, count)
        with self._talking() as talk:
            pair = self._way.ready(talk)
        return super().ahead(plan, count) if pair is None else None

    def gather(
        self,
        table: OpenTable,
        selection: Selection,
        plan: Plan,
        out: npt.NDArray[np.uint8],
        first: int = 0,
        steps: int = 0,
    ) -> bool:
        """Have the blocks brought and gather from them, or short rows pushed; over TCP where there is no way now."""
        pin = selection.pin
        if (table.layout.index, pin) in self._early or not (reads(plan) or pushes(plan, plan.size)):
            return super().gather(table, selection, plan, out, first, steps)
        if not reads(plan):
            try:
                pushed = self._have_pushed(table, selection, plan, out, first, steps)
            except PinLost:
                return False
            return pushed or super().gather(table, selection, plan, out, first, steps)
        table.reading.append(pin)
        try:
            if self.revoked(table, selection):
                return False
            for items in cut(table.layout, plan, selection.lengths):
                before = steps + plan.steps_of(selection.lengths[: items.start]) if plan.packed else 0
                placed = plan.behind(first + items.start, before) if first + items.start else plan
                if not self._bring(table, selection, plan, placed, items, out):
                    return super().gather(table, selection, plan, out, first, steps)
        except PinLost:
            return False
        finally:
            table.reading.remove(pin)
        return not self.revoked(table, selection)

    def _bring(
        self,
        table: OpenTable,
        selection: Selection,
        plan: Plan,
        placed: Plan,
        items: slice,
        out: npt.NDArray[np.uint8],
    ) -> bool:
        """Gather some items; False if the way broke."""
        from gear.kernels.collect import collect  # who only inserts never imports the compiler

        layout = table.layout
        starts, lengths = selection.starts[items], selection.lengths[items]
        located = self._locate(table, selection, plan, starts, lengths)
        if located is None:
            return False
        pair, found, values, arena, trajectories = located
        mirror = Mirror(layout, found)
        try:
            buffer = self._pool.take(mirror.nbytes)
        except (DeviceError, InsufficientMemory) as error:  # so much is not there, or may not be locked
            with self._talking():
                self._way.broke(pair, str(error))
            return False
        near = buffer.memory.ctypes.data, buffer.region.lkey
        rows, wide = mirror.transfers()
        try:
            pair.read(rows, near, arena)
            pair.read(wide, near, trajectories)
        except Broken as error:  # destroyed: nothing comes any more
            with self._talking():
                self._way.broke(pair, str(error))
            self._pool.put(buffer)
            return False
        self._way.went_well()
        self._way.figures["read_bytes"] += sum(one.nbytes for one in (*rows, *wide))
        mirror.fill(buffer.memory, values)
        neighbours = mirror.neighbours(selection.neighbours)
        collect(buffer.memory, mirror.plan(placed), mirror.starts(starts), lengths.copy(), neighbours, out)
        self._pool.put(buffer)
        return True

    def _locate(
        self,
        table: OpenTable,
        selection: Selection,
        plan: Plan,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
    ) -> tuple[QueuePair, Found, npt.NDArray[np.uint8], Key, Key] | None:
        """Ask where rows lie, and by which queue pair they can be read; None if there is no way now.

        Raises
        ------
        PinLost
            If the pin was taken back.
        """
        body = m.Locate(table.layout.index, selection.pin, plan.length, plan.before, plan.after)
        with self._talking() as talk:
            pair = self._way.ready(talk)
            if pair is None:
                return None
            try:
                call = talk.ask(body, deadline_of(LEAST), (starts.tobytes(), lengths.tobytes()))
            except DeviceError as error:
                self._way.broke(pair, str(error))
                return None
        return pair, *found_of(call)


def cut(layout: Layout, plan: Plan, lengths: npt.NDArray[np.int32]) -> list[slice]:
    """The items whose blocks are brought together: as many as `PIECE` bytes hold, one at least."""
    rows = np.minimum(lengths, plan.length).astype(np.int64) + min(plan.before + plan.after, layout.max_length)
    nbytes = np.cumsum((rows // layout.block_steps + 2) * layout.block_bytes)
    pieces, begin = [], 0
    while begin < len(lengths):
        done = int(nbytes[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(nbytes, done + PIECE, "right")))
        pieces.append(slice(begin, end))
        begin = end
    return pieces


def found_of(call: Call) -> tuple[Found, npt.NDArray[np.uint8], Key, Key]:
    """What an answer says of where rows lie.

    Raises
    ------
    ProtocolError
        If its arrays do not fit each other.
    """
    answer: m.Located = expect(call, m.Located)
    blocks = array(call.frames[0], np.int32, m.MAX_ROWS, "Located blocks")
    records = array(call.frames[1], np.int32, m.MAX_ROWS, "Located blocks")
    slots = array(call.frames[2], np.int32, m.MAX_ROWS, "Located slots")
    slot_records = array(call.frames[3], np.int64, m.MAX_ROWS, "Located slots")
    if len(records) != len(blocks) * r.BLOCK_FIELDS or len(slot_records) != len(slots) * r.SLOT_FIELDS:
        raise ProtocolError(f"Located: {len(records)} and {len(slot_records)} fields do not fit their numbers")
    found = Found(blocks, records.reshape(-1, r.BLOCK_FIELDS), slots, slot_records.reshape(-1, r.SLOT_FIELDS))
    values = np.frombuffer(call.frames[4], np.uint8)
    return found, values, Key(answer.arena, answer.key), Key(answer.trajectories, answer.key)

"""Commits on the rdma path without a device: a shard that is played here, whose memory `write` copies to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gear
from gear.storage import memory
from gear.storage.fields import BEGIN, END
from gear.storage.layout import COMMIT_ENTRY, Layout
from gear.transport import messages as m
from gear.transport.base import OpenTable
from gear.transport.rdma_inbox import Inbox
from gear.transport.rdma_outbox import RdmaOutbox
from gear.transport.rdma_queue import Broken

TABLE = gear.Table(
    "t", (gear.Column("x", (), "int64"), gear.Column("y", (), "int64", per="trajectory")), gear.Steps(4000),
    item=gear.Whole(), mean_length=10, max_length=12, block_steps=4,
)  # fmt: skip
LAYOUT = Layout(TABLE)
SIZE = LAYOUT.block_bytes
WHOLE = BEGIN | END
FREE, INBOX = 40, 1 << 30


class Shard:
    """A conversation and a queue pair: answers when it is told to, and keeps what it was sent, in order."""

    def __init__(self) -> None:
        self.arena = np.zeros((LAYOUT.blocks, SIZE), np.uint8)
        self.free = list(range(100, 100 + FREE))[::-1]
        self.leased: set[int] = set()
        self.held: list[tuple] = []
        self.committed: list[tuple[int, list[int], int]] = []  # sequence, rows, y
        self.ways: list[str] = []
        self.link = SimpleNamespace(void=[], up=True, welcome=None)
        self.most, self.break_after, self.broken = FREE, -1, False
        self.restart = self.refuse = False
        self.writes, self.inbox, self.inmail = True, Inbox(0, 0, 0, 0), np.zeros(0, np.uint8)

    def give_inboxes(self, blocks: int) -> None:
        """As a shard whose device does not hold writers to their leases."""
        self.writes, self.inmail = False, np.zeros(blocks * SIZE, np.uint8)
        self.inbox = Inbox(17, INBOX, 7, blocks * SIZE)

    # As a conversation

    def check(self) -> None:
        pass

    def post(self, body, frames=(), on_answer=None) -> None:
        self.held.append((body, [bytes(f) for f in frames], on_answer))

    def answer(self, count: int = 1 << 30) -> None:
        while self.held and count:
            count -= 1
            body, frames, on_answer = self.held.pop(0)
            answer, back = getattr(self, f"_{type(body).__name__.lower()}")(body, frames)
            if on_answer is not None:
                on_answer(SimpleNamespace(answer=answer, frames=back))

    def _place(self, body, frames):
        if self.broken:
            return m.Failed("DeviceError", "no queue pair"), []
        count = max(body.least, min(body.blocks, self.most))
        blocks = sorted(self.free.pop() for _ in range(count))
        self.leased |= set(blocks)
        breaks = [0, *[k for k in range(1, count) if blocks[k] != blocks[k - 1] + 1], count]
        windows = [(b - a, blocks[a] * SIZE, 7) for a, b in zip(breaks, breaks[1:], strict=False)]
        slots = np.arange(body.slots, dtype=np.int32)
        return m.Placed(), [
            np.array(blocks, np.int32).tobytes(),
            slots.tobytes(),
            np.array(windows, np.int64).tobytes(),
        ]

    def _land(self, body, frames):
        if self.restart:
            return m.Failed("DeviceError", "started again", self.committed[-1][0] if self.committed else 0), []
        if self.refuse:
            return m.Failed("DataError", "no", self.committed[-1][0] if self.committed else 0), []
        blocks = np.frombuffer(frames[1], np.int32).tolist()
        assert self.leased >= set(blocks)
        self._commit(np.frombuffer(frames[0], COMMIT_ENTRY), self.arena[blocks], frames[3], "land")
        self._give(blocks)
        return m.Committed(self.committed[-1][0], []), [b"", b""]

    def _insert(self, body, frames):
        rows = np.frombuffer(b"".join(frames[3:]), np.uint8).reshape(-1, SIZE)
        self._commit(np.frombuffer(frames[0], COMMIT_ENTRY), rows, frames[2], "insert")
        return m.Committed(self.committed[-1][0], []), [b"", b""]

    def _unload(self, body, frames):
        if self.restart:
            return m.Failed("DeviceError", "started again", self.committed[-1][0] if self.committed else 0), []
        if self.refuse:
            return m.Failed("DataError", "no", self.committed[-1][0] if self.committed else 0), []
        rows = self.inmail[body.begin : body.begin + body.nbytes].copy().reshape(-1, SIZE)
        self._commit(np.frombuffer(frames[0], COMMIT_ENTRY), rows, frames[2], "unload")
        return m.Committed(self.committed[-1][0], []), [b"", b""]

    def _forgo(self, body, frames):
        self._give(np.frombuffer(frames[0], np.int32).tolist())
        return m.Done(), []

    def _give(self, blocks) -> None:
        assert self.leased >= set(blocks)
        self.leased -= set(blocks)
        self.free += blocks

    def _commit(self, entries, rows, values, way) -> None:
        at, y = 0, np.frombuffer(values, np.int64)
        for k, entry in enumerate(entries):
            n, sequence = int(entry["blocks"]), int(entry["sequence"])
            assert not self.committed or sequence > self.committed[-1][0], "out of order"
            mine = rows[at : at + n].reshape(-1).view(np.int64)[: entry["length"]]
            self.committed.append((sequence, mine.tolist(), int(y[k])))
            at += n
        self.ways.append(way)

    # As a way and its queue pair

    figures = {"written_bytes": 0}

    @property
    def pair(self):
        return None if self.broken else self

    def ready(self, talk):
        return self.pair

    def broke(self, pair, why) -> None:
        self.broken = True

    def went_well(self) -> None:
        pass

    def write(self, moves, near, far) -> None:
        if self.break_after == 0:
            raise Broken("test")
        self.break_after -= 1
        for one in moves:
            source = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * one.nbytes).from_address(near[0] + one.near))
            at = far.address + one.far
            if not self.writes:
                at -= INBOX
                self.inmail[at : at + one.nbytes] = source
                continue
            assert at // SIZE in self.leased
            self.arena.reshape(-1)[at : at + one.nbytes] = source


class Writer:
    """Puts numbered trajectories into an outbox."""

    def __init__(self) -> None:
        self.shard = Shard()
        opened = OpenTable(TABLE, LAYOUT, memory.sparse(LAYOUT.nbytes))
        register = lambda memory: SimpleNamespace(lkey=1, close=lambda: None)
        self.box = RdmaOutbox(self.shard, opened, self.shard, register)
        self.rows = self.box.stage.blocks
        base = LAYOUT.regions["trajectories"].offset + LAYOUT.placements["y"].offset
        self.values = opened.segment[base:].view(np.int64)
        self.put: list[tuple[int, list[int], int]] = []

    def add(self, length: int) -> None:
        grant = self.box.stage.lease(-(-length // 4), 1)
        number = self.box.sequence + 1
        rows = [number * 100 + k for k in range(length)]
        for k, block in enumerate(grant.blocks.tolist()):
            part = np.array(rows[4 * k : 4 * k + 4], np.int64).view(np.uint8)
            self.rows[block, : len(part)] = part
        self.values[grant.slots[0]] = -number
        self.box.add(int(grant.slots[0]), grant.blocks.tolist(), length, WHOLE, None)
        self.put.append((number, rows, -number))

    def settled(self) -> None:
        """Everything was acknowledged, nothing is leased any more anywhere."""
        self.box.post()
        self.shard.answer()
        assert self.shard.committed == self.put
        assert self.box.settled == self.box.sequence
        assert (self.box.flying, self.box.count) == (0, 0)
        assert not self.shard.leased
        assert not self.shard.inbox._taken
        assert [numbers.used for numbers in self.box.stage._numbers] == [0, 0]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 12)),
        st.tuples(st.just("answer"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["break", "mend", "few", "post"]), st.integers(0, 4)),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([0, 4, 12]))
def test_every_entry_is_committed_once_in_order_with_its_rows_whatever_breaks(steps, inbox):
    writer = Writer()
    shard = writer.shard
    if inbox:
        shard.give_inboxes(inbox)
    for what, n in steps:
        if what == "add" and len(shard.free) > 24:
            writer.add(n)
        elif what == "answer":
            shard.answer(n)
        elif what == "break":
            shard.break_after = n
        elif what == "mend":
            shard.broken, shard.break_after = False, -1
        elif what == "few":
            shard.most = 1 + n
        elif what == "post":
            writer.box.post()
    writer.settled()


def test_rows_are_written_and_named_by_their_commit():
    writer = Writer()
    for length in (4, 12, 5):
        writer.add(length)
    writer.settled()
    assert writer.shard.ways == ["land", "land"]  # the first at once, the others together


def test_a_shard_with_few_blocks_gets_a_message_in_parts():
    writer = Writer()
    writer.shard.most = 3
    writer.add(4)
    for _ in range(4):
        writer.add(8)
    writer.settled()
    assert writer.shard.ways == ["land"] * 5


def test_what_a_shard_that_was_started_again_has_no_leases_for_is_sent_along():
    writer = Writer()
    writer.add(4)
    writer.add(12)
    writer.shard.answer(1)  # placed, written, and the commit is on its way
    writer.shard.restart = writer.shard.broken = True
    writer.shard.leased.clear()
    writer.settled()
    assert writer.shard.ways == ["insert", "insert"]


@pytest.mark.parametrize("inbox", [0, 12])
def test_what_is_refused_leaves_no_lease(inbox):
    writer = Writer()
    if inbox:
        writer.shard.give_inboxes(inbox)
    writer.shard.refuse = True
    writer.add(4)
    writer.add(12)
    writer.shard.answer(1 if inbox else 2)  # blocks are leased first
    writer.shard.refuse = False
    del writer.put[0]
    writer.settled()
    assert isinstance(writer.box.refusal(1), gear.DataError)


def test_rows_in_an_inbox_are_named_by_their_commit_and_those_that_find_no_room_wait():
    writer = Writer()
    writer.shard.give_inboxes(4)
    for length in (4, 12, 5):  # the last two go together: more than there will ever be room for
        writer.add(length)
    assert writer.shard.held[0][0] == m.Unload(0, 17, 0, SIZE)
    writer.settled()
    for length in (4, 12):
        writer.add(length)
        writer.box.post()
    assert [type(body) for body, *_ in writer.shard.held] == [m.Unload, m.Unload]
    writer.add(1)
    writer.box.post()
    assert len(writer.shard.held) == 2  # no room now
    writer.settled()
    assert writer.shard.ways == ["unload", "insert", "unload", "unload", "unload"]


def test_what_is_in_an_inbox_that_is_no_more_is_sent_along_in_order():
    writer = Writer()
    writer.shard.give_inboxes(12)
    for length in (4, 12, 3):
        writer.add(length)
        writer.box.post()
    writer.shard.restart = writer.shard.broken = True
    writer.settled()
    assert writer.shard.ways == ["insert"] * 3


def test_entries_in_line_can_be_withdrawn():
    writer = Writer()
    for length in (4, 8, 12, 3):
        writer.add(length)
    assert writer.box.drop(3, 3) == 1  # gathered behind the one whose leases are asked for
    assert writer.box.drop(1, 1) == 1  # in line
    del writer.put[2], writer.put[0]
    writer.settled()


@pytest.mark.parametrize("beyond", [True, False])
def test_blocks_that_are_not_registered_go_along(beyond):
    writer = Writer()
    if beyond:
        writer.box.stage.most = 0
    writer.add(4)
    writer.settled()
    assert writer.shard.ways == ["insert" if beyond else "land"]

"""What clients without shared memory may say about rows, and what is refused; nothing of it harms anybody."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import gear
from gear.errors import DataError, GearError, PinLost, ProtocolError, SchemaError
from gear.server import bulk
from gear.server.gatherer import AT_ONCE
from gear.storage.fields import BEGIN, END
from gear.storage.layout import COMMIT_ENTRY
from gear.transport import messages as m
from gear.transport.base import Wanted
from gear.transport.negotiation import connect
from gear.transport.tcp import TcpSession
from gear.views import View
from tests.transport.helpers import eventually, figures, insert, table


@pytest.fixture
def over_tcp(server):
    session = connect(server.address, timeout=60.0, path="tcp")
    assert isinstance(session, TcpSession)
    yield session
    session.close()


def ask(session: TcpSession, body: m.Message, *frames: bytes):
    with session._talk.lock:
        return session._talk.ask(body, 1e9, frames)


def entry(sequence: int = 1, slot: int = 0, blocks: int = 1, length: int = 3, flags: int = 3, before: int = 0) -> bytes:
    one = np.zeros(1, COMMIT_ENTRY)
    flags = {3: BEGIN | END}.get(flags, flags)
    one[0] = (sequence, slot, blocks, length, flags, 0, before, 0)
    return one.tobytes()


def test_rows_of_the_wrong_size_are_refused_and_nothing_is_leased(session, over_tcp, name):
    opened = over_tcp.create_table(table(name), 60.0)
    index, size = opened.layout.index, opened.layout.block_bytes
    block = bytes(size)
    good = entry()
    for frames, problem in (
        ((good, b"", b""), "expected 1 blocks of"),
        ((good, b"", b"", block[1:]), "expected 1 blocks of"),
        ((good, b"", b"", block, block), "expected 1 blocks of"),
        ((good, b"", b"", block[:8], block[8:]), "expected 1 blocks of"),
        ((good, bytes(8), b"", block), "expected 0 priorities, got 1"),
        ((good, b"", b"x", block), "bytes of per-trajectory columns"),
        ((b"", b"", b"", block), "expected at least one entry"),
        ((good[:-1], b"", b"", block), "expected at most"),
        ((entry(blocks=2), b"", b"", block, block), "blocks or priorities does not fit"),
        ((entry(length=-3), b"", b"", block), "length can not be"),
        ((entry(before=-1), b"", b"", block), "length can not be"),
        ((entry(before=2), b"", b"", block), "length can not be"),
        ((entry(length=11, blocks=2), b"", b"", block * 2), "longer than the 10 steps"),
        ((entry(length=2**31 - 1, before=2**31 - 1, flags=0), b"", b"", block), "longer than the 10 steps"),
        ((entry(flags=1 << 20), b"", b"", block), "slot -1"),
        ((entry(flags=BEGIN | END | 1 << 20), b"", b"", block), "flags"),
        ((entry(slot=5, flags=END, before=4), b"", b"", block), "number of blocks|not leased"),
        ((entry(slot=5, flags=END, before=4, blocks=0), b"", b"", block), "slot -1"),
    ):
        with pytest.raises((ProtocolError, DataError), match=problem):
            ask(over_tcp, m.Insert(index), *frames)
    after = figures(session, name)
    assert (after["inserted_trajectories"], after["leased_blocks"], after["used_blocks"]) == (0, 0, 0)
    assert ask(over_tcp, m.Insert(index), good, b"", b"", block).answer == m.Committed(1, [])


def test_a_chunk_after_a_refused_one_does_not_shift_rows(session, over_tcp, name):
    opened = over_tcp.create_table(table(name, item=gear.Step(0), publish="rows", sampler=gear.Prioritized()), 60.0)
    index, block = opened.layout.index, bytes(opened.layout.block_bytes)
    ask(over_tcp, m.Insert(index), entry(1, 9, 1, 2, BEGIN), b"", b"", block)
    bad = np.frombuffer(entry(2, 9, 0, 2, 0, before=2), COMMIT_ENTRY).copy()
    bad["priorities"] = 1
    with pytest.raises(DataError, match="priority"):
        ask(over_tcp, m.Insert(index), bad.tobytes(), np.array([np.nan]).tobytes(), b"", block)
    with pytest.raises(ProtocolError, match="slot -1"):
        ask(over_tcp, m.Insert(index), entry(3, 9, 0, 2, 0, before=4), b"", b"", block)
    ask(over_tcp, m.Insert(index), entry(4, 9, 0, 3, END, before=2), b"", b"", block)
    after = figures(session, name)
    assert (after["inserted_steps"], after["trajectories"], after["leased_blocks"]) == (5, 1, 0)


def test_random_entries_change_nothing_for_others(session, over_tcp, name):
    opened = over_tcp.create_table(table(name, item=gear.Step(0), publish="rows"), 60.0)
    index, size = opened.layout.index, opened.layout.block_bytes
    chance = random.Random(11)
    for number in range(400):
        count = chance.randrange(1, 4)
        entries = b"".join(
            entry(
                3 * number + k + 1,
                chance.randrange(-1, 4),
                chance.randrange(0, 3),
                chance.randrange(0, 12),
                chance.choice([3, BEGIN, END, 0, chance.randrange(64)]),
                chance.choice([0, 0, 3, 7, 10]),
            )
            for k in range(count)
        )
        blocks = [bytes(size * chance.randrange(1, 3)) for _ in range(chance.randrange(1, 4))]
        try:
            ask(over_tcp, m.Insert(index), entries, b"", b"", *blocks)
        except GearError:
            pass
    insert(session, session.open_table(name, 60.0), 5)
    over_tcp.close()
    after = figures(session, name)
    assert after["leased_blocks"] <= 1  # one came with the acknowledgement
    assert after["trajectories"] >= 1


def collect(session: TcpSession, index: int, pin: int, shape: m.Shape, starts, lengths):
    frames = np.array(starts, np.int64).tobytes(), np.array(lengths, np.int32).tobytes()
    return ask(session, m.Collect(index, pin, shape), *frames)


def test_what_cannot_be_collected_is_refused(session, over_tcp, name):
    opened = over_tcp.create_table(table(name), 60.0)
    index = opened.layout.index
    insert(over_tcp, opened, 7)
    selection = over_tcp.select(opened, Wanted(2), 60.0)
    good = m.Shape((View("k"),), 3)
    for pin, shape, starts, lengths, error, problem in (
        (selection.pin, m.Shape((View("other"),), 3), [0], [3], SchemaError, "other"),
        (selection.pin, m.Shape((View("k", value=1.5),), 3), [0], [3], SchemaError, "value 1.5"),
        (selection.pin, m.Shape((View("k"), View("k")), 3), [0], [3], SchemaError, "twice"),
        (selection.pin, m.Shape((View("k"),), 0), [0], [3], ProtocolError, "have no 0 steps"),
        (selection.pin, m.Shape((View("k"),), 11), [0], [3], ProtocolError, "have no 11 steps"),
        (selection.pin, good, [0], [3, 3], ProtocolError, "as many starts as lengths"),
        (selection.pin, good, [], [], ProtocolError, "as many starts as lengths"),
        (selection.pin, m.Shape((View("k"),), 10), [0] * 500_000, [3] * 500_000, ProtocolError, "fewer at a time"),
        (selection.pin + 1, good, [0], [3], PinLost, "not held by this client"),
    ):
        with pytest.raises(error, match=problem):
            collect(over_tcp, index, pin, shape, starts, lengths)
    theirs = session.open_table(name, 60.0)
    with pytest.raises(PinLost):
        collect(over_tcp, index, session.select(theirs, Wanted(1), 5.0).pin, good, [0], [3])
    with pytest.raises(SchemaError, match="other"):
        ask(over_tcp, m.Select(index, 1, 1, 60.0, 1.0, m.Shape((View("other"),), 3)))


def test_rows_outside_the_table_are_padding(over_tcp, name):
    """Whatever a client says about rows, nothing outside the blocks is read."""
    opened = over_tcp.create_table(table(name), 60.0)
    insert(over_tcp, opened, 7)
    selection = over_tcp.select(opened, Wanted(1), 60.0)
    far = [-1, -(2**62), 2**62, opened.layout.blocks * opened.layout.block_steps]
    shape = m.Shape((View("k", value=-5),), 3)
    call = collect(over_tcp, opened.layout.index, selection.pin, shape, [*far, selection.starts[0]], [3] * 5)
    values = np.frombuffer(call.frames[0], np.int64, 15).reshape(5, 3)
    assert values.tolist() == [[-5] * 3] * 4 + [[7] * 3]


def test_a_client_that_asks_for_more_than_it_takes_in_is_refused(over_tcp, name, session):
    """It must not make the shard's memory grow: pieces that ZeroMQ still holds are counted."""
    wide = gear.Table(name, [gear.Column("x", (100_000,))], gear.Steps(20), item=gear.Step(0), mean_length=2)
    opened = over_tcp.create_table(wide, 60.0)
    gear_rows = np.zeros((2, 100_000), np.float32)
    client = gear.Client(over_tcp)
    client.insert({"x": gear_rows}, name)
    selection = over_tcp.select(opened, Wanted(10), 60.0)
    frames = selection.starts.tobytes(), selection.lengths.tobytes()
    body = m.Collect(opened.layout.index, selection.pin, m.Shape((View("x"),), 1))
    with over_tcp._talk.lock:
        calls = [over_tcp._talk.post(body, frames) for _ in range(3 * bulk.MOST_PIECES)]
        assert over_tcp._talk.until(lambda: all(call.done for call in calls), 1e9)
    refused = [call.answer for call in calls if isinstance(call.answer, m.Failed)]
    assert refused
    assert all("pieces are under way to this client" in answer.message for answer in refused)
    eventually(lambda: (np.asarray(client.sample(2, name)["x"]) == 0).all(), "it is served again")


def test_a_client_that_sends_rows_ahead_without_end_is_refused(session, over_tcp, name, monkeypatch):
    opened = over_tcp.create_table(
        table(name, limiter=gear.SampleToInsertRatio(1.0, 1, 2.0), item=gear.Whole(), block_steps=10), 5.0
    )
    size = opened.layout.block_bytes
    most = bulk.most_unplaced(opened.layout)
    count = m.MAX_ENTRIES
    messages = 2 + most // (count * size)
    entries = np.zeros(count, COMMIT_ENTRY)
    entries["blocks"], entries["length"], entries["flags"] = 1, 3, BEGIN | END
    rows = bytes(size * count)
    with over_tcp._talk.lock:
        calls = []
        for number in range(messages):
            entries["sequence"] = np.arange(count) + 1 + number * count
            calls.append(over_tcp._talk.post(m.Insert(opened.layout.index), (entries.tobytes(), b"", b"", rows)))
        assert over_tcp._talk.until(lambda: any(call.done for call in calls), 1e9)
    assert any("may send ahead" in call.answer.message for call in calls if call.done)


class Gathering:
    """A client without a lane that gathers a piece which only threads gather, as a shard's loop does it."""

    def __init__(self, late: bool = False) -> None:
        self.woken, self.told = threading.Event(), []
        self.bulk = bulk.Bulk(lambda *_: None, lambda *_: None, self.woken.set)
        self.client = SimpleNamespace(gathering=0, sending=[], lane=None, rows={0: 3}, untracked=0)
        pins = SimpleNamespace(held=lambda row, pin: np.empty(0, np.int32))
        stored = SimpleNamespace(
            pins=pins, layout=SimpleNamespace(late=late), segment=np.empty(0, np.uint8), table=None,
            collect=lambda *_: None,
        )  # fmt: skip
        self.hosted = SimpleNamespace(stored=stored, index=0, name="t")
        table = SimpleNamespace(name="t")
        self.plan = SimpleNamespace(nbytes=AT_ONCE + 1, regions=[], views=(), size=1, table=table)

    def gather(self) -> None:
        one = np.zeros(1, np.int64), np.ones(1, np.int32)
        self.bulk.gather(self.client, self.hosted, 3, 1, self.plan, *one, self.told.append)

    def finish(self) -> None:
        assert self.woken.wait(30.0)
        self.woken.clear()
        self.bulk.finish()


def no_memory(nbytes: int) -> None:
    raise MemoryError(f"no {nbytes} bytes")


def test_a_piece_for_which_there_is_no_memory_is_not_under_way(monkeypatch):
    """Origin: it counted as such for ever, and after some dozens the client was refused for good."""
    one = Gathering()
    with monkeypatch.context() as patched:
        patched.setattr(one.bulk._gatherer, "_memory", no_memory)
        with pytest.raises(MemoryError):
            one.gather()
    assert one.client.gathering == 0
    one.gather()
    assert one.client.gathering == 1
    one.finish()
    assert one.client.gathering == 0
    assert bytes(one.told[0][-1]) == m.GOOD


def test_a_piece_that_cannot_be_gathered_anew_is_refused(monkeypatch, caplog):
    """Origin: it ended the shard's loop."""
    monkeypatch.setattr(bulk, "late_columns", lambda *_: ("late",))
    presence = SimpleNamespace(near=lambda neighbours: neighbours, unchanged=False)
    monkeypatch.setattr(bulk, "Presence", lambda *_: presence)
    one = Gathering(late=True)
    one.gather()
    monkeypatch.setattr(one.bulk._gatherer, "_memory", no_memory)
    one.finish()
    assert [type(error) for error in one.told] == [GearError]
    assert one.client.gathering == 0
    assert "MemoryError" in caplog.text

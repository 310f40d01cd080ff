"""Batches that are pushed to readers, without a device: when they are answered, and what ends them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gear.errors import DataError, InsufficientMemory
from gear.server import pushes
from gear.server.pushes import EACH, LARGEST, STAGING, Pushes
from gear.transport import messages as m
from gear.transport.rdma_pool import LEAST
from gear.transport.rdma_queue import Broken

SIZE = 1000


class Pair:
    """A queue pair to a reader, whose adapter does what a test lets it do."""

    def __init__(self) -> None:
        self.sent: list[tuple] = []
        self.may, self.done, self.broken, self.closed = 0, 0, "", threading.Event()

    def send(self, transfers, near, far, immediate) -> None:
        self.sent.append((sum(one.nbytes for one in transfers), far, immediate))

    def reap(self) -> int:
        if self.broken:
            self.close()
            raise Broken(self.broken)
        done, self.done = self.done, min(self.may, len(self.sent))
        return self.done - done

    def close(self) -> None:
        self.closed.set()


class Shard:
    """What `Pushes` needs of one, and the answers it sent."""

    def __init__(self) -> None:
        self.said: list[tuple[int, object]] = []
        self.woken, self.error, self.nbytes = threading.Event(), None, SIZE
        plan = lambda hosted, shape, lengths: SimpleNamespace(nbytes=self.nbytes)
        self.pushes = Pushes(
            lambda client, index: (SimpleNamespace(index=index), client.rows[index]),
            lambda client, request, body, frames: self.said.append((request, body)),
            lambda client, request, error: self.said.append((request, type(error).__name__)),
            SimpleNamespace(plan=plan, gather=self.gather),
            self.woken.set,
        )

    def gather(self, client, hosted, row, pin, plan, starts, lengths, then, into) -> None:
        assert len(into) == plan.nbytes
        then(self.error or [])

    def client(self) -> SimpleNamespace:
        return SimpleNamespace(rows={0: 3}, peer=SimpleNamespace(pushes=0, back=Pair()))

    def push(self, client: SimpleNamespace, request: int) -> None:
        body = m.Push(0, 1, m.Shape((), 1), 4096, 7)
        self.pushes.push(client, request, body, [b"", bytes(8), bytes(4)])

    def until(self, there: Callable[[], bool]) -> None:
        while not there():
            assert self.woken.wait(60)
            self.woken.clear()
            self.pushes.finish()


@pytest.fixture
def shard(monkeypatch):
    monkeypatch.setattr(pushes, "_register", lambda memory: SimpleNamespace(lkey=1, close=lambda: None))
    made = Shard()
    yield made
    made.pushes.close()
    assert made.pushes.figures["staged_bytes"] == 0


def test_a_push_is_answered_when_it_is_written_with_the_immediate_that_went_with_it(shard):
    client = shard.client()
    for request in (5, 6):
        shard.push(client, request)
    assert not shard.said
    client.peer.back.may = 2
    shard.until(lambda: len(shard.said) == 2)
    assert shard.said == [(5, m.Pushed(1)), (6, m.Pushed(2))]
    assert client.peer.back.sent == [(SIZE, (4096, 7), 1), (SIZE, (4096, 7), 2)]
    assert shard.pushes.figures == {"pushed": 2, "pushed_bytes": 2 * SIZE, "staged_bytes": 0}
    assert client.peer.pushes == 0


def test_a_reader_that_takes_nothing_in_loses_its_queue_pair_and_others_are_served(shard, monkeypatch):
    slow, other = shard.client(), shard.client()
    monkeypatch.setattr(pushes, "PATIENCE", 0.01)
    shard.push(slow, 1)
    shard.until(lambda: bool(shard.said))
    assert shard.said == [(1, "DeviceError")]
    assert slow.peer.back.closed.is_set()  # before its staging was anybody else's
    monkeypatch.undo()
    monkeypatch.setattr(pushes, "PATIENCE", 600)
    shard.push(other, 2)
    other.peer.back.may = 1
    shard.until(lambda: len(shard.said) == 2)
    assert shard.said[1] == (2, m.Pushed(2))


def test_what_is_staged_for_a_reader_that_is_dead_is_free(shard):
    client = shard.client()
    for request in range(3):
        shard.push(client, request)
    client.rows.clear()  # given up: nobody to answer
    client.peer.back.broken = "a request failed with status 12"
    shard.until(lambda: not shard.pushes.figures["staged_bytes"])
    assert not shard.said


def test_what_is_not_staged_is_asked_for_over_tcp(shard):
    client, other = shard.client(), shard.client()
    for request in range(EACH + 1):
        shard.push(client, request)
    assert shard.said == [(EACH, m.Pushed(0))]
    shard.nbytes = LARGEST + 1
    shard.push(other, 20)
    shard.nbytes = LARGEST
    for request in range(21, 21 + STAGING // LARGEST):
        shard.push(other, request)
    assert shard.said[1:] == [(20, m.Pushed(0)), (20 + STAGING // LARGEST, m.Pushed(0))]
    for one in (client, other):
        one.peer.back.broken = "gone"
    shard.until(lambda: not shard.pushes.figures["staged_bytes"])


@pytest.mark.parametrize("at_once", [DataError, MemoryError, None])
def test_a_batch_that_cannot_be_gathered_leaves_nothing_staged(shard, monkeypatch, at_once):
    client, shard.error = shard.client(), DataError("no")

    def refuse(*_) -> None:
        raise at_once("no")

    if at_once:
        shard.pushes._bulk.gather = refuse
        with pytest.raises(at_once):
            shard.push(client, 1)
    else:
        shard.push(client, 1)
        assert shard.said == [(1, "DataError")]
    assert shard.pushes.figures["staged_bytes"] == 0
    assert client.peer.pushes == 0


def test_staging_holds_no_more_than_it_may_though_buffers_are_larger_than_what_goes_into_them(shard):
    client = shard.client()
    for request, nbytes in enumerate((LARGEST, LARGEST, LARGEST, SIZE, LARGEST - LEAST)):  # the last would take LARGEST
        shard.nbytes = nbytes
        shard.push(client, request)
    assert shard.said == [(4, m.Pushed(0))]
    assert shard.pushes.figures["staged_bytes"] == 3 * LARGEST + LEAST
    client.peer.back.broken = "gone"
    shard.until(lambda: not shard.pushes.figures["staged_bytes"])


def test_a_bug_in_a_push_ends_its_queue_pair_and_others_are_served(shard, monkeypatch, caplog):
    strange, other = shard.client(), shard.client()
    monkeypatch.setattr(strange.peer.back, "reap", lambda: 1 / 0)
    shard.push(strange, 1)
    shard.until(lambda: bool(shard.said))
    assert shard.said == [(1, "DeviceError")]
    assert strange.peer.back.closed.is_set()
    assert "ZeroDivisionError" in caplog.text
    shard.push(other, 2)
    other.peer.back.may = 1
    shard.until(lambda: len(shard.said) == 2)
    assert shard.said[1] == (2, m.Pushed(2))


def test_a_push_for_which_there_is_no_memory_goes_over_tcp(shard, monkeypatch):
    def no(*_) -> None:
        raise InsufficientMemory("no")

    monkeypatch.setattr(shard.pushes._pool, "take", no)
    shard.push(shard.client(), 1)
    assert shard.said == [(1, m.Pushed(0))]

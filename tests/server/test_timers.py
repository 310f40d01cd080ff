"""The clock of a shard: one number says when something is due, and nothing is looked at before."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from gear.errors import DeadlineExceeded
from gear.server.timers import Timers
from gear.storage.queue import RequestQueue
from gear.storage.table import StoredTable
from tests.transport.helpers import table

NEVER = float("inf")


class Looked(RequestQueue):
    """Counts how often somebody asks what is over."""

    looks = 0

    def expire(self, now: float) -> None:
        self.looks += 1
        super().expire(now)


class Part(SimpleNamespace):
    """Another part of a shard."""

    __hash__ = object.__hash__


class Held:
    """What the clock asks of a `Hosted`."""

    def __init__(self) -> None:
        self.stored, self.clients = StoredTable(table()), {}
        self.queue, self.reclaim_at, self.index = Looked(self.stored), 0.0, 0


@pytest.fixture
def hosted() -> Held:
    return Held()


@pytest.fixture
def timers(hosted) -> Timers:
    weights = Part(expire=lambda now: None, next_deadline=None)
    lending = Part(active=False, tick=lambda now: None, next_due=lambda now: None)
    timers = Timers([hosted], weights, lending, lambda *message: None)
    timers.tick(100.0)
    return timers


def test_nothing_is_due_where_nothing_waits(timers, hosted):
    before = hosted.queue.looks
    for now in range(101, 200):
        timers.touched.add(hosted)
        timers.tick(float(now))
    assert (timers.due, hosted.queue.looks) == (NEVER, before)


def test_what_waits_is_ended_at_its_deadline_and_not_looked_at_before(timers, hosted):
    client, results, before = hosted.stored.attach(bytes(16)), [], hosted.queue.looks
    for deadline in (150.0, 140.0, NEVER):
        hosted.queue.select(client, 1, 1, 60.0, deadline, results.append)
    timers.touched.add(hosted)
    timers.tick(101.0)
    assert timers.due == 140.0
    timers.tick(139.9)
    assert (results, hosted.queue.looks) == ([], before)
    timers.tick(140.0)
    assert [type(result) for result in results] == [DeadlineExceeded]
    assert timers.due == 150.0
    hosted.queue.forget(client)
    timers.tick(150.0)
    assert (len(results), timers.due) == (1, NEVER)


def test_a_pin_is_due_when_its_time_is_over(timers, hosted):
    now, client = time.monotonic(), hosted.stored.attach(bytes(16))
    hosted.stored.pins.add(np.empty(0, np.int64), client, 1, 5.0)
    timers.touched.add(hosted)
    timers.tick(now)
    assert timers.due == pytest.approx(now + 5.0, abs=1.0)


def test_while_a_writer_waits_for_blocks_readers_are_looked_at_again_and_again(timers, hosted):
    client = hosted.stored.attach(bytes(16))
    hosted.stored.allocate = lambda *asked: None  # as if every block were read
    hosted.queue.allocate(client, 1, 1, 500.0, lambda result: None)
    timers.touched.add(hosted)
    timers.tick(101.0)
    assert timers.due == pytest.approx(101.05)
    timers.tick(timers.due)
    assert timers.due == pytest.approx(101.10)


def test_what_fails_of_one_table_ends_neither_the_clock_nor_what_is_due_of_others(timers, hosted, monkeypatch, caplog):
    """Origin: it ended the shard, with the tables of everybody."""
    other, results = Held(), []
    other.stored.attach(bytes(16))
    other.queue.select(0, 1, 1, 60.0, 140.0, results.append)
    ill = Part(index=1, queue=Part(expire=lambda now: 1 // 0))
    timers._tables[:] = [ill, other]
    monkeypatch.setattr(timers._lending, "tick", lambda now: 1 // 0)
    timers.stir()
    timers.tick(140.0)
    assert [type(result) for result in results] == [DeadlineExceeded]
    assert timers.due == 141.0
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2

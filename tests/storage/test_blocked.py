"""The time that parked requests waited."""

from __future__ import annotations

import pytest

from gear.schema import Fifo, MinSize, SampleToInsertRatio, Steps, Whole
from gear.storage import blocked
from gear.storage.queue import RequestQueue

from .actors import Actor, make

NEVER = float("inf")


@pytest.fixture
def clock(monkeypatch):
    """Sets the seconds that `blocked` reads."""
    now = [0.0]
    monkeypatch.setattr(blocked, "monotonic_ns", lambda: int(now[0] * 1e9))
    return now


def waits(queue: RequestQueue) -> tuple[int, float, int, float]:
    names = ("waiting_writers", "blocked_writer_seconds", "waiting_readers", "blocked_reader_seconds")
    return tuple(queue.info()[name] for name in names)


def test_the_integral_counts_everybody_who_waits(clock):
    one = blocked.Blocked()
    for at, count in ((1, 2), (3, 1), (6, 0), (9, 3)):
        clock[0] = at
        one.become(count)
    clock[0] = 10
    assert (one.count, one.seconds) == (3, 2 * 2 + 1 * 3 + 3 * 1)


def test_a_select_that_waits_for_items_blocks_a_reader_until_they_come(clock):
    stored = make(capacity=Steps(100), item=Whole(), limiter=MinSize(2))
    actor = Actor(stored)
    actor.queue.select(actor.client, 1, 1, 60.0, NEVER, lambda result: None)
    actor.queue.select(actor.client, 1, 1, 60.0, NEVER, lambda result: None)
    clock[0] = 3
    assert waits(actor.queue) == (0, 0, 2, 6)
    actor.insert(1, 4)
    clock[0] = 5
    actor.insert(2, 4)
    clock[0] = 50
    assert waits(actor.queue) == (0, 0, 0, 10)


def test_a_commit_that_the_limiter_holds_back_blocks_a_writer_once_however_much_it_has_queued(clock):
    stored = make(capacity=Steps(100), item=Whole(), sampler=Fifo(), limiter=SampleToInsertRatio(1.0, 1, (0.0, 2.0)))
    actor = Actor(stored)
    for number in range(4):
        actor.insert(number, 2)
    clock[0] = 4
    assert waits(actor.queue) == (1, 4, 0, 0)
    for _ in range(2):
        actor.queue.select(actor.client, 1, 1, 60.0, NEVER, lambda result: None)
    clock[0] = 9
    assert waits(actor.queue) == (0, 4, 0, 0)


@pytest.mark.parametrize("end", ["cancel", "expire", "forget"])
def test_who_gives_up_has_waited_and_waits_no_more(clock, end):
    stored = make(capacity=Steps(100), item=Whole())
    actor, results = Actor(stored), []
    done = results.append
    actor.queue.select(actor.client, 1, 1, 60.0, 7.0, done)
    clock[0] = 2
    {"cancel": lambda: actor.queue.cancel(done), "expire": lambda: actor.queue.expire(8.0),
     "forget": lambda: actor.queue.forget(actor.client)}[end]()  # fmt: skip
    clock[0] = 10
    assert waits(actor.queue) == (0, 0, 0, 2)


def test_what_is_served_at_once_counts_nothing(clock, monkeypatch):
    monkeypatch.setattr(blocked, "monotonic_ns", lambda: pytest.fail("the clock was read"))
    stored = make(capacity=Steps(100), item=Whole())
    actor = Actor(stored)
    actor.insert(1, 4)
    actor.queue.select(actor.client, 1, 1, 60.0, NEVER, lambda result: None)

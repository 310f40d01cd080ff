"""Consumers: each is served every item, claims live while their client is connected, acknowledgements count once."""

from __future__ import annotations

import asyncio
import random
import threading

import numpy as np
import pytest

import gear
from tests.transport.helpers import Python, eventually

from .served import Desk, numbers

NAMES = ("reference", "reward", "trainer")


def line(desk, client, consumer) -> dict:
    return desk.figures(client)["consumers"][consumer]


def test_every_consumer_is_served_every_item_in_order(desk):
    client = desk.open(consumers=NAMES)
    desk.insert(client, *range(6))
    for name in NAMES:
        served = [numbers(client.sample(n, desk.name, consumer=name, timeout=60.0)) for n in (2, 1, 3)]
        assert served == [[0, 1], [2], [3, 4, 5]]
    with pytest.raises(gear.DeadlineExceeded, match="6 items are claimed and not acknowledged, 0 acknowledged"):
        client.sample(1, desk.name, consumer="trainer", timeout=0.01)


def test_an_acknowledgement_counts_once_for_each_consumer(desk):
    client = desk.open(consumers=NAMES)
    desk.insert(client, 1, 2, 3)
    batch = client.sample(3, desk.name, consumer="trainer", timeout=60.0)
    assert client.ack(batch.ids[:2]).applied == 2  # the consumer it sampled for last
    again = client.ack(batch.ids, consumer="trainer")
    assert (again.applied, again.repeated, again.stale, len(again.served_again)) == (1, 2, 0, 0)
    assert client.ack(batch.ids, consumer="reward").applied == 3  # of items it was never served
    assert line(desk, client, "reward") == {
        "waiting": 0, "claimed": 0, "served": 0, "acknowledged": 3, "dropped": 0
    }  # fmt: skip
    assert line(desk, client, "reference")["waiting"] == 3
    assert desk.figures(client)["items"] == 3  # no queue: they stay until they are evicted


def test_an_item_leaves_a_queue_when_all_consumers_have_acknowledged_it(desk):
    client = desk.open(consumers=NAMES, limiter=gear.Queue(2))
    desk.insert(client, 1, 2)
    with pytest.raises(gear.DeadlineExceeded, match="waits for acknowledgements of reference, reward, trainer"):
        desk.insert(client, 3, timeout=0.01)
    ids = client.sample(2, desk.name, consumer="trainer", timeout=60.0).ids
    client.ack(ids)
    client.ack(ids, consumer="reward")
    assert desk.figures(client)["items"] == 2
    client.ack(ids[1:], consumer="reference")
    assert desk.figures(client)["items"] == 1
    desk.insert(client, 3)
    assert client.ack(ids[1:], consumer="reference").stale == 1
    assert numbers(client.sample(2, desk.name, consumer="reference", timeout=60.0)) == [1, 3]
    assert desk.figures(client)["consumed_trajectories"] == 1


def test_a_queue_gives_what_it_has_to_who_waits_for_more_than_it_can_hold(desk):
    client = desk.open(consumers=("one",), limiter=gear.Queue(3))
    desk.insert(client, 1, 2, 3)
    assert numbers(client.sample(8, desk.name, consumer="one", timeout=60.0)) == [1, 2, 3]


def test_what_was_drawn_and_not_delivered_waits_again_in_its_place(desk):
    client = desk.open(consumers=NAMES)
    desk.insert(client, *range(5))
    first = client.select(2, desk.name, consumer="trainer", timeout=60.0)
    second = client.select(2, desk.name, consumer="trainer", timeout=60.0)
    client.release(second, delivered=False)
    client.release(first, delivered=False)
    assert numbers(client.sample(5, desk.name, consumer="trainer", timeout=60.0)) == [0, 1, 2, 3, 4]


def test_a_loader_gives_back_what_was_not_taken(desk):
    client = desk.open(consumers=NAMES)
    desk.insert(client, *range(8))
    loader = client.loader(2, desk.name, consumer="trainer", prefetch=2, timeout=60.0, copy=True)
    taken = numbers(next(loader))
    loader.close()
    waiting = lambda: line(desk, client, "trainer")["waiting"]
    eventually(lambda: waiting() == 6, "the prefetched items wait again")
    assert taken + numbers(client.sample(6, desk.name, consumer="trainer", timeout=60.0)) == list(range(8))


def test_evicted_items_are_dropped_for_whoever_has_not_acknowledged_them(desk):
    client = desk.open(consumers=("a", "b"), capacity=gear.Trajectories(2))
    desk.insert(client, 1, 2)
    batch = client.sample(2, desk.name, consumer="a", timeout=60.0)
    client.ack(batch.ids[:1])
    desk.insert(client, 3, 4)
    ack = client.ack(batch.ids[1:])
    assert (ack.applied, ack.stale) == (0, 1)
    a, b = line(desk, client, "a"), line(desk, client, "b")
    assert (a["acknowledged"], a["dropped"], a["waiting"]) == (1, 1, 2)
    assert (b["acknowledged"], b["dropped"], b["waiting"]) == (0, 2, 2)


@pytest.mark.parametrize(
    ("fields", "consumer", "message"),
    [
        ({"consumers": NAMES}, None, "expected one of reference, reward, trainer, got None"),
        ({"consumers": NAMES}, "nobody", "expected one of reference, reward, trainer, got 'nobody'"),
        ({}, "trainer", "declares no consumers, got consumer='trainer'"),
    ],
)
def test_a_consumer_that_is_not_declared_is_refused(desk, fields, consumer, message):
    client = desk.open(**fields)
    with pytest.raises(gear.DataError, match=message):
        client.sample(1, desk.name, consumer=consumer, timeout=0)


def test_acknowledging_where_there_are_no_consumers_is_refused(desk):
    client = desk.open()
    desk.insert(client, 1)
    with pytest.raises(gear.DataError, match="declares no consumers: nothing is acknowledged"):
        client.ack(client.sample(1, desk.name, timeout=5).ids)


def test_a_waiting_consumer_holds_up_neither_writers_nor_other_consumers(desk):
    """TransferQueue, observed: a reader that waits never blocks a writer."""
    client, got = desk.open(consumers=NAMES), []
    sample = lambda: got.append(numbers(client.sample(3, desk.name, consumer="reward", timeout=30)))
    thread = threading.Thread(target=sample)
    thread.start()
    eventually(lambda: desk.figures(client)["waiting_readers"] == 1, "the reader waits")
    desk.insert(client, 1, 2)
    assert numbers(client.sample(2, desk.name, consumer="trainer", timeout=60.0)) == [1, 2]
    assert got == []
    desk.insert(client, 3)
    thread.join(60)
    assert got == [[1, 2, 3]]


def test_asyncio(desk):
    client = desk.open(consumers=("one",))
    desk.insert(client, 1, 2)

    async def consume():
        batch = await client.sample_async(2, desk.name, consumer="one", timeout=60.0)
        return numbers(batch), await client.ack_async(batch.ids)

    batch, ack = asyncio.run(consume())
    assert (batch, ack.applied) == ([1, 2], 2)


# Of a server


def test_what_a_client_had_claimed_is_served_first_once_it_is_gone(served_desk):
    client = served_desk.open(consumers=NAMES)
    served_desk.insert(client, *range(8))
    trainer = served_desk.another()
    first, second = (trainer.sample(2, served_desk.name, consumer="trainer", timeout=60.0) for _ in range(2))
    trainer.ack(first.ids[:1])
    trainer.close()
    restarted = served_desk.another()
    assert numbers(restarted.sample(4, served_desk.name, consumer="trainer", timeout=60.0)) == [1, 2, 3, 4]
    late = restarted.ack(np.concatenate([first.ids, second.ids]))
    assert (late.applied, late.repeated, len(late.served_again)) == (3, 1, 0)


def test_a_late_acknowledgement_reports_what_was_served_again_to_somebody_else(served_desk):
    """The trainer started anew acknowledges from its checkpoint what another trainer has been served meanwhile."""
    client = served_desk.open(consumers=NAMES)
    served_desk.insert(client, *range(4))
    trainer, other = served_desk.another(), served_desk.another()
    batch = trainer.sample(4, served_desk.name, consumer="trainer", timeout=60.0)
    trainer.close()
    again = other.sample(2, served_desk.name, consumer="trainer", timeout=60.0)
    late = client.ack(batch.ids, consumer="trainer")
    assert late.applied == 2
    assert late.served_again.tolist() == again.ids.tolist() == batch.ids[:2].tolist()
    assert other.ack(again.ids).applied == 2
    assert client.ack(batch.ids, consumer="trainer").repeated == 4


def test_a_client_whose_connection_broke_goes_on_with_its_claims(server, proxy, served_desk):
    from gear.transport.shm import ShmSession
    from gear.transport.tcp import TcpSession

    client = served_desk.open(consumers=NAMES)
    served_desk.insert(client, *range(4))
    session = proxy.session(ShmSession if served_desk.path == "shm" else TcpSession)
    with gear.Client(session) as trainer:
        batch = trainer.sample(3, served_desk.name, consumer="trainer", timeout=60.0)
        proxy.cut()
        assert numbers(trainer.sample(1, served_desk.name, consumer="trainer", timeout=60.0)) == [3]
        assert trainer.ack(batch.ids).applied == 3
        assert proxy.cuts == 1


_CONSUMER = """
import sys, gear
address, path, table, name = sys.argv[1:]
client = gear.connect(address, path=path)
print("here", flush=True)
while sys.stdin.readline():
    batch = client.sample(3, table, consumer=name, timeout=60)
    print(*batch["k"][:, 0], flush=True)
    sys.stdin.readline()
    ack = client.ack(batch.ids)
    print(ack.applied, ack.repeated, len(ack.served_again), flush=True)
"""


class Worker:
    """A process that consumes, one step at a time; it may be killed at any moment."""

    def __init__(self, desk, name):
        self.process = Python(_CONSUMER, desk.address, desk.path, desk.name, name)
        assert self.process.read() == "here"
        self.holds: list[int] = []

    def step(self, kill: bool) -> list[int]:
        """Serve or acknowledge three; what was newly acknowledged for certain."""
        self.process.say("go")
        if kill:
            self.process.process.kill()
            self.process.end()
            return []
        words = [*map(int, self.process.read().split())]
        if self.holds:
            assert words == [3, 0, 0], "what it had claimed was somebody else's"
            done, self.holds = self.holds, []
            return done
        self.holds = words
        return []


@pytest.mark.faults
@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_consumers_killed_and_restarted_at_random_skip_nothing(server, path):
    """NeMo-RL#3599: consumed + dropped = served, no duplicate acknowledgement, unacknowledged work served again."""
    desk, choice, total, inserted = Desk(path, lambda: server.address), random.Random(7), 60, 0
    client = desk.open(consumers=NAMES[:2], limiter=gear.Queue(30))
    workers = {name: Worker(desk, name) for name in NAMES[:2]}
    done: dict[str, list[int]] = {name: [] for name in workers}
    kills = 0
    try:
        while desk.figures(client)["consumed_trajectories"] < total:
            while inserted < total and desk.figures(client)["items"] < 28:
                desk.insert(client, inserted)
                inserted += 1
            name = choice.choice(sorted(workers))
            worker = workers[name]
            if not worker.holds and line(desk, client, name)["waiting"] < 3:
                continue  # it would wait for the other
            kill = kills < 6 and choice.random() < 0.2
            done[name] += worker.step(kill)
            if kill:
                workers[name], kills = Worker(desk, name), kills + 1
                eventually(lambda n=name: line(desk, client, n)["claimed"] == 0, "its claims wait again")
        for name in workers:
            figures = line(desk, client, name)
            assert (figures["acknowledged"], figures["dropped"]) == (total, 0)
            assert (figures["waiting"], figures["claimed"]) == (0, 0)
            assert len(done[name]) == len(set(done[name])), "an item was acknowledged twice"
            assert figures["served"] >= total
        assert kills == 6
        assert (desk.figures(client)["items"], desk.figures(client)["sampled_items"]) == (0, total)
    finally:
        for worker in workers.values():
            worker.process.process.kill()
            worker.process.end()
        desk.close()

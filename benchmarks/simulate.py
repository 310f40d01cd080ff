"""A service of many shards, actors and learners, simulated: real message counts and service times, queues on paper.

What a real server and client of this machine take for a message is measured (`benchmarks.suite.crowd`) and given here.
Shards and learners' clients are first-come-first-served servers; the network is a fixed delay. An actor inserts
trajectories at random times, each into one shard. A learner asks every shard for its part of a batch, handles the
replies as they come, sends the new priorities of each part back, and, once these are acknowledged, trains for a while.
Bytes are in the service times: over TCP the shard gathers and sends the rows.
"""

from __future__ import annotations

import heapq
import random
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds of CPU that a message takes.

    insert : of a shard, for one trajectory.
    select, select_item : of a shard, for a part of a batch and for each of its items.
    update, update_item : of a shard, for new priorities and for each of them.
    message : of a learner's client, for a request to one more shard and its reply.
    item : of a learner's client, for each item of a batch.
    """

    insert: float
    select: float
    select_item: float
    update: float
    update_item: float
    message: float
    item: float


@dataclass(frozen=True)
class Load:
    """Who there is, and what they want.

    rate : trajectories per second of each actor.
    batch : items.
    training : seconds a learner trains on a batch.
    delay : seconds a message is under way.
    """

    shards: int = 64
    actors: int = 512
    learners: int = 64
    rate: float = 10.0
    batch: int = 256
    training: float = 0.05
    delay: float = 50e-6


@dataclass(frozen=True)
class Outcome:
    """What came of it: rates per second, seconds from the request for a batch to the batch, shares of time at work."""

    batches: float
    inserts: float
    latency: float
    late: float
    shard: float
    busiest_shard: float
    client: float
    training: float

    @property
    def bottleneck(self) -> str:
        """What is busy most."""
        shares = {
            "the control loops of the shards": self.busiest_shard,
            "the learners' clients": self.client,
            "training": self.training,
        }
        return max(shares, key=shares.__getitem__)


class _Learner:
    """A client: handles one message after the other."""

    def __init__(self) -> None:
        self.free, self.busy, self.left, self.asked = 0.0, 0.0, 0, 0.0

    def work(self, now: float, seconds: float) -> float:
        """When it is done with what comes now."""
        self.free = max(now, self.free) + seconds
        self.busy += seconds
        return self.free


def simulate(times: Times, load: Load, seconds: float = 1.0, seed: int = 0) -> Outcome:
    """Let it run for so many seconds (of its own time), after a tenth of that to get going."""
    chance = random.Random(seed)
    begin, end = seconds / 10, seconds * 1.1
    free, busy = [0.0] * load.shards, [0.0] * load.shards
    learners = [_Learner() for _ in range(load.learners)]
    part = load.batch / load.shards
    cost = {
        "insert": times.insert,
        "select": times.select + part * times.select_item,
        "update": times.update + part * times.update_item,
    }
    inserts, batches, waits, trained = 0, 0, [], 0.0
    number = 0
    events: list[tuple[float, int, str, int, int]] = []

    def push(at: float, kind: str, shard: int, learner: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (at, number, kind, shard, learner))

    def ask(now: float, kind: str, learner: int) -> None:
        """A message to every shard, one after the other."""
        one = learners[learner]
        one.left = load.shards
        for shard in range(load.shards):
            push(one.work(now, times.message / 2) + load.delay, kind, shard, learner)

    if load.actors and load.rate:
        push(chance.expovariate(load.actors * load.rate), "insert", chance.randrange(load.shards), -1)
    for learner in range(load.learners):
        push(chance.random() * max(load.training, 1e-3), "begin", -1, learner)
    while events:
        now, _, kind, shard, learner = heapq.heappop(events)
        if now > end:
            break
        counted = now >= begin
        if shard >= 0 and kind in cost:
            done = free[shard] = max(now, free[shard]) + cost[kind]
            busy[shard] += cost[kind] * counted
            if kind == "insert":
                inserts += counted
                wait = chance.expovariate(load.actors * load.rate)
                push(now + wait, "insert", chance.randrange(load.shards), -1)
            else:
                push(done + load.delay, f"{kind}ed", -1, learner)
            continue
        one = learners[learner]
        if kind == "begin":
            one.asked = now
            ask(now, "select", learner)
            continue
        done = one.work(now, times.message / 2 + (part * times.item if kind == "selected" else 0))
        one.left -= 1
        if one.left:
            continue
        if kind == "selected":
            batches += counted
            if counted:
                waits.append(done - one.asked)
            ask(done, "update", learner)
        else:
            trained += load.training * counted
            push(done + load.training, "begin", -1, learner)
    span = end - begin
    waits.sort()
    return Outcome(
        batches=batches / span,
        inserts=inserts / span,
        latency=statistics.median(waits) if waits else float("nan"),
        late=waits[int(0.99 * (len(waits) - 1))] if waits else float("nan"),
        shard=statistics.mean(busy) / span,
        busiest_shard=max(busy) / span,
        client=statistics.mean(one.busy for one in learners) / end if learners else 0.0,
        training=trained / span / load.learners if learners else 0.0,
    )

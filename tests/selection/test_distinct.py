"""The set of what a batch holds, and batches that hold no item twice."""

from __future__ import annotations

import time
from collections import Counter
from itertools import permutations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy import stats

from gear.errors import DeadlineExceeded
from gear.schema import (
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    SampleToInsertRatio,
    Steps,
    Uniform,
    Whole,
    Window,
)
from gear.selection import distinct
from gear.storage import obstacles
from tests.storage.actors import Actor, make, read

FALSE_ALARM = 1e-6
LATER = time.monotonic() + 3600


@given(st.lists(st.one_of(st.integers(0, 20), st.integers(0, 2**40)), max_size=200))
def test_a_number_is_new_once(numbers):
    seen, reference = distinct.room(len(numbers)), set()
    for number in numbers:
        assert distinct.is_new(seen, number) == (number not in reference)
        reference.add(number)


def sample(actor: Actor, size: int):
    found: list = []
    actor.queue.select(actor.client, size, 1, 60.0, LATER, found.append)
    actor.stored.pins.release(actor.client, found[0].pin, True)
    numbers = [int(read(actor.stored, int(s), 1)[0][0, 0]) for s in found[0].starts]
    return numbers, found[0].probabilities


def filled(weights, **fields) -> Actor:
    actor = Actor(make(capacity=Steps(500), distinct=True, **fields))
    for number, weight in enumerate(weights):
        actor.insert(number, 1 if fields["item"] == Whole() else int(weight), [weight])
    return actor


def successive(weights, size: int) -> dict[tuple[int, ...], float]:
    """Probability of each ordered batch drawn one by one without replacement, by the definition."""
    chances = {}
    for batch in permutations(range(len(weights)), size):
        left, chance = sum(weights), 1.0
        for entry in batch:
            chance *= weights[entry] / left
            left -= weights[entry]
        if chance > 0:
            chances[batch] = chance
    return chances


@pytest.mark.parametrize(
    ("sampler", "weights", "shares"),
    [
        (Uniform(), [1.0] * 4, [1.0] * 4),
        (Prioritized(1.0), [1.0, 2.0, 3.0, 6.0], [1.0, 2.0, 3.0, 6.0]),
        (Prioritized(0.5), [1.0, 0.0, 9.0, 4.0], [1.0, 0.0, 3.0, 2.0]),
    ],
)
def test_a_batch_is_drawn_as_if_one_by_one_without_replacement(sampler, weights, shares):
    actor = filled(weights, item=Whole(), sampler=sampler, seed=5)
    expected = successive(shares, 3)
    seen: Counter = Counter()
    for _ in range(24_000):
        batch, probabilities = sample(actor, 3)
        seen[tuple(batch)] += 1
        assert probabilities == pytest.approx([shares[n] / sum(shares) for n in batch])
    assert set(seen) == set(expected)
    observed = np.array([seen[batch] for batch in expected])
    assert stats.chisquare(observed, np.array(list(expected.values())) * observed.sum()).pvalue > FALSE_ALARM


def test_over_trajectories_a_distinct_batch_keeps_the_law_of_the_first_draw():
    """Trajectories of 1, 2 and 3 steps: shares 1/3, twice 1/6, three times 1/9."""
    actor = filled([1, 2, 3], item=Window(1), sampler=Uniform("trajectories"), seed=6)
    shares = {(n, t): 1 / 3 / length for n, length in enumerate((1, 2, 3)) for t in range(length)}
    items = list(shares)
    expected = successive(list(shares.values()), 2)
    seen: Counter = Counter()
    for _ in range(20_000):
        found: list = []
        actor.queue.select(actor.client, 2, 1, 60.0, LATER, found.append)
        actor.stored.pins.release(actor.client, found[0].pin, True)
        rows = [read(actor.stored, int(s), 1) for s in found[0].starts]
        batch = [items.index((int(ks[0, 0]), int(ts[0]))) for ks, ts in rows]
        assert found[0].probabilities == pytest.approx([shares[items[b]] for b in batch])
        seen[tuple(batch)] += 1
    observed = np.array([seen[batch] for batch in expected])
    assert stats.chisquare(observed, np.array(list(expected.values())) * observed.sum()).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("sampler", "first"),
    [(Fifo(), [0, 1, 2]), (Lifo(), [4, 3, 2]), (MaxHeap(), [3, 0, 4]), (MinHeap(), [1, 2, 4])],
)
def test_an_ordered_sampler_gives_the_first_of_its_order(sampler, first):
    actor = filled([5.0, 1.0, 2.0, 9.0, 4.0], item=Whole(), sampler=sampler)
    assert sample(actor, 3)[0] == first
    assert sample(actor, 3)[0] == first


@pytest.mark.parametrize("sampler", [Uniform(), Uniform("trajectories"), Prioritized(1.0), Fifo(), Lifo(), MaxHeap()])
def test_a_batch_waits_until_as_many_items_can_be_drawn(sampler):
    actor = filled([3, 2], item=Window(1), sampler=sampler)
    found: list = []
    actor.queue.select(actor.client, 8, 1, 60.0, LATER, found.append)
    assert found == []
    assert "5 items can be drawn and a batch of 8 distinct ones" in obstacles.of_sample(actor.stored, 8, 0)
    actor.insert(2, 4, [1.0])
    assert len(set(found[0].ids.tolist())) == 8


def test_items_without_mass_do_not_count():
    actor = filled([1.0, 0.0, 1.0], item=Whole(), sampler=Prioritized(1.0))
    found: list = []
    actor.queue.select(actor.client, 3, 1, 60.0, 0.0, found.append)
    actor.queue.expire(time.monotonic())
    assert isinstance(found[0], DeadlineExceeded)
    (zero,) = set(range(3)) - set(sample(actor, 2)[0])
    assert zero == 1


def test_a_distinct_batch_takes_at_most_one_use_of_each_item():
    actor = filled([1.0, 1.0, 1.0], item=Whole(), sampler=Uniform(), max_times_sampled=2)
    assert sorted(sample(actor, 3)[0]) == sorted(sample(actor, 3)[0]) == [0, 1, 2]
    assert actor.stored.info()["items"] == 0


def test_a_ratio_limiter_does_not_stop_the_inserts_that_a_distinct_batch_waits_for():
    limiter = SampleToInsertRatio(1.0, 1, (-4.0, 4.0))
    actor = Actor(make(capacity=Steps(500), item=Whole(), limiter=limiter, distinct=True))
    found: list = []
    actor.queue.select(actor.client, 32, 1, 60.0, LATER, found.append)
    for number in range(40):
        if not found:
            actor.insert(number, 1)
    assert len(set(found[0].ids.tolist())) == 32

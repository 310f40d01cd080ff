"""A shuffled pass: the steps against two plain sets, then whole tables under inserts, evictions and returns."""

from __future__ import annotations

import time
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy import stats

from gear.schema import Epochs, Steps, Trajectories, Whole, Window
from gear.selection import epochs
from tests.storage.actors import Actor, make, read

N = 10
FALSE_ALARM = 1e-6


@given(st.lists(st.tuples(st.sampled_from(["add", "draw", "give back", "remove"]), st.integers(0, N - 1)), max_size=60))
def test_what_was_drawn_and_what_was_not_are_two_sets(steps):
    order, place = np.full(N, 3, np.int64), np.full(N, 2, np.int32)
    size, drawn, left, gone = 0, 0, set(), set()
    for operation, entry in steps:
        if operation == "add" and entry not in left | gone:
            size = epochs.add(order, place, size, entry)
            left.add(entry)
        elif operation == "draw" and left:
            chosen, drawn = epochs.draw(order, place, drawn, drawn + entry % len(left))
            assert chosen in left
            left.discard(chosen)
            gone.add(chosen)
        elif operation == "give back" and entry in left | gone:
            drawn = epochs.give_back(order, place, drawn, entry)
            gone.discard(entry)
            left.add(entry)
        elif operation == "remove" and entry in left | gone:
            size, drawn = epochs.remove(order, place, size, drawn, entry)
            left.discard(entry)
            gone.discard(entry)
        assert set(order[:drawn].tolist()) == gone
        assert set(order[drawn:size].tolist()) == left
        assert (size, drawn) == (len(left) + len(gone), len(gone))
        assert place[order[:size]].tolist() == list(range(size))


def select(actor: Actor, size: int):
    found: list = []
    actor.queue.select(actor.client, size, 1, 60.0, time.monotonic() + 60, found.append)
    return found[0]


def draw(actor: Actor, size: int, delivered: bool = True) -> list[int]:
    selection = select(actor, size)
    actor.stored.pins.release(actor.client, selection.pin, delivered)
    return selection.ids.tolist()


@pytest.mark.parametrize("item", [Whole(), Window(4), Window(3, 2, "head")])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_each_item_comes_once_per_epoch_whatever_the_batch(item, batch):
    stored = make(capacity=Steps(500), item=item, sampler=Epochs(), seed=4)
    actor = Actor(stored)
    for number in range(9):
        actor.insert(number, 1 + 3 * number)
    items = stored.info()["items"]
    drawn: list[int] = []
    while len(drawn) < 5 * items:
        drawn += draw(actor, batch)
    passes = [drawn[k * items : (k + 1) * items] for k in range(5)]
    assert all(len(set(one)) == items for one in passes)
    assert len({tuple(one) for one in passes}) == 5, "every pass has the same order"


def test_inserts_join_the_running_epoch_and_evictions_leave_it():
    """Every draw is new in its epoch, and an epoch ends only when all that is stored has been drawn in it."""
    stored = make(capacity=Trajectories(20), item=Whole(), sampler=Epochs(), seed=8, mean_length=2, block_steps=2)
    actor, rng = Actor(stored), np.random.default_rng(0)
    seen: set[int] = set()
    number = epoch = 0
    for _ in range(3000):
        if rng.random() < 0.3 or number == 0:
            actor.insert(number, 2)
            number += 1
        selection = select(actor, 1)
        (one,) = {int(k) for k in read(stored, int(selection.starts[0]), 1)[0][:, 0]}
        actor.stored.pins.release(actor.client, selection.pin, True)
        if stored.info()["epochs"] != epoch:
            assert seen >= set(range(max(0, number - 20), number)), "the epoch ended before an item had come"
            epoch, seen = stored.info()["epochs"], set()
        assert one not in seen
        seen.add(one)
    assert epoch > 5


def test_what_was_not_delivered_is_drawn_again_in_the_same_epoch():
    stored = make(capacity=Steps(500), item=Whole(), sampler=Epochs())
    actor = Actor(stored)
    for number in range(10):
        actor.insert(number, 2)
    first = draw(actor, 4)
    draw(actor, 3, delivered=False)
    rest = draw(actor, 6)
    assert len({*first, *rest}) == 10
    assert stored.info()["epochs"] == 0


def test_a_distinct_batch_over_the_end_of_an_epoch_holds_no_item_twice():
    stored = make(capacity=Steps(500), item=Whole(), sampler=Epochs(), distinct=True)
    actor = Actor(stored)
    for number in range(10):
        actor.insert(number, 2)
    drawn = []
    for _ in range(30):
        batch = draw(actor, 7)
        assert len(set(batch)) == 7
        drawn += batch
    assert set(Counter(drawn).values()) == {21}


def test_the_order_of_an_epoch_is_uniform():
    """Which item comes first, and which of the others second: 20 cells, chi-square at 1e-6."""
    stored = make(capacity=Steps(500), item=Whole(), sampler=Epochs(), seed=12)
    actor = Actor(stored)
    for number in range(5):
        actor.insert(number, 2)
    pairs = Counter(tuple(draw(actor, 5)[:2]) for _ in range(4000))
    assert len(pairs) == 20
    assert stats.chisquare(list(pairs.values())).pvalue > FALSE_ALARM


def test_the_probability_is_one_in_what_was_left_of_the_epoch():
    stored = make(capacity=Steps(500), item=Whole(), sampler=Epochs())
    actor = Actor(stored)
    for number in range(4):
        actor.insert(number, 2)
    assert select(actor, 6).probabilities.tolist() == [1 / 4, 1 / 3, 1 / 2, 1, 1 / 4, 1 / 3]

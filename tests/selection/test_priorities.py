"""From raw priorities to leaves: defaults, alpha, eps, refusals."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from gear.errors import DataError
from gear.schema import Prioritized, Steps, Uniform, Whole
from gear.selection.prioritized import LARGEST, leaf, refused
from tests.storage.actors import Actor, make


def draw(actor: Actor, size: int):
    selections: list = []
    actor.queue.select(actor.client, size, 1, 60.0, time.monotonic() + 60, selections.append)
    actor.stored.pins.release(actor.client, selections[0].pin, delivered=True)
    return selections[0]


def leaves(actor: Actor) -> np.ndarray:
    tree = actor.stored.layout.view(actor.stored.segment, "tree")
    return tree[: actor.stored.layout.items][tree[: actor.stored.layout.items] > 0]


def prioritized(alpha: float, eps: float = 0.0) -> Actor:
    return Actor(make(capacity=Steps(100), item=Whole(), sampler=Prioritized(alpha, eps)))


def test_a_new_item_gets_the_largest_raw_priority_so_far():
    """Origin: pytorch/rl#3925: with alpha 0.5 and 9 the largest, the new leaf is 3, not sqrt(3)."""
    actor = prioritized(0.5)
    actor.insert(1, 2, [9.0])
    actor.insert(2, 2)
    np.testing.assert_allclose(leaves(actor), [3.0, 3.0])


def test_alpha_zero_is_uniform_over_non_zero_priorities():
    """Origin: openai/baselines#345."""
    actor = prioritized(0.0)
    for n, priority in enumerate([5.0, 0.0, 0.001]):
        actor.insert(n, 2, [priority])
    np.testing.assert_array_equal(draw(actor, 500).probabilities, 0.5)
    assert len(set(draw(actor, 500).ids)) == 2


@pytest.mark.parametrize(("eps", "drawn"), [(0.0, 1), (0.1, 2)])
def test_priority_zero_is_legal(eps, drawn):
    """Origin: rl_algorithms#249: never drawn with eps 0, drawn with eps > 0, never an assertion."""
    actor = prioritized(1.0, eps)
    actor.insert(1, 2, [0.0])
    actor.insert(2, 2, [0.3])
    assert len(set(draw(actor, 2000).ids)) == drawn


@pytest.mark.parametrize("bad", [np.nan, -1e-9, np.inf, 1e39])
def test_an_update_with_one_bad_value_is_refused_whole(bad):
    """Origin: Reverb 0.14, observed."""
    actor = prioritized(1.0)
    for n in range(5):
        actor.insert(n, 2, [1.0 + n])
    ids = np.array(sorted(set(draw(actor, 500).ids)))
    before = actor.stored.segment.copy()
    with pytest.raises(DataError, match="priority at index 3 is .*; nothing was applied"):
        actor.stored.update(ids, np.array([7.0, 7.0, 7.0, bad, 7.0]))
    np.testing.assert_array_equal(before, actor.stored.segment)


def test_old_ids_change_nothing_after_new_items_took_their_places():
    """Origin: ray#6534, pytorch/rl#4041."""
    actor = Actor(make(capacity=Steps(4), item=Whole(), sampler=Prioritized(1.0), mean_length=1, block_steps=1))
    for n in range(4):
        actor.insert(n, 1)
    old = np.array(sorted(set(draw(actor, 200).ids)))
    for n in range(4):
        actor.insert(4 + n, 1, [2.0])
    assert actor.stored.update(old, np.full(len(old), 50.0)) == (0, 4)
    np.testing.assert_array_equal(leaves(actor), 2.0)


def test_ids_that_were_never_issued_are_stale():
    actor = prioritized(1.0)
    actor.insert(1, 2)
    strange = np.array([-1, 0, 2**62, 1 << 55, 1 << 47, np.iinfo(np.int64).max])
    assert actor.stored.update(strange, np.ones(6)) == (0, 6)


def test_a_table_without_priorities_says_so():
    actor = Actor(make(capacity=Steps(100), item=Whole(), sampler=Uniform()))
    with pytest.raises(DataError, match=r"keeps no priorities .* declare sampler=gear.Prioritized"):
        actor.stored.update(np.zeros(1, np.int64), np.ones(1))


def test_a_prioritized_remover_takes_large_priorities_first():
    stored = make(
        capacity=Steps(50), item=Whole(), sampler=Uniform(), remover=Prioritized(4.0), mean_length=1, block_steps=1
    )
    actor = Actor(stored)
    for n in range(50):
        actor.insert(n, 1, [1000.0 if n < 25 else 0.001])
    for n in range(25):
        actor.insert(100 + n, 1, [0.001])
    raw = stored.layout.view(stored.segment, "raw")
    slots = stored.layout.view(stored.segment, "slots")
    assert raw[np.flatnonzero(slots[:, 0] == 3)].max() < 1


@given(
    priority=st.floats(0, LARGEST), alpha=st.sampled_from([0.0, 0.3, 1.0, 4.0]), eps=st.sampled_from([0.0, 1e-6, 1.0])
)
def test_a_leaf_is_zero_only_where_priority_and_eps_are(priority, alpha, eps):
    value = leaf(priority, alpha, eps)
    assert (value == 0) == (priority + eps == 0)
    assert np.isfinite(value * 2**31), "the sum of as many leaves as a table can have overflows"


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8))
def test_refused_names_the_first_bad_priority(values):
    bad = [k for k, v in enumerate(values) if not 0 <= v <= LARGEST]
    assert refused(np.array(values, np.float64)) == (bad[0] if bad else -1)

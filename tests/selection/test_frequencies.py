"""Frequencies of draws. Chi-square tests at 1e-6 on fixed seeds: one in a million seeds would fail."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import stats

from gear.schema import Prioritized, Step, Steps, Trajectories, Uniform, Whole, Window
from gear.storage import fields as f
from gear.storage.items import item_of
from gear.storage.uses import use
from tests.storage.actors import Actor, make

FALSE_ALARM = 1e-6


def draw(actor: Actor, size: int):
    """A selection of `size` items, released at once."""
    selections: list = []
    actor.queue.select(actor.client, size, 1, 60.0, time.monotonic() + 60, selections.append)
    actor.stored.pins.release(actor.client, selections[0].pin, delivered=True)
    return selections[0]


def counts(actor: Actor, total: int) -> dict[int, int]:
    seen: dict[int, int] = {}
    for _ in range(total // 4096):
        ids, times = np.unique(draw(actor, 4096).ids, return_counts=True)
        for item, n in zip(ids.tolist(), times.tolist(), strict=True):
            seen[item] = seen.get(item, 0) + n
    return seen


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 1.7])
def test_prioritized_frequencies_match_p_to_the_alpha_over_a_million_draws(alpha):
    stored = make(capacity=Steps(4000), item=Whole(), sampler=Prioritized(alpha), seed=3)
    actor = Actor(stored)
    priorities = np.random.default_rng(1).gamma(1.0, 2.0, 300) + 0.2  # every cell expects enough draws
    priorities[::7] = 0.0
    for n, priority in enumerate(priorities):
        actor.insert(n, 1 + n % 20, [priority])
    seen = counts(actor, 1 << 20)
    masses = np.where(priorities > 0, priorities**alpha, 0.0)
    alive = masses > 0
    assert len(seen) == alive.sum(), "an item of zero priority was drawn, or one never"
    observed = np.array([seen[item] for item in sorted(seen)])  # ids grow with the first block, so with n
    expected = masses[alive] / masses.sum() * observed.sum()
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize("item", [Whole(), Window(4), Window(6, 4, "tail"), Window(3, 5, "head")])
def test_uniform_frequencies_are_flat_over_items_of_mixed_trajectories(item):
    stored = make(capacity=Steps(3000), item=item, sampler=Uniform(), seed=9, block_steps=8, mean_length=20)
    actor = Actor(stored)
    rng = np.random.default_rng(0)
    for n in range(250):
        actor.insert(n, int(rng.integers(1, 40)))
    seen = counts(actor, 1 << 20)
    assert len(seen) == stored.info()["items"]
    assert stats.chisquare(list(seen.values())).pvalue > FALSE_ALARM


@pytest.mark.parametrize("item", [Step(0), Window(4), Window(3, 2, "head")])
@pytest.mark.parametrize("times", [0, 3])
def test_over_trajectories_each_has_the_same_share_and_so_has_each_of_its_items(item, times):
    """Origin: TorchRL, observed. Uniform removal scatters the chains of blocks; some items are used up on the way."""
    stored = make(
        capacity=Trajectories(60), item=item, sampler=Uniform("trajectories"), remover=Uniform(), seed=7, block_steps=4,
        mean_length=12, publish="end", max_times_sampled=10**6 if times else 0,
    )  # fmt: skip
    actor = Actor(stored)
    rng = np.random.default_rng(3)
    for n in range(400):
        actor.insert(n, int(rng.integers(1, 25)))
    if times:  # from here on these can not be drawn, and the others of their trajectories get their shares
        spent = np.unique(draw(actor, 40).ids)
        for item_id in spent.tolist():
            spend(stored, item_id, 10**6)
    seen = counts(actor, 1 << 18)
    slot_of = {i: slot_index(stored, i) for i in seen}
    sizes: dict[int, int] = {}
    for slot in slot_of.values():
        sizes[slot] = sizes.get(slot, 0) + 1
    assert len(seen) == stored.counters[f.LIVE_ITEMS], "an item was never drawn"
    ids = list(seen)
    expected = np.array([1 / len(sizes) / sizes[slot_of[i]] for i in ids])
    observed = np.array([seen[i] for i in ids])
    assert stats.chisquare(observed, expected * observed.sum()).pvalue > FALSE_ALARM
    chance = dict(zip(ids, expected.tolist(), strict=True))
    batch = draw(actor, 200)
    assert batch.probabilities == pytest.approx([chance[i] for i in batch.ids.tolist()])
    assert batch.smallest <= min(chance.values()) * (1 + 1e-9)


def slot_index(stored, item_id: int) -> int:
    row = item_id & ((1 << stored.layout.row_bits) - 1)
    return int(stored.layout.view(stored.segment, "blocks")[row // stored.layout.block_steps, f.SLOT])


def spend(stored, item_id: int, most: int) -> None:
    """As if the item had been handed out `most` times."""
    params, row = stored.params, item_id & ((1 << stored.layout.row_bits) - 1)
    blocks = stored.layout.view(stored.segment, "blocks").reshape(-1)
    item = int(item_of(params, blocks, row // stored.layout.block_steps, row))
    stored.layout.view(stored.segment, "times")[2 * item] = most - 1
    use(stored.segment, params, np.array([item]))


def test_the_reported_probability_is_the_one_used_while_priorities_change():
    """The importance-weighted mean of a known function stays unbiased under updates between the draws."""
    stored = make(capacity=Steps(2000), item=Whole(), sampler=Prioritized(0.8), seed=21)
    actor = Actor(stored)
    rng = np.random.default_rng(5)
    n_items = 200
    value = rng.normal(3.0, 2.0, n_items)
    ids = {}
    for n in range(n_items):
        actor.insert(n, 1 + n % 9, [float(rng.uniform(0.2, 3.0))])
    while len(ids) < n_items:
        batch = draw(actor, 4096)
        ids.update({int(i): None for i in batch.ids})
    order = {item: n for n, item in enumerate(sorted(ids))}
    estimates = []
    for _ in range(3000):
        batch = draw(actor, 64)
        which = np.array([order[int(i)] for i in batch.ids])
        estimates.append(np.mean(value[which] / (n_items * batch.probabilities)))
        stored.update(batch.ids[:32], rng.uniform(0.2, 3.0, 32))
    error = (np.mean(estimates) - value.mean()) / (np.std(estimates) / np.sqrt(len(estimates)))
    assert abs(error) < stats.norm.isf(FALSE_ALARM / 2)


def test_uniform_remover_takes_any_closed_trajectory():
    stored = make(capacity=Steps(100), item=Whole(), remover=Uniform(), seed=2, mean_length=1, block_steps=1)
    actor = Actor(stored)
    survivors = np.zeros(10)
    for n in range(20_000):
        actor.insert(n, 1)
    slots = stored.layout.view(stored.segment, "slots")
    ages = 20_000 - slots[slots[:, 0] == 3, 8]
    survivors, _ = np.histogram(ages, bins=10)
    # Each survives an insert with probability 0.99: ages are geometric, far from the fifo's 0..99.
    assert stats.kstest(ages, stats.geom(0.01, loc=-1).cdf).pvalue > FALSE_ALARM

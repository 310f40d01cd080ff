"""Where items lie: indices against the definition, and blocks found in chains that are contiguous or not."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from gear.schema import Steps, Trajectories, Uniform, Window
from gear.storage import fields as f
from gear.storage.items import block_at, first_item, indices, item_at, item_index

from .actors import Actor, make


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 50), st.integers(0, 40))
def test_the_items_of_a_block_are_consecutive_from_its_first_index_on(stride, steps, ordinal, place):
    """So that a uniform draw needs a block and a place only, whatever the stride."""
    per_block = -(-steps // stride)
    params = np.zeros(len(f.PARAMS), np.int64)
    params[[f.P_STRIDE, f.P_BLOCK_STEPS, f.P_ITEMS_PER_BLOCK]] = stride, steps, per_block
    item = first_item(params, ordinal) + place
    if item < first_item(params, ordinal + 1):
        assert item_index(params, 7, ordinal, item) == 7 * per_block + place


@pytest.mark.parametrize("item", [Window(1), Window(1, 3), Window(1, 9)])
def test_items_are_found_from_any_place_of_a_scattered_chain(item):
    stored = make(capacity=Trajectories(20), item=item, remover=Uniform(), block_steps=4, mean_length=20, seed=1)
    actor, rng = Actor(stored), np.random.default_rng(0)
    for number in range(200):
        actor.insert(number, int(rng.integers(1, 40)))
    blocks, slots = (stored.layout.view(stored.segment, name) for name in ("blocks", "slots"))
    stride, scattered = item.stride, 0
    for slot in np.flatnonzero(slots[:, f.STATE] == f.CLOSED).tolist():
        chain = [int(slots[slot, f.FIRST])]
        while blocks[chain[-1], f.NEXT] >= 0:
            chain.append(int(blocks[chain[-1], f.NEXT]))
        scattered += chain != list(range(chain[0], chain[0] + len(chain)))
        n = int(slots[slot, f.ITEMS])
        at = [t * stride for t in range(n)]
        expected = [chain[t // 4] * stored.layout.items_per_block + t % 4 // stride for t in at]
        assert [block_at(stored.segment, stored.params, slot, k) for k in range(len(chain))] == chain
        assert [item_at(stored.segment, stored.params, slot, k) for k in range(n)] == expected
        for begin in range(n + 1):
            assert indices(stored.segment, stored.params, slot, begin, n).tolist() == expected[begin:]
    assert scattered > 3


def test_the_block_of_an_early_item_is_not_looked_for_from_the_end():
    """A broken link near the end shows that nobody went there."""
    stored = make(capacity=Steps(4000), item=Window(1), block_steps=1, mean_length=1000)
    actor = Actor(stored)
    slot = actor.insert(0, 30)
    blocks, slots = (stored.layout.view(stored.segment, name) for name in ("blocks", "slots"))
    blocks[slots[slot, f.LAST], f.PREVIOUS] = -1
    for number in (0, 1, 10):
        assert item_at(stored.segment, stored.params, slot, number) == slots[slot, f.FIRST] + number

"""The sum tree: build, update and draw, on every implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gear.kernels import reference
from tests.kernels.cases import drawn, tree_of
from tests.kernels.simulator import at_most, examples

seeds = st.integers(0, 2**32)
sizes = st.one_of(st.integers(0, 70), st.integers(500, 530), st.integers(at_most(4000, 500), at_most(5000, 600)))


def random_leaves(seed: int, size: int, exact: bool = False) -> np.ndarray:
    """Non-negative leaves, many of them zero; exact ones are small whole numbers, which add without rounding."""
    rng = np.random.default_rng(seed)
    leaves = rng.integers(0, 100, size).astype(float) if exact else rng.random(size) ** rng.integers(1, 40)
    leaves[rng.random(size) < rng.choice([0.0, 0.3, 0.95, 1.0])] = 0.0
    return leaves


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds, size=sizes)
def test_build_equals_the_reference(implementation, seed, size):
    leaves = random_leaves(seed, size)
    for got, expected in zip(tree_of(implementation, leaves), tree_of(reference, leaves), strict=True):
        np.testing.assert_array_equal(got, expected)


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds, size=sizes.filter(bool), count=st.integers(0, 60), ordered=st.booleans())
def test_update_equals_the_reference(implementation, seed, size, count, ordered):
    rng = np.random.default_rng(seed)
    trees = [tree_of(module, random_leaves(seed, size)) for module in (implementation, reference)]
    for _ in range(3):
        items = rng.integers(0, min(size, rng.integers(1, 5000)), count)
        items = np.sort(items) if ordered else items
        leaves = random_leaves(int(rng.integers(2**32)), count)
        for module, tree in zip((implementation, reference), trees, strict=True):
            module.tree_update(*tree, items, leaves)
    for got, expected in zip(*trees, strict=True):
        np.testing.assert_array_equal(got, expected)


@settings(max_examples=examples(100), deadline=None)
@given(seed=seeds, size=sizes)
def test_total_and_smallest_equal_the_reference(implementation, seed, size):
    leaves = random_leaves(seed, size)
    tree, mins, starts = tree_of(reference, leaves)
    total = implementation.tree_total(tree, starts)
    assert total == reference.tree_total(tree, starts)
    assert total == pytest.approx(leaves.sum(), rel=1e-12)
    assert implementation.tree_smallest(tree, mins, starts) == min(leaves[leaves > 0], default=np.inf)


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds, size=sizes)
def test_draws_without_rounding_equal_the_reference(implementation, seed, size):
    leaves = random_leaves(seed, size, exact=True)
    tree, _, starts = tree_of(reference, leaves)
    total = int(leaves.sum())
    rng = np.random.default_rng(seed)
    borders = np.unique(np.cumsum(leaves))[: at_most(5000, 20)]
    masses = np.concatenate([[0.0, total], borders, np.maximum(borders - 0.5, 0), rng.integers(0, total + 1, 40)])
    np.testing.assert_array_equal(drawn(implementation, tree, starts, masses), drawn(reference, tree, starts, masses))


@settings(max_examples=examples(150), deadline=None)
@given(seed=seeds, size=sizes)
def test_draws_lie_where_their_mass_lies(implementation, seed, size):
    leaves = random_leaves(seed, size)
    tree, _, starts = tree_of(implementation, leaves)
    total = implementation.tree_total(tree, starts)
    masses = np.random.default_rng(seed).random(64) * total
    items = drawn(implementation, tree, starts, masses)
    if total == 0:
        assert (items == -1).all()
        return
    ends = np.cumsum(leaves)
    assert (leaves[items] > 0).all()
    assert (masses <= ends[items] + 1e-12 * total).all()
    assert (masses >= ends[items] - leaves[items] - 1e-12 * total).all()


@settings(max_examples=examples(100), deadline=None)
@given(seed=seeds, size=sizes)
def test_no_mass_whatever_draws_a_leaf_of_zero(implementation, seed, size):
    leaves = random_leaves(seed, size)
    tree, _, starts = tree_of(implementation, leaves)
    total = implementation.tree_total(tree, starts)
    above = np.nextafter(total, np.inf)
    masses = [0.0, -0.0, total, above, 2 * total, -1.0, np.inf, -np.inf, np.nan, 5e-324, np.nextafter(total, 0)]
    items = drawn(implementation, tree, starts, masses)
    assert (leaves[items] > 0).all() if total > 0 else (items == -1).all()


def test_draws_have_the_frequencies_of_the_leaves(implementation):
    """False alarms: 1e-6, on a fixed seed."""
    leaves = np.random.default_rng(1).random(100) * (np.arange(100) % 3 > 0)
    tree, _, starts = tree_of(implementation, leaves)
    masses = np.empty(at_most(20_000, 1000))
    implementation.uniforms(7, 0, masses)
    counts = np.bincount(drawn(implementation, tree, starts, masses * leaves.sum()), minlength=100)
    alive = leaves > 0
    assert counts[~alive].sum() == 0
    assert stats.chisquare(counts[alive], leaves[alive] / leaves.sum() * len(masses)).pvalue > 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_draw_never_falls_off_the_end(implementation, dtype):
    """pytorch/rl#2230: capacity 500, 100 random leaves, mass = the tree's own total, in f32 and f64."""
    rng = np.random.default_rng(0)
    for _ in range(at_most(1500, 20)):
        leaves = np.zeros(500)
        leaves[:100] = rng.random(100, dtype)
        tree, _, starts = tree_of(implementation, leaves)
        total = implementation.tree_total(tree, starts)
        masses = np.array([total, np.nextafter(total, 0), rng.random() * total]).astype(dtype)
        items = drawn(implementation, tree, starts, masses)
        assert items[0] == 99
        assert items.max() < 100


def test_rows_of_zero_priority_are_passed_over(implementation):
    """JuliaRL Trajectories#59."""
    tree, _, starts = tree_of(implementation, [0, 0, 1, 1])
    assert drawn(implementation, tree, starts, [0.0, 1.0, np.nextafter(2.0, 0)]).tolist() == [2, 3, 3]


def test_sums_do_not_drift(implementation):
    """flashbax#52: after 3000 random updates of 32 leaves the total equals the leaves' sum to 1e-9 relative."""
    rng = np.random.default_rng(0)
    tree, mins, starts = tree_of(implementation, np.zeros(32))
    leaves = np.zeros(32)
    for _ in range(at_most(3000, 40)):
        items, values = rng.integers(0, 32, 4), 10 ** rng.uniform(-8, 8, 4)
        leaves[items] = values
        implementation.tree_update(tree, mins, starts, items, values)
    last = {int(i): tree[i] for i in range(32)}
    assert implementation.tree_total(tree, starts) == pytest.approx(sum(last.values()), rel=1e-9)
    assert leaves.sum() == pytest.approx(sum(last.values()), rel=1e-9)


def test_capacities_need_not_be_powers(implementation):
    """cleanrl#546: capacity 3, priorities 1, 1, 1."""
    tree, _, starts = tree_of(implementation, [1, 1, 1])
    assert drawn(implementation, tree, starts, [0.5, 1.5, 2.5]).tolist() == [0, 1, 2]


def test_a_leaf_may_be_zero(implementation):
    """rl_algorithms#249: priority 0 is legal, never drawn, and drawn again once it is raised."""
    tree, mins, starts = tree_of(implementation, [1.0, 1.0])
    implementation.tree_update(tree, mins, starts, np.array([0]), np.array([0.0]))
    assert drawn(implementation, tree, starts, [0.0, 0.5, 1.0]).tolist() == [1, 1, 1]
    implementation.tree_update(tree, mins, starts, np.array([0]), np.array([0.25]))
    assert drawn(implementation, tree, starts, [0.0]).tolist() == [0]
    assert implementation.tree_smallest(tree, mins, starts) == 0.25


@pytest.mark.parametrize("size", [8, 20])
def test_of_duplicate_items_the_last_wins(implementation, size):
    """tianshou PR 94: 8 leaves of 1, update [2, 5, 2] with [7, 1, 3] -> leaf 2 is 3, total 10."""
    tree, mins, starts = tree_of(implementation, np.ones(8).tolist() + [0.0] * (size - 8))
    implementation.tree_update(tree, mins, starts, np.array([2, 5, 2]), np.array([7.0, 1.0, 3.0]))
    assert tree[2] == 3
    assert implementation.tree_total(tree, starts) == 10


@pytest.mark.parametrize("size", [0, 3, 8, 9, 600])
def test_no_mass_counts_as_empty(implementation, size):
    tree, mins, starts = tree_of(implementation, np.zeros(size))
    assert implementation.tree_total(tree, starts) == 0
    assert implementation.tree_smallest(tree, mins, starts) == np.inf
    assert drawn(implementation, tree, starts, [0.0, 1.0]).tolist() == [-1, -1]


def test_there_may_be_no_tree_at_all(implementation):
    nothing, starts = np.zeros(0), np.zeros(0, np.int64)
    implementation.tree_build(nothing, nothing, starts)
    assert implementation.tree_total(nothing, starts) == 0
    assert implementation.tree_smallest(nothing, nothing, starts) == np.inf
    assert drawn(implementation, nothing, starts, [0.0]).tolist() == [-1]


@pytest.mark.parametrize("item", [-1, 16, 2**40])
@pytest.mark.parametrize("size", [5, 16])
def test_an_update_outside_the_tree_changes_nothing(implementation, size, item):
    tree, mins, starts = tree_of(implementation, np.ones(size))
    before = tree.copy()
    with pytest.raises(IndexError, match="outside the tree"):
        implementation.tree_update(tree, mins, starts, np.array([1, item]), np.array([2.0, 2.0]))
    np.testing.assert_array_equal(tree, before)


def test_arrays_that_belong_together_are_equally_long(implementation):
    tree, mins, starts = tree_of(implementation, np.ones(8))
    with pytest.raises(ValueError, match="differ in length"):
        implementation.tree_update(tree, mins, starts, np.zeros(2, np.int64), np.zeros(1))
    with pytest.raises(ValueError, match="differ in length"):
        implementation.tree_draw(tree, starts, np.zeros(2), np.zeros(1, np.int64))

"""One draw divided among ranks: nobody with nothing, nobody above the cap, about as many steps for each."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gear.storage.shares import Bins, even, within

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=40)


def sums(lengths: np.ndarray, owners: np.ndarray, ranks: int) -> np.ndarray:
    return np.bincount(owners, lengths, ranks).astype(int)


@given(lengths=LENGTHS, ranks=st.integers(1, 8))
def test_every_rank_gets_equally_many_units(lengths, ranks):
    owners = even(np.array(lengths), ranks)
    counts = np.bincount(owners, minlength=ranks)
    assert counts.sum() == len(lengths)
    assert counts.max() - counts.min() <= 1


@given(lengths=LENGTHS, ranks=st.integers(1, 8))
def test_steps_of_equally_many_units_differ_by_no_more_than_the_longest(lengths, ranks):
    whole = np.array(lengths + lengths[:1] * (-len(lengths) % ranks))
    loads = sums(whole, even(whole, ranks), ranks)
    assert loads.max() - loads.min() <= whole.max()


def test_a_lognormal_batch_is_balanced_to_a_hundredth():  # as verl balances it: 8 ranks, 64 responses each
    lengths = np.minimum(np.random.default_rng(0).lognormal(np.log(512), 0.8, 512).astype(int) + 1, 4096)
    loads = sums(lengths, even(lengths, 8), 8)
    dealt = lengths.reshape(8, 64).sum(1)
    assert loads.max() / loads.mean() < 1.01 < 1.05 < dealt.max() / dealt.mean()


@settings(max_examples=300)
@given(lengths=LENGTHS, ranks=st.integers(1, 6), size=st.integers(1, 12), cap=st.integers(10, 60))
def test_no_batch_is_above_the_cap_or_empty(lengths, ranks, size, cap):
    bins = Bins(ranks, size, cap, alone=False)
    taken = next((k for k, length in enumerate(lengths) if not bins.put(length)), len(lengths))
    if taken < ranks:  # then the next one is longer than the cap, or there are too few
        assert taken == len(lengths) or lengths[taken] > cap
        return
    kept = np.array(lengths[:taken])
    owners = within(kept, ranks, size, cap, False)
    counts = np.bincount(owners, minlength=ranks)
    assert sums(kept, owners, ranks).max() <= cap
    assert counts.min() >= 1
    assert counts.max() <= size


def test_what_longest_first_does_not_fit_stays_as_it_was_taken():
    lengths = np.array([5, 3, 4, 3, 3, 2])  # 10 + 10 as taken; longest first 5 3 3 | 4 3 2 is above 10
    bins = Bins(2, 9, 10, alone=False)
    assert all(bins.put(length) for length in lengths.tolist())
    assert sums(lengths, within(lengths, 2, 9, 10, False), 2).tolist() == [10, 10]


def test_a_unit_longer_than_the_cap_takes_an_empty_batch_for_itself():
    lengths = [5, 21, 5, 21]
    bins = Bins(3, 9, 20, alone=True)
    assert [bins.put(length) for length in lengths] == [True] * 4
    owners = within(np.array(lengths), 3, 9, 20, True)
    assert sorted(sums(np.array(lengths), owners, 3)) == [10, 21, 21]
    assert not bins.put(21)

"""Limiters against Reverb's definitions, in plain Python."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from gear.schema import SampleToInsertRatio
from gear.selection.limiter import budget_allows, forgiven, insert_allowed, samples_allowed

counts = st.integers(0, 200)


@given(
    inserted=counts,
    deleted=counts,
    sampled=counts,
    ratio=st.sampled_from([0.5, 1.0, 1.5, 8.0]),
    least=st.integers(1, 20),
)
def test_ratio_limiter_is_reverbs(inserted, deleted, sampled, ratio, least):
    deleted = min(deleted, inserted)
    low, high = SampleToInsertRatio(ratio, least, 2 * max(1.0, ratio)).bounds

    def may_sample(already: int) -> bool:
        return inserted - deleted >= least and inserted * ratio - (sampled + already + 1) >= low

    allowed = samples_allowed(5, inserted, deleted, sampled, True, least, ratio, low)
    assert allowed == next((n for n in range(5) if not may_sample(n)), 5)
    may_insert = inserted + 1 - deleted <= least or (inserted + 1) * ratio - sampled <= high
    assert insert_allowed(inserted, deleted, sampled, True, least, ratio, high) == may_insert


@given(inserted=counts, deleted=counts, least=st.integers(1, 20))
def test_min_size_blocks_samples_only(inserted, deleted, least):
    deleted = min(deleted, inserted)
    assert samples_allowed(7, inserted, deleted, 10**6, False, least, 0.0, 0.0) == (
        7 if inserted - deleted >= least else 0
    )
    assert insert_allowed(inserted, deleted, 0, False, least, 0.0, 0.0)


def test_a_third_per_insert_loses_nothing_to_rounding():
    assert samples_allowed(2, 3, 0, 0, True, 1, 1 / 3, 0.0) == 1


def test_an_error_buffer_above_what_an_integer_holds_blocks_nothing():
    low, high = SampleToInsertRatio(1.0, 1, 1e19).bounds
    assert samples_allowed(256, 1, 0, 0, True, 1, 1.0, low) == 256
    assert insert_allowed(1, 0, 0, True, 1, 1.0, high)


@given(inserted=counts, version=st.integers(0, 50), batch=st.integers(1, 20), eta=st.integers(0, 10))
def test_a_staleness_budget_is_areals(inserted, version, batch, eta):
    """Origin: AReaL (arXiv:2505.24298), eq. 3: the N-th may come if floor((N - 1) / batch) <= version + eta."""
    assert budget_allows(inserted, version, batch, eta) == (inserted // batch <= version + eta)


def test_what_expired_is_forgotten_as_far_as_nobody_sampled_it():
    assert forgiven(3, 5, 0, 1.0, 0.0) == 3
    assert forgiven(3, 5, 4, 1.0, 0.0) == 1
    assert forgiven(3, 5, 9, 1.0, 0.0) == 0
    assert forgiven(4, 6, 0, 0.5, -1.0) == 4
    assert forgiven(4, 6, 4, 2.0, 2.0) == 3

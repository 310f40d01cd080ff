"""Gathering items one behind the other: on every implementation, the same as the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from gear.kernels import records as r
from gear.kernels import reference
from tests.kernels.cases import SENTINEL, GatherCase, gather_case, shapes
from tests.kernels.simulator import examples
from tests.kernels.test_gather import chain


def run(case: GatherCase, implementation) -> np.ndarray:
    out = case.out.copy()
    implementation.gather_packed(case.segment, case.plan, case.pads, case.starts, case.lengths, out)
    return out


def test_items_lie_behind_each_other_along_their_chains(implementation):
    assert run(chain(9), implementation)[:8].tolist() == [11, 12, 13, 14, 20, 21, 0, 0]


def test_rows_that_are_missing_are_padded_behind_those_there(implementation):
    case = chain(9, pad=0)
    case.lengths = np.array([7, 2], np.int32)
    assert run(case, implementation)[:10].tolist() == [11, 12, 13, 14, 0, 99, 99, 20, 21, 0]


def test_no_item_is_longer_than_the_plan_says_and_none_is_shorter_than_nothing(implementation):
    case = chain(2)
    case.lengths = np.array([4, -3], np.int32)
    assert run(case, implementation)[:4].tolist() == [11, 12, 0, 0]


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=shapes)
def test_packed_equals_the_reference(implementation, shape):
    case = gather_case(shape)
    expected = run(case, reference)
    np.testing.assert_array_equal(run(case, implementation), expected)
    assert (expected[-5:] == SENTINEL).all()


@pytest.mark.parametrize(
    ("row", "field", "value", "message"),
    [
        (0, r.BLOCK_COUNT, 1000, "outside the segment"),
        (1, r.OFFSET, 1000, "outside its block"),
        (1, r.TARGET, 10**9, "into the output"),
        (1, r.PAD, 1, "outside the pads"),
    ],
)
def test_a_plan_that_leaves_its_arrays_is_refused(implementation, row, field, value, message):
    case = chain(4)
    case.plan[row, field] = value
    with pytest.raises(ValueError, match=message):
        run(case, implementation)

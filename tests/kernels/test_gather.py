"""Gather: windows, padding, masks and per-trajectory columns, on every implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from gear.kernels import records as r
from gear.kernels import reference
from tests.kernels.cases import SENTINEL, GatherCase, Shape, gather_case, shapes
from tests.kernels.simulator import examples


def chain(length: int, head: bool = False, pad: int = -1, mask: bool = False) -> GatherCase:
    """Blocks of 2 steps, column of 1 byte; trajectory 10 11 12 13 14 in blocks 2, 0, 3 and 20 21 in block 1."""
    plan = np.zeros((2, r.PLAN_FIELDS), np.int64)
    plan[0, : r.MASK + 1] = (2, 2, 96, 0, 4, length, head, 2 * length if mask else -1)
    plan[1, : r.PAD + 1] = (r.PER_STEP, 0, 1, 1, 0, pad)
    segment = np.zeros(96 + 8, np.uint8)
    blocks = segment[:96].view(np.int32).reshape(4, r.BLOCK_FIELDS)
    blocks[:, r.NEXT] = (3, -1, 0, -1)
    blocks[:, r.SLOT] = (5, 6, 5, 5)
    segment[96:] = (12, 13, 20, 21, 10, 11, 14, 0)
    starts, lengths = np.array([5, 2]), np.array([4, 2], np.int32)
    return GatherCase(segment, plan, np.array([99], np.uint8), starts, lengths, np.zeros(4 * length, np.uint8))


def test_a_window_follows_the_chain_of_blocks(implementation):
    assert chain(4).run(implementation)[:8].tolist() == [11, 12, 13, 14, 20, 21, 0, 0]


def test_the_tail_is_padded_and_the_mask_tells(implementation):
    out = chain(5, pad=0, mask=True).run(implementation)
    assert out[:10].tolist() == [11, 12, 13, 14, 99, 20, 21, 99, 99, 99]
    assert out[10:].tolist() == [1, 1, 1, 1, 0, 1, 1, 0, 0, 0]


def test_the_head_is_padded_with_the_columns_pad_value(implementation):
    """decision-transformer#36, #30: trajectory of 3, context 5 -> mask 00111, timesteps 00012."""
    case = chain(5, head=True, pad=0, mask=True)
    case.segment[96:] = (0, 1, 0, 0, 0, 0, 2, 0)
    case.starts, case.lengths = np.array([0, 0]), np.array([3, 3], np.int32)
    case.pads = np.array([7], np.uint8)
    out = case.run(implementation)
    assert out[:10].tolist() == [7, 7, 0, 1, 2] * 2
    assert out[10:].tolist() == [0, 0, 1, 1, 1] * 2


def test_a_window_ends_where_the_trajectory_ends(implementation):
    """rl#1969, #2193: whatever lies in the next block of memory, a window never crosses an episode."""
    case = chain(4)
    case.starts, case.lengths = np.array([2, 7]), np.array([4, 4], np.int32)
    assert case.run(implementation)[:8].tolist() == [20, 21, 0, 0, 0, 0, 0, 0]


def test_single_rows_may_be_missing(implementation):
    case = chain(1, pad=0, mask=True)
    case.starts, case.lengths = np.array([4, 3]), np.array([1, 0], np.int32)
    assert case.run(implementation)[:4].tolist() == [10, 99, 1, 0]


@pytest.mark.parametrize("length", [1, 3])
def test_a_trajectory_column_gives_the_row_of_the_slot(implementation, length):
    case = chain(length)
    case.plan = np.vstack([case.plan, np.zeros((1, r.PLAN_FIELDS), np.int64)])
    case.segment = np.append(case.segment, np.arange(30, 50, dtype=np.uint8))
    case.plan[2, : r.PAD + 1] = (r.PER_TRAJECTORY, 104, 2, 2, 2 * length, 0)
    case.pads = np.array([98, 99], np.uint8)
    case.starts, case.lengths, case.out = np.array([5, 2]), np.array([1, 0], np.int32), np.zeros(20, np.uint8)
    out = case.run(implementation)
    assert out[2 * length : 2 * length + 4].tolist() == [40, 41, 98, 99]


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=shapes)
def test_gather_equals_the_reference(implementation, shape):
    case = gather_case(shape)
    expected = case.run(reference)
    np.testing.assert_array_equal(case.run(implementation), expected)
    assert (expected[-5:] == SENTINEL).all()


def test_many_single_rows_over_several_tiles(implementation):
    columns = ((0, 68, True), (0, 24, False), (0, 4, True), (0, 1, False), (1, 3, True))
    for interleaved in (True, False):
        for steps in (1, 3, 16):
            case = gather_case(Shape(steps, 40, 1, 200, False, True, interleaved, columns, False, 3))
            np.testing.assert_array_equal(case.run(implementation), case.run(reference))


@pytest.mark.parametrize(
    ("row", "field", "value", "message"),
    [
        (0, r.BLOCK_STEPS, 0, "negative"),
        (0, r.BLOCK_COUNT, 1000, "outside the segment"),
        (0, r.ARENA, 10**9, "outside the segment"),
        (0, r.BLOCKS, 10**9, "outside the segment"),
        (0, r.ITEM_LENGTH, 10**9, "into the output"),
        (0, r.MASK, 10**9, "mask does not fit"),
        (1, r.OFFSET, -1, "negative"),
        (1, r.OFFSET, 1000, "outside its block"),
        (1, r.STRIDE, 1000, "outside its block"),
        (1, r.WIDTH, 1000, "outside its block"),
        (1, r.TARGET, 10**9, "into the output"),
        (1, r.PAD, 1, "outside the pads"),
    ],
)
def test_a_plan_that_leaves_its_arrays_is_refused(implementation, row, field, value, message):
    case = chain(4)
    case.plan[row, field] = value
    with pytest.raises(ValueError, match=message):
        case.run(implementation)


def test_starts_and_lengths_must_be_equally_many(implementation):
    case = chain(4)
    case.lengths = case.lengths[:1]
    with pytest.raises(ValueError, match="differ in length"):
        case.run(implementation)

"""Rows on their way in: arrays are found where they lie, and written as the reference scatters them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gear.kernels import host_insert, reference
from gear.kernels import records as r
from tests.kernels.cases import gather_case, shapes
from tests.kernels.test_scatter import arena


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=shapes, data=st.data())
def test_all_columns_are_written_as_the_reference_scatters_each(shape, data):
    assume(all(width for _, width, _ in shape.columns))
    case = gather_case(shape)
    rng = np.random.default_rng(shape.seed)
    steps = np.array(data.draw(st.lists(st.integers(0, 3 * shape.steps), max_size=4)), np.int64)
    needs = (
        -(-steps // shape.steps)
        + np.array(data.draw(st.lists(st.integers(0, 1), min_size=4, max_size=4)))[: len(steps)]
    )
    while needs.sum() > shape.blocks:
        steps, needs = steps[:-1], needs[:-1]
    blocks = rng.permutation(shape.blocks)[: needs.sum()].astype(np.int32)
    at, begin = needs.cumsum() - needs, steps.cumsum() - steps
    expected, got, sources, kept = case.segment.copy(), case.segment.copy(), [], []
    for c, column in enumerate(case.plan[1:]):
        if column[r.KIND] != r.PER_STEP:
            continue
        values = rng.integers(0, 256, steps.sum() * column[r.WIDTH], dtype=np.uint8)
        reference.scatter(expected, case.plan, c, blocks, np.stack((begin, steps, at), 1), values)
        sources.append(values.ctypes.data + begin * column[r.WIDTH])
        kept.append(values)
    host_insert.write_columns(
        got, case.plan, blocks, needs, steps, np.array(sources, np.int64).reshape(len(sources), len(steps))
    )
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("blocks", "needs", "steps", "columns", "message"),
    [
        ([0], [1], [3], 1, "outside the given blocks"),
        ([0], [2], [3], 1, "outside the given blocks"),
        ([0], [1], [-1], 1, "outside the given blocks"),
        ([0], [-1], [0], 1, "outside the given blocks"),
        ([0, 1], [2**62, 1], [1, 1], 1, "outside the given blocks"),
        ([3], [1], [1], 1, "outside the arena"),
        ([-1], [1], [1], 1, "outside the arena"),
        ([0], [1], [1], 2, "differ in length"),
        ([0], [1], [1, 1], 1, "differ in length"),
    ],
)
def test_rows_that_have_no_place_are_refused(blocks, needs, steps, columns, message):
    segment, plan = arena()
    values = np.ones(64, np.uint8)
    sources = np.full((columns, len(steps)), values.ctypes.data)
    with pytest.raises(ValueError, match=message):
        host_insert.write_columns(
            segment, plan, np.array(blocks, np.int32), np.array(needs), np.array(steps), sources
        )  # fmt: skip
    assert not segment.any()


def heads(*columns: list, dtype: str = "float32", row: tuple[int, ...] = (2,)) -> tuple[int, list, list]:
    """Length of the longest, lengths and addresses."""
    objects = [np.fromiter(column, object, len(column)) for column in columns]
    kinds = [(column.ctypes.data, id(np.dtype(dtype)), len(row), *row) for column in objects]
    lengths, addresses = np.zeros(len(objects[0]), np.int64), np.zeros((len(objects), len(objects[0])), np.int64)
    longest = host_insert.read_heads(id(np.ndarray), np.array(kinds), lengths, addresses)
    return longest, lengths.tolist(), addresses.tolist()


def test_arrays_are_found_where_they_lie():
    whole = np.zeros((9, 2), np.float32)
    one, other = [whole, whole[3:5]], [np.ones((9, 2), np.float32), whole[:2]]
    assert heads(one, other) == (9, [9, 2], [[a.ctypes.data for a in column] for column in (one, other)])


class Own(np.ndarray):
    """Which may do anything."""


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((3, 2)), np.zeros((3, 2), ">f4"), np.zeros((4, 2), np.float32), np.zeros((0, 2), np.float32),
        np.zeros((3, 1), np.float32), np.zeros(3, np.float32), np.zeros((3, 2, 1), np.float32), np.float32(3), None, 3,
        [[1.0, 2.0]] * 3, np.zeros((3, 4), np.float32)[:, ::2], np.zeros((2, 3), np.float32).T,
        np.zeros((3, 2), np.float32).view(Own), np.zeros((), np.float32), "x", ctypes.c_int64(0),
    ],
)  # fmt: skip
def test_what_is_something_else_is_told(other):
    fine = np.zeros((3, 2), np.float32)
    assert heads([fine, fine, fine], [fine, other, fine])[0] == -1


def test_offsets_say_where_packed_trajectories_lie():
    lengths, addresses = np.zeros(2, np.int64), np.zeros((2, 2), np.int64)
    longest = host_insert.read_offsets(
        np.array([0, 3, 4]), 4, np.array([100, 1000]), np.array([8, 1]), lengths, addresses
    )
    assert (longest, lengths.tolist(), addresses.tolist()) == (3, [3, 1], [[100, 124], [1000, 1003]])


@pytest.mark.parametrize(
    "offsets", [[1, 3, 4], [0, 3, 5], [0, 3, 3], [0, 0, 4], [0, 5, 4], [0, -1, 4], [0, 2**63 - 1, 4], [0, -(2**63), 4]]
)
def test_offsets_that_do_not_rise_to_the_end_are_told(offsets):
    lengths, addresses = np.zeros(2, np.int64), np.zeros((1, 2), np.int64)
    assert host_insert.read_offsets(np.array(offsets), 4, np.array([100]), np.array([8]), lengths, addresses) == -1

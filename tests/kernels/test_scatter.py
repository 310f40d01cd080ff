"""Scatter: rows of one column into the blocks of trajectories; the host writes all columns, see `test_insert`."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gear.kernels import records as r
from gear.kernels import reference
from tests.kernels.cases import gather_case, shapes
from tests.kernels.simulator import SIMULATED, examples


@pytest.fixture(scope="session")
def implementation() -> ModuleType:
    return importlib.import_module("gear.kernels.cuda") if SIMULATED else reference


def arena(steps: int = 2, width: int = 2, blocks: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Segment of zeros and its plan: one column, strips of `steps` rows."""
    plan = np.zeros((2, r.PLAN_FIELDS), np.int64)
    plan[0, : r.BLOCK_COUNT + 1] = (steps, steps * width, blocks * 4 * r.BLOCK_FIELDS, 0, blocks)
    plan[1, : r.PAD + 1] = (r.PER_STEP, 0, width, width, 0, -1)
    return np.zeros(blocks * (4 * r.BLOCK_FIELDS + steps * width), np.uint8), plan


def spans(*rows: tuple[int, int, int]) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, 3)


def test_rows_go_to_the_blocks_of_their_trajectory(implementation):
    segment, plan = arena()
    values = np.arange(1, 9, dtype=np.uint8)
    implementation.scatter(segment, plan, 0, np.array([2, 0, 1], np.int32), spans((1, 3, 0), (0, 1, 2)), values)
    assert segment[72:].reshape(3, 4).tolist() == [[7, 8, 0, 0], [1, 2, 0, 0], [3, 4, 5, 6]]


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=shapes, data=st.data())
def test_scatter_equals_the_reference(implementation, shape, data):
    case = gather_case(shape)
    rng = np.random.default_rng(shape.seed)
    column = data.draw(st.integers(-1, len(shape.columns)))
    blocks = rng.permutation(shape.blocks).astype(np.int32)
    lengths = data.draw(st.lists(st.integers(0, 3 * shape.steps), max_size=4))
    width = shape.columns[column][1] if 0 <= column < len(shape.columns) else 1
    values = rng.integers(0, 256, sum(lengths) * width, dtype=np.uint8)
    ends = np.cumsum([0, *lengths])
    used = np.cumsum([0, *(-(-n // shape.steps) for n in lengths)])  # more than there are: refused
    first = spans(*zip(ends[:-1], lengths, used[:-1], strict=True))
    results = []
    for module in (implementation, reference):
        segment, error = case.segment.copy(), ""
        try:
            module.scatter(segment, case.plan, column, blocks, first, values)
        except ValueError as refused:
            error = str(refused)
        results.append((segment.tobytes(), error))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("column", "blocks", "span", "size", "message"),
    [
        (1, [0], (0, 1, 0), 2, "not a per-step column"),
        (-1, [0], (0, 1, 0), 2, "not a per-step column"),
        (0, [0], (0, 1, 0), 3, "whole rows"),
        (0, [0], (0, 3, 0), 6, "outside the given blocks"),
        (0, [0], (0, 1, 1), 2, "outside the given blocks"),
        (0, [0], (0, 1, -1), 2, "outside the given blocks"),
        (0, [0, 1], (0, 2**62, 0), 2, "outside the given values"),
        (0, [0], (0, 0, 2**62), 2, "outside the given blocks"),
        (0, [0], (-1, 1, 0), 2, "outside the given values"),
        (0, [0], (0, 2, 0), 2, "outside the given values"),
        (0, [0], (0, -1, 0), 2, "outside the given values"),
        (0, [3], (0, 1, 0), 2, "outside the arena"),
        (0, [-1], (0, 1, 0), 2, "outside the arena"),
    ],
)
def test_rows_that_have_no_place_are_refused(implementation, column, blocks, span, size, message):
    segment, plan = arena()
    values, named = np.ones(size, np.uint8), np.array(blocks, np.int32)
    with pytest.raises(ValueError, match=message):
        implementation.scatter(segment, plan, column, named, spans((0, 0, 0), span), values)
    assert not segment.any()

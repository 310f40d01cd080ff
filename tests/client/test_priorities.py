"""Priorities and ids as the user gives them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import gear
from gear.client.priorities import as_ids, as_priorities, item_count


@pytest.mark.parametrize(
    "values",
    [[0, 1, 2], np.arange(3), np.arange(3, dtype=np.float16), np.arange(3).astype(ml_dtypes.bfloat16),
     torch.arange(3), torch.arange(3, dtype=torch.bfloat16), torch.arange(3.0, requires_grad=True)],
)  # fmt: skip
def test_anything_array_like_is_taken(values):
    array = as_priorities(values, 3)
    assert array.dtype == np.float64
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2, float("nan")], r"priorities\[2\] is nan"),
        ([1, -0.5, 3], r"priorities\[1\] is -0.5"),
        ([float("inf"), 2, 3], r"priorities\[0\] is inf"),
        ([1, 1e39, 3], r"priorities\[1\] is 1e\+39"),
        ([1, 2], r"expected shape \[3\], one per item, got \[2\]"),
        ([[1, 2, 3]], r"expected shape \[3\], one per item, got \[1, 3\]"),
        (["a", "b", "c"], "expected numbers, got dtype"),
        ([True, False, True], "expected numbers, got dtype bool"),
        ([[1], [2, 3], 4], "expected one number per item"),
    ],
)
def test_bad_priorities_are_refused_naming_the_index(values, message):
    with pytest.raises(gear.DataError, match=message):
        as_priorities(values, 3)


def test_ids_are_whole_numbers():
    assert as_ids([1, 2]).tolist() == [1, 2]
    assert as_ids(torch.tensor([2**62])).tolist() == [2**62]
    assert as_ids([]).tolist() == []
    with pytest.raises(gear.DataError, match=r"expected int64\[N\] as in batch.ids, got float64\[1\]"):
        as_ids([1.5])
    with pytest.raises(gear.DataError, match=r"ids\[1\] is -4"):
        as_ids([1, -4])


@pytest.mark.parametrize(
    ("item", "counts"),
    [
        (gear.Whole(), [1, 1, 1]),
        (gear.Step(), [1, 4, 9]),
        (gear.Step(3), [1, 4, 9]),
        (gear.Window(4), [1, 1, 6]),
        (gear.Window(4, stride=3), [1, 1, 2]),
        (gear.Window(4, stride=3, edge="tail"), [1, 2, 3]),
        (gear.Window(4, edge="head"), [1, 4, 9]),
    ],
)
def test_items_of_ended_trajectories_of_1_4_and_9_steps(item, counts):
    table = gear.Table("t", columns=[gear.Column("x")], capacity=gear.Steps(100), item=item)
    assert [item_count(table, steps) for steps in (1, 4, 9)] == counts


@pytest.mark.parametrize(
    "item", [gear.Whole(), gear.Step(3), gear.Window(4), gear.Window(4, 3, "tail"), gear.Window(4, 2, "head")]
)
@pytest.mark.parametrize("steps", [1, 3, 4, 5, 9])
def test_the_table_counts_items_the_same_way(item, steps):
    table = gear.Table("t", columns=[gear.Column("x")], capacity=gear.Steps(100), item=item)
    with gear.embedded([table]) as client:
        client.insert({"x": np.zeros(steps, np.float32)})
        assert client.info()["tables"]["t"]["items"] == item_count(table, steps)

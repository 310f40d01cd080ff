"""`table_like` proposes the table a person would write, refuses what has two readings; `suggest` never raises."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gear.errors import SchemaError
from gear.infer import suggest, table_like
from gear.schema import Bytes, Column, Prioritized, Steps, Table, Window

T = 20


def columns(trajectory, **kwargs):
    return {c.name: (c.dtype, c.shape, c.per) for c in table_like("t", trajectory, 1000, **kwargs).columns}


def test_arrays_of_t_rows_become_step_columns_and_keep_their_dtype():
    trajectory = {"obs": np.zeros((T, 17), np.float32), "reward": np.zeros(T), "done": np.zeros(T, bool)}
    assert table_like("replay", trajectory, Steps(1000)) == Table(
        "replay",
        [Column("obs", (17,), "float32"), Column("reward", (), "float64"), Column("done", (), "bool")],
        Steps(1000),
    )


def test_nested_dicts_become_columns_with_slashes_in_their_order():
    trajectory = {"obs": {"image": np.zeros((T, 8, 8), np.uint8), "q": np.zeros((T, 2))}, "action": np.zeros(T, int)}
    assert list(columns(trajectory)) == ["obs/image", "obs/q", "action"]


def test_scalars_and_arrays_of_another_length_belong_to_the_trajectory():
    trajectory = {
        "obs": np.zeros((T, 3)), "reward": np.zeros(T), "goal": np.zeros((3, 2), np.float16), "prompt": 7,
        "score": 0.5, "solved": True, "version": np.int32(4), "return": np.array(1.0, np.float32),
    }  # fmt: skip
    got = columns(trajectory)
    assert {k: v for k, v in got.items() if v[2] == "trajectory"} == {
        "goal": ("float16", (3, 2), "trajectory"),
        "prompt": ("int64", (), "trajectory"),
        "score": ("float32", (), "trajectory"),
        "solved": ("bool", (), "trajectory"),
        "version": ("int32", (), "trajectory"),
        "return": ("float32", (), "trajectory"),
    }


def test_lists_of_python_numbers_become_float32_int64_and_bool():
    trajectory = {
        "reward": [0.0] * T, "action": [1] * T, "done": [False] * T, "mixed": [1, 2.5] * (T // 2),
        "obs": [[0.0, 1.0, 2.0]] * T, "pair": [(1, 2)] * T,
    }  # fmt: skip
    assert columns(trajectory) == {
        "reward": ("float32", (), "step"),
        "action": ("int64", (), "step"),
        "done": ("bool", (), "step"),
        "mixed": ("float32", (), "step"),
        "obs": ("float32", (3,), "step"),
        "pair": ("int64", (2,), "step"),
    }


def test_lists_of_arrays_keep_the_dtype_of_the_arrays():
    trajectory = {"obs": [np.zeros(3, np.float64)] * T, "reward": [np.float64(1.0)] * T, "image": [torch.zeros(2)] * T}
    assert columns(trajectory) == {
        "obs": ("float64", (3,), "step"),
        "reward": ("float64", (), "step"),
        "image": ("float32", (2,), "step"),
    }


def test_torch_tensors_are_read_as_arrays_are():
    trajectory = {"obs": torch.zeros(T, 4, dtype=torch.bfloat16), "token": torch.zeros(T, dtype=torch.long)}
    assert columns(trajectory) == {"obs": ("bfloat16", (4,), "step"), "token": ("int64", (), "step")}


def test_overrides_are_fields_of_the_table():
    trajectory = {"obs": np.zeros((T, 3), np.float32)}
    made = table_like("t", trajectory, Bytes(10**6), item=Window(8), sampler=Prioritized(0.7), seed=3)
    assert made == Table("t", [Column("obs", (3,))], Bytes(10**6), item=Window(8), sampler=Prioritized(0.7), seed=3)
    with pytest.raises(TypeError, match="samplr"):
        table_like("t", trajectory, 1000, samplr=Prioritized())


def test_trajectories_of_different_lengths_propose_equal_tables():
    def trajectory(steps):
        return {"obs": np.zeros((steps, 3)), "reward": np.zeros(steps), "goal": np.zeros(5)}

    assert table_like("t", trajectory(20), 1000) == table_like("t", trajectory(300), 1000)


def test_a_length_decides_where_the_columns_do_not():
    trajectory = {"token": np.zeros(12, int), "prompt": np.zeros(30, int)}
    assert columns(trajectory, length=12) == {"token": ("int64", (), "step"), "prompt": ("int64", (30,), "trajectory")}
    with pytest.raises(SchemaError, match=r"no column has length=13 rows; the lengths are token 12, prompt 30"):
        columns(trajectory, length=13)


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        ({}, "the trajectory is empty"),
        ({"obs": {}}, "the trajectory is empty"),
        ([1, 2], "expected a dict of arrays, got list"),
        ({"score": 1.0, "goal": np.float32(2)}, "every value is a scalar"),
        ({"obs": np.zeros((0, 3)), "reward": []}, r"zero steps \(obs 0, reward 0\)"),
        ({"a": np.zeros(5), "b": np.zeros(9)}, r"lengths differ \(a 5, b 9\); say which .* length="),
        ({"a": np.zeros(5), "b": np.zeros(9), "c": np.zeros(5), "d": np.zeros(9)}, "lengths differ"),
        ({"obs": np.zeros((21, 3)), "a": np.zeros(20), "r": np.zeros(20)}, r"column 'obs' has 21 rows .* 20.*final="),
        ({"obs": np.zeros((T, 3)), "info": "text"}, "column 'info': expected an array, .* got str"),
        ({"obs": np.zeros((T, 3)), "info": None}, "column 'info': .* got NoneType"),
        ({"obs": np.zeros((T, 3)), "info": [None] * T}, "column 'info': .* got NoneType"),
        ({"obs": np.zeros((T, 3), complex)}, "column 'obs': dtype .*complex128.* is not supported"),
        ({"obs": np.array([{}] * T)}, "column 'obs': dtype .*O.* is not supported"),
        ({"obs": [[1.0], [1.0, 2.0]]}, r"column 'obs': the list is ragged, with rows of shapes \[\(1,\), \(2,\)\]"),
        ({"obs": [np.float32(1), np.float64(1)]}, "column 'obs': the list mixes float32, float64"),
        ({"done": [True, 0.0]}, "column 'done': the list mixes bool, float32"),
        ({"obs": np.zeros((T, 0))}, "Column 'obs': shape must be a whole number >= 1, got 0"),
        ({"my obs": np.zeros(T)}, "Column: name must be .* got 'my obs'"),
        ({"a": {"b": np.zeros(T)}, "a/b": np.zeros(T)}, "two values are named 'a/b'"),
    ],
)
def test_what_cannot_be_a_table_or_could_be_two_is_refused_with_the_reason(trajectory, message):
    with pytest.raises(SchemaError, match=message):
        table_like("t", trajectory, 1000)


def test_a_bad_capacity_is_named():
    with pytest.raises(SchemaError, match="capacity must be one of Steps, Trajectories, Bytes, got '1000'"):
        table_like("t", {"obs": np.zeros(T)}, "1000")


def test_the_suggestion_is_a_line_that_works_as_printed():
    trajectory = {"obs": np.zeros((T, 17), np.float32), "done": [False] * T, "goal": 1.5}
    line = suggest("replay", trajectory)
    assert line == (
        'client.create_table(gear.table_like("replay", trajectory, capacity=gear.Steps(1_000_000)))'
        "  # columns: obs float32[17], done bool, goal float32 per trajectory"
    )
    code, comment = line.split("  # ")

    class Gear:
        table_like, Steps = staticmethod(table_like), Steps

    class Client:
        @staticmethod
        def create_table(table):
            return table

    made = eval(code, {"gear": Gear, "client": Client, "trajectory": trajectory})
    assert [c.name for c in made.columns] == ["obs", "done", "goal"]


@pytest.mark.parametrize("trajectory", [None, {}, {"x": None}, 3, {"a": np.zeros(5), "b": np.zeros(9)}])
def test_the_suggestion_never_raises(trajectory):
    assert suggest("t", trajectory) == (
        'client.create_table(gear.table_like("t", trajectory, capacity=gear.Steps(1_000_000)))'
    )

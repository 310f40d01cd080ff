"""A list of trajectories is checked at once, and refused as one by one: whole, naming trajectory and column."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import gear
from gear.client.listed import _at_once, listed

from .conftest import columns, rows
from .stored import stored

TABLE = gear.Table(
    "t",
    [*columns(), gear.Column("reward", (), per="trajectory"), gear.Column("goal", (2,), "int32", per="trajectory")],
    gear.Steps(40_000), item=gear.Whole(), mean_length=10, max_length=1000,
)  # fmt: skip


def one(steps: int, start: int = 0, **changes: object) -> dict:
    return {
        **rows(steps, start), "reward": np.float32(start), "goal": np.array([start, 1], np.int32), **changes
    }  # fmt: skip


@pytest.fixture
def client():
    with gear.embedded([TABLE]) as client:
        yield client


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": np.arange(3.0)}, "'step': expected int64"),
        ({"step": np.arange(4)}, "unequal lengths: obs 3, step 4"),
        ({"obs": np.zeros((3, 3), np.float32)}, "'obs': expected float32"),
        ({"reward": np.float64(1)}, "'reward': expected float32"),
        ({"goal": np.zeros(3, np.int32)}, "'goal': expected int32"),
        ({"goal": np.int32(3)}, "'goal': expected int32"),
        ({"more": 1}, "has 'more'"),
        ({"obs": np.zeros((0, 2), np.float32), "step": np.zeros(0, np.int64)}, "zero steps"),
        ({"step": np.arange(3).astype(">i8")}, "'step': expected int64"),
    ],
)
def test_one_that_does_not_fit_is_named_and_nothing_is_inserted(client, changes, message):
    many = [one(2, k) for k in range(5)]
    many[3] = one(3, **changes)
    with pytest.raises(gear.DataError, match=rf"trajectory 3 of 5: .*{message}"):
        client.insert_many(many)
    del many[3]["step"]
    with pytest.raises(gear.DataError, match="trajectory 3 of 5"):
        client.insert_many(many)
    client.insert_many(many[:3])
    assert len(stored(client)) == 3


def test_numbers_are_not_taken_for_the_bits_of_a_bfloat16():
    table = gear.Table("b", [gear.Column("x"), gear.Column("r", (), "bfloat16", per="trajectory")], gear.Steps(100))
    one = {"x": np.ones(2, np.float32), "r": np.uint16(1)}
    with gear.embedded([table]) as client:
        for insert in (client.insert, lambda one: client.insert_many([one, one])):
            with pytest.raises(gear.DataError, match="'r': expected bfloat16.*got uint16"):
                insert(one)


def test_what_is_to_be_converted_arrives_as_what_fits_at_once(client):
    port = client._tables.port("t", None)
    plain = [one(n, 10 * n) for n in (3, 1, 4)]
    other = [
        one(3, 30, step=torch.arange(30, 33)), one(1, 10, reward=10.0, step=[10]), one(4, 40, goal=[40, 1])
    ]  # fmt: skip
    assert _at_once(port.codec, plain) is not None
    assert _at_once(port.codec, other) is None
    left, right = listed(port, plain), listed(port, other)
    assert left.longest == right.longest == 4
    assert left.lengths.tolist() == right.lengths.tolist() == [3, 1, 4]
    for a, b in zip(left.values, right.values, strict=True):
        np.testing.assert_array_equal(a, b)
    client.insert_many(plain)
    client.insert_many(other)
    found = stored(client)
    for one_, same in zip(found[:3], found[3:], strict=True):
        for name in ("obs", "step"):
            np.testing.assert_array_equal(one_.steps[name], same.steps[name])


def test_where_arrays_are_not_as_promised_each_is_asked(client, monkeypatch):
    monkeypatch.setattr("gear.client.listed._promise_kept", lambda: False)
    client.insert_many([one(3, 10), one(1, 20)])
    assert [one.steps["step"].tolist() for one in stored(client)] == [[10, 11, 12], [20]]


def test_a_put_costs_as_many_calls_whatever_it_holds(client):
    """No Python for each trajectory: what a batch costs is what its bytes cost."""

    def calls(count: int) -> int:
        many, seen = [one(5, k) for k in range(count)], 0

        def count_calls(frame, event, argument):
            nonlocal seen
            seen += event in ("call", "c_call")

        sys.setprofile(count_calls)
        try:
            client.insert_many(many)
        finally:
            sys.setprofile(None)
        return seen

    for _ in range(3):
        calls(64)
    assert calls(64) <= calls(8) * 1.25

"""What may be inserted: exact dtypes and shapes for arrays, the column's dtype for Python scalars."""

from __future__ import annotations

from types import MappingProxyType

import ml_dtypes
import numpy as np
import pytest
import torch

import gear
from gear.client.encode import Codec

TABLE = gear.Table(
    "t",
    columns=[
        gear.Column("obs", (2,)),
        gear.Column("action", (), "int64"),
        gear.Column("done", (), "bool"),
        gear.Column("goal", (), "float64", per="trajectory"),
    ],
    capacity=gear.Steps(100),
    item=gear.Window(4),
)


def good(steps=3):
    return {
        "obs": np.zeros((steps, 2), np.float32),
        "action": np.zeros(steps, np.int64),
        "done": np.zeros(steps, np.bool_),
        "goal": 1.5,
    }


def encode(**changes):
    return Codec(TABLE).trajectory({**good(), **changes})


def one(dtype, value, shape=()):
    """`value` as the only column of a trajectory, as it is stored."""
    table = gear.Table("t", columns=[gear.Column("x", shape, dtype)], capacity=gear.Steps(100))
    return Codec(table).trajectory({"x": value}).arrays[0]


def test_arrays_of_the_declared_kind_are_taken_as_they_are():
    given = good()
    encoded = Codec(TABLE).trajectory(given)
    assert encoded.steps == 3
    assert encoded.arrays[0] is given["obs"]
    assert encoded.rows[0] == 1.5


def test_nested_dicts_become_columns_with_slashes():
    table = gear.Table("t", columns=[gear.Column("a/b"), gear.Column("a/c")], capacity=gear.Steps(9))
    x = np.zeros(2, np.float32)
    assert Codec(table).trajectory({"a": {"b": x, "c": x}}).steps == 2
    assert Codec(table).trajectory(MappingProxyType({"a/b": x, "a/c": x})).steps == 2
    with pytest.raises(gear.DataError, match="two values are named 'a/b'"):
        Codec(table).trajectory({"a": {"b": x, "c": x}, "a/b": x})


def test_a_missing_column_is_named():  # origin: TorchRL, observed: {a,b} then {a}
    trajectory = good()
    del trajectory["action"]
    with pytest.raises(gear.DataError, match=r"table 't' misses column 'action'; its columns are obs \(per step\)"):
        Codec(TABLE).trajectory(trajectory)


def test_an_extra_column_is_named():
    with pytest.raises(gear.DataError, match="has 'reward', which the table does not have here"):
        encode(reward=np.zeros(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"obs": np.zeros((3, 2))},
            r"column 'obs': expected float32\[T, 2\], got float64\[3, 2\]; cast it or declare float64",
        ),
        (
            {"obs": np.zeros((3, 4), np.float32)},
            r"column 'obs': expected float32\[T, 2\], got float32\[3, 4\]; reshape it or declare shape \(4,\)",
        ),
        ({"obs": np.zeros(2, np.float32)}, "a column per step needs the time axis first"),
        ({"obs": np.zeros((3, 2), ">f4")}, "got float32 of the other byte order"),
        ({"action": np.zeros(3, np.int32)}, r"expected int64\[T\], got int32\[3\]; cast it or declare int32"),
        ({"action": 3}, r"expected int64\[T\], got int64\[\]"),
        ({"goal": np.zeros(1)}, r"expected float64\[\], got float64\[1\]; one row is meant here"),
        ({"goal": np.float32(1)}, r"expected float64\[\], got float32\[\]"),
        ({"obs": "text"}, r"got a str; give an array, a tensor or a list of numbers, text encoded as such"),
        ({"obs": None}, "got a NoneType"),
        ({"obs": np.ma.masked_equal(np.zeros((3, 2), np.float32), 0)}, "got a masked array"),
        ({"obs": np.array([[1, 2], [3, None], [4, 5]], object)}, r"got object\[3, 2\]; cast it to float32"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_kinds(changes, message):
    with pytest.raises(gear.DataError, match=message):
        encode(**changes)


def test_unequal_lengths_are_told_per_column():
    with pytest.raises(gear.DataError, match="unequal lengths: obs 4, action 3, done 3; .*final="):
        encode(obs=np.zeros((4, 2), np.float32))


def test_zero_steps_are_refused():
    with pytest.raises(gear.DataError, match="table 't' has zero steps"):
        Codec(TABLE).trajectory(good(0))
    with pytest.raises(gear.DataError, match="zero steps"):
        one("float32", [])


def test_what_is_no_dict_is_refused():
    with pytest.raises(gear.DataError, match="expected a dict of column name to array, got list"):
        Codec(TABLE).trajectory([good()])
    with pytest.raises(gear.DataError, match="expected names as keys"):
        Codec(TABLE).trajectory({1: 2})


def test_declared_uint8_given_float_is_refused():  # origin: SB3#40
    with pytest.raises(gear.DataError, match=r"expected uint8\[T, 2\], got float32\[3, 2\]"):
        one("uint8", np.zeros((3, 2), np.float32), (2,))


# Python scalars take the column's dtype


def test_python_ints_go_into_floats_and_never_the_other_way():
    assert one("float32", [1, 2.5]).tolist() == [1.0, 2.5]
    with pytest.raises(gear.DataError, match="expected int64, got Python float"):
        one("int64", [1.0, 2.0])


def test_python_bools_go_into_bools_only():
    assert one("bool", [True, False]).dtype == np.bool_
    with pytest.raises(gear.DataError, match="expected float32, got Python bool"):
        one("float32", [True])
    with pytest.raises(gear.DataError, match="expected bool, got Python int"):
        one("bool", [1, 0])


@pytest.mark.parametrize(
    ("dtype", "value", "where"),
    [
        ("uint8", [0, 256], r"256 at \[1\]"),
        ("int8", [[0, 1], [-129, 0]], r"-129 at \[1, 0\]"),
        ("float32", [1e300], r"1e\+300 at \[0\]"),
        ("float16", [1, 70000], r"70000.* at \[1\]"),
        ("bfloat16", [1e39], r"1e\+39 at \[0\]"),
        ("uint64", [-1], "out of the range of uint64"),
        ("int64", [2**63], "out of the range of int64"),
    ],
)
def test_python_scalars_out_of_range_are_refused(dtype, value, where):
    shape = np.shape(value)[1:]
    with pytest.raises(gear.DataError, match=where):
        one(dtype, value, shape)


def test_not_a_number_and_infinity_are_floats_like_any_other():
    assert np.isnan(one("float16", [float("nan"), float("inf")])[0])
    assert np.isinf(one("bfloat16", [float("inf")]).view(ml_dtypes.bfloat16).astype(np.float32))[0]


def test_the_largest_ints_are_exact():
    assert one("uint64", [2**64 - 1]).tolist() == [2**64 - 1]
    assert one("int64", [-(2**63)]).tolist() == [-(2**63)]


def test_ragged_lists_are_refused():
    with pytest.raises(gear.DataError, match="nested lists have unequal lengths"):
        one("float32", [[1.0, 2.0], [3.0]], (2,))


def test_a_list_of_arrays_is_stacked_and_keeps_its_dtype():
    rows = [np.array([1, 2], np.float32), np.array([3, 4], np.float32)]
    assert one("float32", rows, (2,)).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(gear.DataError, match=r"element 1 of the list is float64\[2\], expected float32\[2\]"):
        one("float32", [rows[0], np.zeros(2)], (2,))
    with pytest.raises(gear.DataError, match=r"element 1 of the list is float32\[3\], expected float32\[2\]"):
        one("float32", [rows[0], np.zeros(3, np.float32)], (2,))


# Tensors and bfloat16


def test_tensors_are_taken_with_their_dtype():
    tensor = torch.arange(6, dtype=torch.float32).reshape(3, 2).requires_grad_()
    assert one("float32", tensor, (2,)).tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(gear.DataError, match=r"expected float32\[T, 2\], got float64\[3, 2\]"):
        one("float32", tensor.double(), (2,))


def test_bfloat16_is_stored_as_its_bits_wherever_it_comes_from():
    values = [1.0, -2.5, 3.140625]
    bits = np.array(values, ml_dtypes.bfloat16).view(np.uint16).tolist()
    assert one("bfloat16", np.array(values, ml_dtypes.bfloat16)).tolist() == bits
    assert one("bfloat16", torch.tensor(values, dtype=torch.bfloat16)).tolist() == bits
    assert one("bfloat16", values).tolist() == bits
    with pytest.raises(gear.DataError, match=r"expected bfloat16\[T\], got uint16\[3\]"):
        one("bfloat16", np.array(bits, np.uint16))


def test_a_strided_tensor_or_array_is_a_view():
    array = np.arange(20, dtype=np.float32).reshape(10, 2)
    assert one("float32", array[-5::2], (2,)).tolist() == array[-5::2].tolist()
    assert one("float32", torch.from_numpy(array).T.contiguous().T, (2,)).tolist() == array.tolist()


# Steps and last values


def test_a_step_has_no_time_axis():
    codec = Codec(TABLE)
    step = codec.step({"obs": [1, 2.5], "action": 3, "done": np.False_})
    assert step["obs"].tolist() == [1, 2.5]
    with pytest.raises(gear.DataError, match=r"expected float32\[2\], got float32\[1, 2\]; one row is meant here"):
        codec.step({"obs": np.zeros((1, 2), np.float32), "action": 3, "done": False})
    with pytest.raises(gear.DataError, match="step for table 't' misses column 'done'"):
        codec.step({"obs": [1, 2], "action": 3})


def test_final_values_are_any_of_the_step_columns():
    codec = Codec(TABLE)
    assert [v is None for v in codec.final({"obs": [1.0, 2.0]})] == [False, True, True]
    with pytest.raises(gear.DataError, match="final for table 't' has 'goal'"):
        codec.final({"goal": 1.0})
    with pytest.raises(gear.DataError, match="final: expected the last value of at least one"):
        codec.final({})

"""Views, queries and the plans made from them."""

from __future__ import annotations

import numpy as np
import pytest

import gear
from gear.plan import item_length, make_plan
from gear.storage.layout import Layout
from gear.views import as_views

COLUMNS = [
    gear.Column("obs", (3,)),
    gear.Column("action", (), "int64"),
    gear.Column("goal", (2,), "float64", per="trajectory"),
]


def layout(item, **fields):
    return Layout(gear.Table("t", columns=COLUMNS, capacity=gear.Steps(100), item=item, **fields))


def test_a_query_compares_by_value_and_takes_names_for_views():
    assert gear.Query(8, views=["obs"]) == gear.Query(8, views=(gear.View("obs"),))
    assert hash(gear.Query(8, views=["obs"])) == hash(gear.Query(8, views=["obs"]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "size must be a whole number >= 1, got 0"),
        ({"size": -1}, "size must be a whole number >= 1, got -1"),  # origin: it was "not given"
        ({"size": True}, "size must be a whole number >= 1, got True"),
        ({"size": 2.5}, "size must be a whole number >= 1, got 2.5"),
        ({"size": 2**20 + 1}, "size must be at most 1048576 items, got 1048577; draw several batches"),
        ({"size": np.int64(2**40)}, "size must be at most 1048576 items"),
        ({"table": 3}, "table must be a name, got 3"),
        ({"views": "obs"}, "views must be a sequence of View or column names, got 'obs'"),
        ({"views": [3]}, "views must be View or column names, got 3"),
        ({"views": ["obs", "obs"]}, "views are named twice: obs"),
    ],
)
def test_a_bad_query_is_refused_by_field(fields, message):
    with pytest.raises(gear.SchemaError, match=message):
        gear.Query(**fields)


def test_a_size_that_is_not_given_is_256_or_as_many_as_fit():
    assert (gear.Query().size, gear.Query(max_steps=7).size, gear.Query(3, max_steps=7).size) == (256, 7, 3)


def test_a_bad_view_is_refused():
    with pytest.raises(gear.SchemaError, match="column must be a name"):
        gear.View(3)
    with pytest.raises(gear.SchemaError, match="value must be a number"):
        gear.View("obs", value="x")


def test_window_arrays_have_a_time_axis_and_trajectory_columns_none():
    plan = make_plan(layout(gear.Window(5)), (), 4, 5)
    assert [(f.name, f.shape) for f in plan.fields] == [("obs", (4, 5, 3)), ("action", (4, 5)), ("goal", (4, 2))]
    assert plan.mask_offset >= 0
    assert not plan.stepwise


def test_step_arrays_have_no_time_axis_and_no_mask():
    plan = make_plan(layout(gear.Step()), (), 4, 1)
    assert [f.shape for f in plan.fields] == [(4, 3), (4,), (4, 2)]
    assert plan.mask_offset == -1
    assert plan.stepwise


def test_fields_are_aligned_and_do_not_overlap():
    plan = make_plan(layout(gear.Window(5)), (), 3, 5)
    ends = [f.offset + f.nbytes for f in plan.fields]
    assert all(f.offset % 64 == 0 for f in plan.fields)
    assert all(end <= f.offset for end, f in zip(ends, plan.fields[1:], strict=False))
    assert plan.nbytes == plan.mask_offset + 15


def test_a_plan_of_more_than_two_gibibytes_says_where_everything_lies():
    """Origin: NumPy refuses a structured dtype of 2**31 bytes."""
    plan = make_plan(layout(gear.Window(5000)), (), 2**17, 5000)
    assert plan.by_name["action"].offset == 2**17 * 5000 * 12
    assert plan.nbytes == 2**17 * 5000 * 21 + 2**17 * 16
    assert list(plan.by_name.values()) == list(plan.fields)


def test_only_the_viewed_columns_are_collected_in_the_order_asked_for():
    plan = make_plan(layout(gear.Window(5)), as_views(["goal", "obs"]), 3, 5)
    assert [f.name for f in plan.fields] == ["goal", "obs"]
    assert plan.rows[1:, 0].tolist() == [1, 0]


def test_head_edges_pad_at_the_head():
    assert make_plan(layout(gear.Window(5, edge="head")), (), 3, 5).rows[0, 6] == 1
    assert make_plan(layout(gear.Window(5, edge="tail")), (), 3, 5).rows[0, 6] == 0


def test_a_pad_value_fills_one_row_of_the_column():
    plan = make_plan(layout(gear.Window(5)), (gear.View("obs", value=2.5), gear.View("action", value=-1)), 3, 5)
    assert plan.pads.flags.writeable
    assert plan.pads[:12].view(np.float32).tolist() == [2.5] * 3
    assert plan.pads[12:].view(np.int64).tolist() == [-1]
    assert plan.rows[1:, 5].tolist() == [0, 12]


def test_zero_pads_need_no_bytes():
    plan = make_plan(layout(gear.Window(5)), (), 3, 5)
    assert len(plan.pads) == 0
    assert plan.rows[1:, 5].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("pad", [0.5, float("nan"), 2**63])
def test_a_pad_that_the_dtype_cannot_hold_is_refused(pad):
    with pytest.raises(gear.SchemaError, match="is not a value of dtype int64"):
        make_plan(layout(gear.Window(5)), (gear.View("action", value=pad),), 3, 5)


def test_a_float_pad_beyond_the_range_is_refused_and_infinity_is_not():
    with pytest.raises(gear.SchemaError, match="is not a value of dtype float32"):
        make_plan(layout(gear.Window(5)), (gear.View("obs", value=1e300),), 3, 5)
    plan = make_plan(layout(gear.Window(5)), (gear.View("obs", value=float("-inf")),), 3, 5)
    assert np.isneginf(plan.pads.view(np.float32)).all()


def test_a_view_of_an_unknown_column_lists_the_columns():
    with pytest.raises(gear.SchemaError, match="no column 'reward'; it has obs, action, goal"):
        make_plan(layout(gear.Window(5)), (gear.View("reward"),), 3, 5)


def test_item_length():
    tables = [layout(item).table for item in (gear.Step(), gear.Window(7), gear.Whole())]
    assert [item_length(t) for t in tables] == [1, 7, 0]

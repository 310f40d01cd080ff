"""What a learner holds: batches over one buffer, importance weights, selections that travel."""

from __future__ import annotations

import numpy as np
import pytest

import gear
from gear.batch import Batch, Selection
from gear.query import make_plan
from gear.storage.layout import Layout

COLUMNS = [gear.Column("obs", (2,)), gear.Column("obs2/x", (), "uint8")]


def plan(size=4, length=3, item=None, sampler=None):
    table = gear.Table(
        "t", columns=COLUMNS, capacity=gear.Steps(100), item=item or gear.Window(3), sampler=sampler or gear.Uniform()
    )
    return make_plan(Layout(table), (), size, length)


def selection(probabilities=(0.1, 0.2, 0.3, 0.4), lengths=(3, 3, 2, 1), smallest=0.05):
    n = len(probabilities)
    return Selection(
        "t",
        np.arange(n, dtype=np.int64),
        np.array(probabilities),
        np.zeros(n, np.int64),
        np.array(lengths, np.int32),
        smallest,
        7,
    )


def batch(beta=None, normalize="batch", sampler=None, **fields):
    one = Batch(plan(sampler=sampler))
    one.fill(selection(**fields), beta, normalize)
    return one


def test_a_batch_is_a_mapping_of_views_of_one_buffer():
    one = batch()
    one["obs"][...] = 1
    one["obs2/x"][...] = 2
    assert list(one) == ["obs", "obs2/x"]
    assert len(one) == 2
    assert one["obs"].shape == (4, 3, 2)
    assert one["obs"].flags.writeable
    assert np.shares_memory(one["obs"], one.buffer)
    assert one.buffer[:4].view(np.float32)[0] == 1


def test_a_column_that_is_not_there_is_a_key_error():
    with pytest.raises(KeyError, match="reward"):
        batch()["reward"]
    assert batch().get("reward") is None


def test_repr_names_columns_and_shapes():
    assert repr(batch()) == "<Batch of 4 items from 't': obs: float32[4, 3, 2], obs2/x: uint8[4, 3]>"


def test_lengths_are_what_is_there_of_each_item():
    one = batch(lengths=(3, 9, 2, 1))
    assert one.lengths.tolist() == [3, 3, 2, 1]
    assert one.lengths.dtype == np.int32


def test_a_step_batch_has_a_mask_of_ones():
    one = Batch(plan(length=1, item=gear.Step()))
    one.fill(selection(lengths=(1, 1, 1, 1)), None, "batch")
    assert one.mask.tolist() == [True] * 4
    assert one.lengths.tolist() == [1] * 4


def test_weights_of_uniform_draws_are_one():
    assert batch().weights.tolist() == [1.0] * 4
    assert batch(beta=1.0).weights.tolist() == [1.0] * 4


def test_weights_of_prioritized_draws_need_beta():
    with pytest.raises(gear.DataError, match=r"depend on beta: pass it, as in sample\(256, beta=0.4\)"):
        _ = batch(sampler=gear.Prioritized()).weights


def test_weights_can_be_normalised_by_the_batch_or_by_the_table():  # origin: openai/baselines#1131
    sampler = gear.Prioritized()
    in_batch = batch(1.0, "batch", sampler).weights
    in_table = batch(1.0, "table", sampler).weights
    np.testing.assert_allclose(in_batch, [1, 1 / 2, 1 / 3, 1 / 4], rtol=1e-6)
    np.testing.assert_allclose(in_table, [1 / 2, 1 / 4, 1 / 6, 1 / 8], rtol=1e-6)
    assert in_batch.dtype == np.float32
    with pytest.raises(gear.DataError, match="expected 'batch' or 'table', got 'none'"):
        batch(1.0, "none", sampler).importance_weights(1.0, "none")


def test_beta_zero_gives_weights_of_one():
    assert batch(0.0, sampler=gear.Prioritized()).weights.tolist() == [1.0] * 4


def test_reusing_a_batch_keeps_its_memory():
    one = Batch(plan(8, 3))
    buffer = one.buffer
    one.reuse(plan(4, 2))
    assert one.buffer is buffer
    assert one["obs"].shape == (4, 2, 2)


def test_a_batch_that_is_too_small_is_refused_with_both_sizes():
    small = Batch(plan(2, 3))
    with pytest.raises(gear.DataError, match=r"at least 776 bytes \(24 items of 3 steps.*got one of 134 bytes"):
        small.reuse(plan(24, 3))


def test_copy_is_private_and_keep_copies_only_what_will_be_overwritten():
    one = batch()
    one["obs"][...] = 1
    copy = one.copy()
    one["obs"][...] = 2
    assert (copy["obs"] == 1).all()
    assert copy.ids is one.ids
    assert one.keep() is one
    one.lend()
    assert one.keep() is not one


def test_a_selection_travels():
    one = selection()
    two = Selection.from_bytes(one.to_bytes())
    assert (two.table, two.pin, two.smallest, two.parties) == (one.table, one.pin, one.smallest, one.parties)
    for name in ("ids", "probabilities", "starts", "lengths"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("data", [b"", b"garbage", selection().to_bytes()[:-9]])
def test_bytes_that_are_no_selection_are_refused(data):
    with pytest.raises(gear.ProtocolError):
        Selection.from_bytes(data)

"""What a learner holds: batches over one buffer, importance weights, selections that travel."""

from __future__ import annotations

import math
import mmap

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gear
from gear.batch import Batch, Selection
from gear.plan import make_plan
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


def test_a_batch_of_more_than_two_gibibytes_reaches_its_last_row():
    """Origin: NumPy refused batches of 2**31 bytes and more. Three pages of the mapping are used."""
    large = plan(2**20, 400)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    one = Batch(large, np.frombuffer(mmap.mmap(-1, large.nbytes, flags=flags), np.uint8))
    assert large.nbytes > 2**31
    assert one["obs"].shape == (2**20, 400, 2)
    one["obs"][-1, -1] = 7
    one["obs2/x"][-1, -1] = 8
    one.mask[-1, -1] = True
    end = large.by_name["obs2/x"].offset
    assert one.buffer[end - 8 : end].view(np.float32).tolist() == [7, 7]
    assert one.buffer[large.mask_offset - 1] == 8
    assert one.buffer[-1] == 1


def test_a_batch_that_no_memory_holds_is_refused_with_its_size():
    large = plan(2**20, 2**38)
    with pytest.raises(
        gear.InsufficientMemory, match=rf"of 1048576 items of .* takes {large.nbytes} bytes.*draw fewer"
    ):
        Batch(large)


def test_a_column_that_is_not_there_is_a_key_error():
    for ask in (batch().__getitem__, batch().mask_of):
        with pytest.raises(KeyError, match="the batch has no array 'reward'; it has 'obs', 'obs2/x'"):
            ask("reward")
    assert "reward" not in batch()
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


@pytest.mark.parametrize("beta", [None, math.nan, -1.0, 5.0, "1"])
def test_weights_want_a_beta(beta):
    with pytest.raises(gear.DataError, match=r"beta: expected a number in \[0, 4\], .*, got"):
        batch(sampler=gear.Prioritized()).importance_weights(beta)


@given(
    chances=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    smallest=st.floats(0.0, 1.0),
    beta=st.floats(0.0, 4.0),
    normalize=st.sampled_from(["batch", "table"]),
)
@example([0.5, 5e-324], 0.0, 1.0, "table")  # the smallest probability of the table underflowed
@example([1.0, 0.0], 0.0, 1.0, "batch")
@example([1.0, 1e-300], 1e-320, 4.0, "table")  # a quotient beyond float64
@example([1.0, 1e-3], 1e-60, 1.0, "table")  # a weight below every float32
def test_weights_are_finite_and_positive_and_fall_as_chances_rise(chances, smallest, beta, normalize):
    one = batch(beta, normalize, gear.Prioritized(), probabilities=chances, lengths=[1] * len(chances))
    one.selection.smallest = smallest = min(smallest, *chances)
    weights = one.weights
    assert weights.dtype == np.float32
    assert ((weights >= np.finfo(np.float32).tiny) & (weights <= 1)).all()
    assert (np.diff(weights[np.argsort(chances)]) <= 0).all()
    least = min(chances) if normalize == "batch" else smallest
    if least > 1e-9:
        expected = (np.array(chances) / least) ** -beta
        np.testing.assert_allclose(weights, np.maximum(expected, np.finfo(np.float32).tiny), rtol=1e-6)


def test_weights_of_a_table_whose_smallest_probability_underflows():
    """Origin: weights divided by the table's maximum were 0, or 0/0."""
    table = gear.Table(
        "t", COLUMNS, gear.Steps(64), item=gear.Step(), sampler=gear.Prioritized(4.0), publish="end"
    )  # fmt: skip
    with gear.embedded([table]) as client:
        rows = {"obs": np.zeros((2, 2), np.float32), "obs2/x": np.zeros(2, np.uint8)}
        client.insert(rows, priority=[3e38, 1e-44])
        drawn = client.sample(8, beta=1.0, normalize="table")
        assert drawn.selection.smallest == 0
        assert (drawn.weights > 0).all()
        assert np.isfinite(drawn.weights).all()


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

"""Sampling, selecting, collecting and updating priorities through a client."""

from __future__ import annotations

import threading
import time

import ml_dtypes
import numpy as np
import pytest
import torch

import gear
from gear.batch import Selection

from .conftest import columns, rows


def figures(client):
    return client.info()["tables"]["t"]


def test_windows_shorter_than_asked_are_padded_at_the_head():  # origin: decision-transformer#36, #30
    table = gear.Table(
        "t",
        columns=[gear.Column("timestep", (), "int64"), gear.Column("action", (2,))],
        capacity=gear.Steps(100),
        item=gear.Window(5, edge="head"),
        sampler=gear.Prioritized(alpha=1.0),
    )
    with gear.embedded([table]) as client:
        client.insert({"timestep": np.arange(3), "action": np.ones((3, 2), np.float32)}, priority=[0, 0, 1])
        query = gear.Query(4, views=["timestep", gear.View("action", value=-10.0)])
        batch = client.sample(query, beta=1.0)
        assert batch.mask.tolist() == [[False, False, True, True, True]] * 4
        assert batch["timestep"].tolist() == [[0, 0, 0, 1, 2]] * 4
        assert batch["action"][0].tolist() == [[-10, -10], [-10, -10], [1, 1], [1, 1], [1, 1]]
        assert batch.lengths.tolist() == [3] * 4
        assert batch.weights.tolist() == [1.0] * 4


def test_a_query_names_its_table_and_columns(embed):
    client = embed()
    client.insert(rows(9))
    client.create_table(gear.Table("u", columns=columns(), capacity=gear.Steps(10)))
    query = gear.Query(3, table="t", views=["step"])
    assert list(client.sample(query)) == ["step"]
    with pytest.raises(gear.SchemaError, match="the query is for table 't', the call names table 'u'"):
        client.sample(query, table="u")
    with pytest.raises(gear.SchemaError, match="no column 'nothing'"):
        client.sample(gear.Query(3, table="t", views=["nothing"]))
    assert figures(client)["reserved_items"] == 0
    with pytest.raises(gear.SchemaError, match="size must be a whole number"):
        client.sample(0, table="t")
    assert client.sample(1, table="t")["step"].shape == (1, 4)
    with pytest.raises(gear.SchemaError, match="got True"):
        client.sample(True, table="t")


def test_sampling_an_empty_table_times_out(embed):  # origin: reverb#18
    client = embed()
    start = time.monotonic()
    with pytest.raises(gear.DeadlineExceeded, match="holds 0 items"):
        client.sample(4, timeout=0.2)
    assert 0.2 <= time.monotonic() - start < 30.0


def test_sampling_an_empty_table_waits_for_the_first_insert(embed):
    client = embed()
    got = []
    thread = threading.Thread(target=lambda: got.append(client.sample(4)))
    thread.start()
    client.insert(rows(9))
    thread.join(60)
    assert got[0]["step"].shape == (4, 4)


def test_out_reuses_the_memory_of_an_earlier_batch(embed):
    client = embed()
    client.insert(rows(9))
    first = client.sample(8)
    again = client.sample(8, out=first)
    assert again is first
    smaller = client.sample(4, out=first)
    assert smaller["step"].shape == (4, 4)
    with pytest.raises(gear.DataError, match="out: expected a batch of at least .* bytes"):
        client.sample(64, out=first)
    assert figures(client)["pins"] == 0


def test_whole_items_are_as_long_as_the_longest_drawn(embed):
    client = embed(item=gear.Whole())
    client.insert(rows(3))
    assert client.sample(5)["step"].shape == (5, 3)
    client.insert(rows(8))
    assert client.sample(256)["step"].shape == (256, 8)


def test_a_selection_is_collected_by_parts_and_by_another_party(embed):
    client = embed()
    client.insert(rows(50))
    selection = client.select(16, parties=2)
    stage = client.collect(Selection.from_bytes(selection.to_bytes()), ["obs"])
    assert list(stage) == ["obs"]
    client.release(selection)
    client.release(selection)  # it holds nothing any more: no party
    assert figures(client)["pins"] == 1
    other = client.collect(selection, ["step"])
    np.testing.assert_array_equal(stage["obs"][..., 0], other["step"])
    client.release(selection)
    assert figures(client)["pins"] == 0
    assert figures(client)["sampled_items"] == 16


def test_an_undelivered_selection_returns_its_credit(embed):
    client = embed()
    client.insert(rows(50))
    client.release(client.select(16), delivered=False)
    assert figures(client)["sampled_items"] == 0


def test_a_selection_past_its_deadline_is_lost(embed):
    client = embed()
    client.insert(rows(50))
    selection = client.select(16, ttl=0.01)
    time.sleep(0.02)  # the deadline is a moment in time, no event
    with pytest.raises(gear.PinLost, match="its deadline passed; select again"):
        client.collect(selection)
    client.sample(4)
    assert figures(client)["pins"] == 0


def test_a_held_selection_outlives_eviction_until_released(embed):  # origin: d3rlpy#268
    client = embed(capacity=gear.Steps(100), mean_length=10)
    client.insert(rows(10))
    selection = client.select(8)
    for k in range(1, 15):
        client.insert(rows(10, start=1000 * k))
    assert figures(client)["steps"] <= 100
    batch = client.collect(selection)
    assert batch["step"].max() < 10
    client.release(selection)
    assert figures(client)["held_blocks"] == 0


def test_parties_must_be_a_whole_number(embed):
    with pytest.raises(gear.DataError, match="parties must be a whole number >= 1, got 0"):
        embed().select(4, parties=0)


# Priorities


def prioritized(embed, steps=8):
    client = embed(item=gear.Step(), sampler=gear.Prioritized(alpha=1.0), capacity=gear.Steps(steps), block_steps=4)
    client.insert(rows(steps), priority=[1.0] * steps)
    return client


@pytest.mark.parametrize("kind", [np.asarray, list, torch.tensor])
def test_updated_priorities_decide_the_draws(embed, kind):
    client = prioritized(embed)
    batch = client.sample(256)
    ids, first = np.unique(batch.ids, return_index=True)
    wanted = batch["step"][first] == 3
    update = client.update_priorities(kind(ids), kind(wanted.astype(np.float64)))
    assert update == (len(ids), 0)
    assert set(client.sample(64)["step"].tolist()) == {3}


def test_a_bad_priority_refuses_the_whole_update(embed):  # origin: reverb 0.14, observed
    client = prioritized(embed)
    ids = client.sample(8).ids
    for bad in (float("nan"), -1.0, float("inf"), 1e39):
        with pytest.raises(gear.DataError, match=r"priorities\[3\] is"):
            client.update_priorities(ids, [5.0, 5.0, 5.0, bad, 5.0, 5.0, 5.0, 5.0])
    assert set(client.sample(512).probabilities.tolist()) == {1 / 8}


def test_ids_of_evicted_items_are_stale(embed):  # origin: ray#6534, rl#4041
    client = prioritized(embed)
    old = np.unique(client.sample(256).ids)
    client.insert(rows(8, start=100), priority=2.0)
    assert client.update_priorities(old, np.full(len(old), 9.0)) == (0, len(old))
    assert set(client.sample(256).probabilities.tolist()) == {1 / 8}


def test_an_update_finds_the_tables_by_the_ids(embed):
    tables = [
        gear.Table(name, columns=columns(), capacity=gear.Steps(100), sampler=gear.Prioritized(alpha=1.0))
        for name in ("a", "b")
    ]
    with gear.embedded(tables) as client:
        for name in ("a", "b"):
            client.insert(rows(4), table=name)
        ids = np.concatenate([client.sample(64, table=name).ids for name in ("a", "b")])
        assert client.update_priorities(ids, np.ones(128)) == (128, 0)
        assert client.update_priorities([], []) == (0, 0)
        with pytest.raises(gear.DataError, match="ids name table number 200"):
            client.update_priorities([200 << 55], [1.0])


def test_weights_come_from_the_probability_of_each_draw(embed):
    client = embed(item=gear.Step(), sampler=gear.Prioritized(alpha=1.0))
    client.insert(rows(3), priority=[1.0, 2.0, 5.0])
    batch = client.sample(512, beta=0.5, normalize="table")
    chances = np.array([1, 2, 5])[batch["step"]] / 8
    np.testing.assert_allclose(batch.probabilities, chances)
    np.testing.assert_allclose(batch.weights, (chances * 8) ** -0.5, rtol=1e-6)


# Devices and dtypes


@pytest.mark.parametrize("item", [gear.Step(), gear.Window(3)])
def test_torch_tensors_share_the_batchs_memory(embed, item):
    client = embed(device="cpu", item=item, sampler=gear.Prioritized())
    client.insert(rows(9))
    batch = client.sample(8, beta=1.0)
    assert isinstance(batch["obs"], torch.Tensor)
    assert batch["obs"].dtype == torch.float32
    assert batch["obs"].shape == ((8, 2) if isinstance(item, gear.Step) else (8, 3, 2))
    assert batch["obs"].data_ptr() == batch.buffer.ctypes.data + batch.plan.fields[0].offset
    for tensor in (batch.weights, batch.lengths, batch.mask):
        assert isinstance(tensor, torch.Tensor)
    assert isinstance(batch.ids, np.ndarray)
    copy = batch.copy()
    before = copy["step"].clone()
    client.insert(rows(9, start=100), priority=1e6)
    client.sample(8, out=batch, beta=1.0)
    assert torch.equal(copy["step"], before)
    assert torch.equal(batch["obs"][..., 0].long(), batch["step"])
    with pytest.raises(KeyError):
        batch["nothing"]


def test_bfloat16_comes_back_as_bfloat16():
    table = gear.Table("t", columns=[gear.Column("x", (2,), "bfloat16")], capacity=gear.Steps(100))
    for device, dtype in ((None, ml_dtypes.bfloat16), ("cpu", torch.bfloat16)):
        with gear.embedded([table], device=device) as client:
            client.insert({"x": torch.full((3, 2), 1.5, dtype=torch.bfloat16)})
            x = client.sample(4)["x"]
            assert x.dtype == dtype
            assert (x == 1.5).all()


@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda:63", "is not there: torch sees"), ("tpu", "expected 'cpu' or 'cuda:N'"), ("meta", "is not supported")],
)
def test_a_device_that_is_not_there_is_an_error(device, message):
    with pytest.raises(gear.DeviceError, match=message):
        gear.embedded([], device=device)


# Concurrency


def test_rows_are_never_torn_while_writing_and_sampling(embed):  # origin: rl#3463, lerobot#2309
    client = embed(capacity=gear.Steps(500), mean_length=10, item=gear.Window(4), block_steps=2)
    client.insert(rows(10))
    stop = threading.Event()

    def write():
        k = 0
        while not stop.is_set():
            k += 1
            client.insert({"obs": np.full((10, 2), k, np.float32), "step": np.full(10, k)})

    client.reset()
    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(400):
            batch = client.sample(256, timeout=20)
            assert (batch["obs"] == batch["step"][..., None]).all()
            assert (batch["step"] == batch["step"][:, :1]).all()
    finally:
        stop.set()
        thread.join()

"""Inserting whole trajectories: what comes back is what went in, and an error changes nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import gear
from gear.storage.fields import CONTINUED, CONTINUES, FLAGS, HAS_FINAL, LENGTH, TERMINATED

from .conftest import rows


def figures(client):
    return client.info()["tables"]["t"]


def whole(client, size=64):
    """Every different trajectory found in a large sample of whole trajectories, as lists of steps."""
    batch = client.sample(size)
    return {tuple(steps[:n].tolist()) for steps, n in zip(batch["step"], batch.lengths, strict=True)}


@pytest.mark.parametrize("item", [gear.Whole(), gear.Window(4, edge="tail"), gear.Step()])
@pytest.mark.parametrize("steps", [1, 15, 16, 17, 100])
def test_rows_come_back_bit_exact(embed, item, steps):
    client = embed(item=item)
    client.insert(rows(steps))
    batch = client.sample(32)
    if isinstance(item, gear.Step):
        np.testing.assert_array_equal(batch["obs"], np.repeat(batch["step"][:, None], 2, 1))
        assert set(batch["step"].tolist()) <= set(range(steps))
        return
    for k, n in enumerate(batch.lengths):
        start = batch["step"][k, 0]
        assert batch["step"][k, :n].tolist() == list(range(start, start + n))
        assert batch["obs"][k, :n].tolist() == [[t, t] for t in range(start, start + n)]
        assert not batch["obs"][k, n:].any()
        assert batch.mask[k].tolist() == [t < n for t in range(batch["step"].shape[1])]


def test_strided_slices_are_stored_exactly(embed):  # origin: reverb 0.14, observed: [-5::2]
    client = embed(item=gear.Whole())
    source = rows(30)
    client.insert({name: array[-5::2] for name, array in source.items()})
    client.insert({name: array[::-3] for name, array in source.items()})
    assert whole(client) == {(25, 27, 29), tuple(range(29, -1, -3))}


def test_tensors_and_lists_are_inserted(embed):
    client = embed(item=gear.Whole())
    client.insert({"obs": torch.zeros(3, 2), "step": torch.arange(3)})
    client.insert({"obs": [[0, 0.5]] * 2, "step": [7, 8]})
    assert whole(client) == {(0, 1, 2), (7, 8)}


def test_nested_and_per_trajectory_columns():
    table = gear.Table(
        "t",
        columns=[gear.Column("a/x"), gear.Column("goal", (2,), "int32", per="trajectory")],
        capacity=gear.Steps(100),
        item=gear.Window(2),
    )
    with gear.embedded([table]) as client:
        for k in range(5):
            client.insert({"a": {"x": np.full(4, k, np.float32)}, "goal": np.array([k, -k], np.int32)})
        batch = client.sample(64)
        assert batch["goal"].shape == (64, 2)
        np.testing.assert_array_equal(batch["a/x"][:, 0], batch["goal"][:, 0])


def test_the_last_observation_is_row_t(embed):  # origin: SB3#934, cleanrl#460
    client = embed(item=gear.Whole(), block_steps=3)
    client.insert(rows(3), final={"obs": [9.0, 9.0]}, terminated=True)
    port = client._tables.port("t", None)
    slots = port.layout.view(port.open.segment, "slots")
    slot = int(np.flatnonzero(slots[:, LENGTH] == 3)[0])
    assert slots[slot, FLAGS] & (HAS_FINAL | TERMINATED) == HAS_FINAL | TERMINATED
    blocks = port.layout.view(port.open.segment, "blocks")
    second = int(np.flatnonzero((blocks[:, 1] == slot) & (blocks[:, 2] == 1))[0])
    assert port.rows.strips[0][second, 0].tolist() == [9.0, 9.0]
    assert port.rows.strips[1][second, 0] == 0
    assert whole(client) == {(0, 1, 2)}


def test_a_trajectory_longer_than_max_length_is_stored_in_pieces(embed):
    client = embed(item=gear.Whole(), max_length=40, sampler=gear.Prioritized(alpha=1.0))
    client.insert(rows(100), priority=[0, 1, 2])
    assert figures(client)["trajectories"] == 3
    assert whole(client, 256) == {tuple(range(40, 80)), tuple(range(80, 100))}
    port = client._tables.port("t", None)
    slots = port.layout.view(port.open.segment, "slots")
    flags = [int(f) & (CONTINUED | CONTINUES) for f in slots[slots[:, LENGTH] > 0, FLAGS]]
    assert sorted(flags) == [CONTINUED, CONTINUES, CONTINUED | CONTINUES]


@pytest.mark.parametrize("capacity", [gear.Steps(100), gear.Trajectories(10), gear.Bytes(16 * 112)])
def test_longer_than_the_capacity_is_refused_and_nothing_changes(embed, capacity):  # origin: ray#54284, #60773
    client = embed(capacity=capacity, mean_length=10, block_steps=5)
    longest = client._tables.port("t", None).capacity
    for steps in (*[10] * 10, 9, longest):
        client.insert(rows(steps))
    before = figures(client)
    with pytest.raises(gear.DataError, match=f"trajectory of {longest + 1} steps does not fit.*capacity is {longest}"):
        client.insert(rows(longest + 1))
    assert figures(client) == before


def test_never_more_than_the_capacity(embed):  # origin: ray#24393
    client = embed(capacity=gear.Steps(100))
    for steps in [10] * 10 + [50] * 10:
        client.insert(rows(steps))
        assert figures(client)["steps"] <= 100


def test_no_window_crosses_an_episode_after_many_wraps(embed):  # origin: rl#1969, #2193
    client = embed(capacity=gear.Steps(1000))
    for episode in range(30):
        client.insert(rows(999, start=episode * 10_000))
        steps = client.sample(64)["step"]
        assert (np.diff(steps, axis=1) == 1).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"priority": -1.0},
        {"priority": float("nan")},
        {"priority": [1.0, 2.0]},
        {"final": {"nothing": 1}},
        {"final": {"obs": np.zeros(3, np.float32)}},
    ],
)
def test_an_error_changes_nothing_and_leaks_no_lease(embed, bad):  # origin: reverb 0.14, observed: negative priority
    client = embed(sampler=gear.Prioritized())
    client.insert(rows(8))
    pool = client._tables.port("t", None).pool
    before, held = figures(client), (pool.blocks, pool.slots)
    with pytest.raises(gear.DataError):
        client.insert(rows(8), **bad)
    assert figures(client) == before
    assert (pool.blocks, pool.slots) == held
    client.insert(rows(8))


def test_an_unknown_table_shows_the_line_to_write(embed):
    with pytest.raises(gear.TableNotFound, match=r'gear.table_like\("other", trajectory.*# columns: obs float32\[2\]'):
        embed().insert(rows(3), table="other")
    with gear.embedded() as client, pytest.raises(gear.TableNotFound, match="table_like"):
        client.insert(rows(3))


def test_the_name_may_be_left_out_while_there_is_one_table(embed):
    client = embed()
    client.insert(rows(3))
    client.create_table(gear.Table("u", columns=[gear.Column("x")], capacity=gear.Steps(10)))
    with pytest.raises(gear.TableNotFound, match="several"):
        client.insert(rows(3))


def test_creating_an_equal_table_is_nothing_and_an_unequal_one_is_refused(embed):
    client = embed()
    table = client._tables.port("t", None).table
    client.create_table(table)
    with pytest.raises(gear.TableMismatch, match="capacity"):
        client.create_table(gear.Table("t", columns=table.columns, capacity=gear.Steps(5), item=table.item))


RATIO = gear.SampleToInsertRatio(1.0, 1, (-4.0, 4.0))


def test_an_insert_that_times_out_inserted_nothing(embed):
    client = embed(item=gear.Whole(), limiter=RATIO)
    client.insert_many([rows(5)] * 4)
    before = figures(client)
    with pytest.raises(gear.DeadlineExceeded, match="waits for samples.*nothing was inserted"):
        client.insert(rows(5), timeout=0.05)
    after = figures(client)
    assert after["trajectories"] == before["trajectories"]
    client.sample(8)
    assert figures(client)["trajectories"] == 4


def test_a_timeout_between_two_pieces_says_how_many_were_committed(embed, monkeypatch):
    """Origin: it said so only where the last commit was waited for, not where memory or the window was."""
    client = embed(item=gear.Whole(), max_length=5, block_steps=5)
    submit, sent = client._session.submit, []

    def third_in_vain(*arguments, **options):
        if len(sent) == 2:
            raise gear.DeadlineExceeded("the window is full")
        sent.append(submit(*arguments, **options))
        client._session.wait(arguments[0], sent[-1], 60.0)
        return sent[-1]

    monkeypatch.setattr(client._session, "submit", third_in_vain)
    with pytest.raises(gear.DeadlineExceeded, match="the window is full; 2 of its 3 pieces were committed"):
        client.insert(rows(14), timeout=0.05)
    assert figures(client)["steps"] == 10


def test_a_timeout_takes_back_only_its_own_insert(embed):
    client = embed(item=gear.Whole(), limiter=RATIO)
    client.insert_many([rows(5)] * 4)
    client.insert(rows(7), wait=False)
    with pytest.raises(gear.DeadlineExceeded):
        client.insert(rows(9), timeout=0.05)
    with pytest.raises(gear.DeadlineExceeded, match="up to 1 commits of table 't' are still queued"):
        client.flush(timeout=0.05)
    client.sample(4)
    client.flush(timeout=60.0)
    assert figures(client)["trajectories"] == 5


def test_insert_many_says_how_many_were_committed(embed):
    client = embed(item=gear.Whole(), limiter=RATIO)
    with pytest.raises(gear.DeadlineExceeded, match="4 of 10 trajectories were committed") as caught:
        client.insert_many([rows(5)] * 10, timeout=0.05)
    assert caught.value.committed == 4
    assert figures(client)["trajectories"] == 4


def test_insert_many_names_the_bad_one_and_inserts_none(embed):
    client = embed()
    with pytest.raises(gear.DataError, match="trajectory 1 of 3: .*misses column 'step'.*nothing was inserted"):
        client.insert_many([rows(5), {"obs": rows(5)["obs"]}, rows(5)])
    assert figures(client)["trajectories"] == 0
    client.insert_many([])


def test_many_threads_insert_through_one_client(embed):
    client = embed(item=gear.Whole(), capacity=gear.Steps(100_000))

    def work(number):
        for k in range(200):
            client.insert(rows(7, start=1000 * (200 * number + k)), wait=k % 2 == 0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.flush()
    assert figures(client)["trajectories"] == 800
    for steps in whole(client, 512):
        assert list(steps) == list(range(steps[0], steps[0] + 7))
        assert steps[0] % 1000 == 0


def test_a_closed_client_says_so(embed):
    client = embed()
    client.insert(rows(3))
    client.close()
    client.close()
    with pytest.raises(gear.Closed):
        client.insert(rows(3))

"""Late columns through a client: embedded, over shared memory and over TCP."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gear
from gear.query import Query

from .paths import make  # noqa: F401 - a fixture

COLUMNS = (
    gear.Column("tokens", (), "int64"),
    gear.Column("logprobs", (), "float32", late=True),
    gear.Column("reward", (), "float32", per="trajectory", late=True),
)
BOTH = ("logprobs", "reward")


@pytest.fixture
def client(make):  # noqa: F811
    return make(
        columns=COLUMNS,
        capacity=gear.Trajectories(8),
        item=gear.Whole(),
        sampler=gear.Fifo(),
        requirements=[BOTH, ("reward",), ("logprobs",)],
        mean_length=4,
        max_times_sampled=1,
        block_steps=2,
    )


def insert(client, *lengths: int) -> np.ndarray:
    """Trajectories whose tokens are their number; their ids in that order."""
    for number, length in enumerate(lengths):
        client.insert({"tokens": np.full(length, number)})
    return ids_of(client)


def ids_of(client) -> np.ndarray:
    pages = list(client.scan())
    order = np.argsort(np.concatenate([page.trajectories for page in pages]))
    return np.concatenate([page.ids for page in pages])[order]


def test_a_reader_of_both_wakes_when_the_last_comes_and_a_reader_of_one_does_not_wait(client):
    """Origin: verl#5400: ids at t0, reward at t1."""
    (one,) = insert(client, 3)
    client.fill([one], {"logprobs": [np.array([0.1, 0.2, 0.3], np.float32)]})
    drawn: list[gear.Batch] = []
    waiting = threading.Thread(target=lambda: drawn.append(client.sample(1, require=BOTH, timeout=30)))
    waiting.start()
    selection = client.select(1, require="logprobs", timeout=60.0)  # not held up
    client.release(selection, delivered=False)
    assert not drawn
    client.fill([one], {"reward": [2.5]})
    waiting.join(60)
    assert drawn[0]["reward"].tolist() == [2.5]
    np.testing.assert_allclose(drawn[0]["logprobs"], [[0.1, 0.2, 0.3]], rtol=1e-6)


def test_overwriting_does_not_deliver_twice(client):
    """Origin: verl#5400."""
    one, two = insert(client, 2, 2)
    client.fill([one, two], {"reward": [1.0, 2.0]})
    assert client.sample(1, require="reward")["reward"].tolist() == [1.0]
    assert client.fill([one, two], {"reward": [5.0, 6.0]}) == gear.Update(1, 1)  # the first was used up and has left
    assert client.sample(1, require="reward")["reward"].tolist() == [6.0]
    with pytest.raises(gear.DeadlineExceeded, match="timed out"):
        client.sample(1, require="reward", timeout=0.05)


def test_packed_rows_come_back_as_they_were_filled(client):
    ids = insert(client, 3, 1, 5)
    rows = np.arange(9, dtype=np.float32)
    client.fill(ids[::-1].copy(), {"logprobs": rows, "reward": np.float32([3, 2, 1])}, offsets=[0, 5, 6, 9])
    found = {}
    for _ in ids:
        batch = client.sample(1, require=BOTH)
        found[int(batch["tokens"][0, 0])] = (batch["logprobs"][0].tolist(), float(batch["reward"][0]))
    assert found == {0: ([6, 7, 8], 1.0), 1: ([5], 2.0), 2: ([0, 1, 2, 3, 4], 3.0)}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tokens": [np.zeros(3)]}, "no late columns"),
        ({"logprobs": [np.zeros(3)]}, r"'logprobs': expected float32\[T\], got float64"),
        ({"logprobs": np.zeros((1, 3), np.float32)}, "packed rows need offsets="),
        ({"logprobs": [np.zeros(2, np.float32)], "reward": [1.0]}, "has 3 rows, 2 came.*nothing was filled"),
        ({"reward": [1.0, 2.0]}, "expected 1 rows"),
        ({}, "expected a dict"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_filled(client, columns, message):
    """Origin: TorchRL, observed: a missing column is an error, never uninitialised memory."""
    (one,) = insert(client, 3)
    with pytest.raises(gear.DataError, match=message):
        client.fill([one], columns)
    with pytest.raises(gear.DeadlineExceeded, match="none of which can be drawn with reward; fill them"):
        client.sample(1, require="reward", timeout=0.02)


def test_a_column_that_is_not_there_is_never_read(client):
    """Origin: TorchRL, observed."""
    insert(client, 3)
    selection = client.select(1)
    assert set(client.collect(selection)) == {"tokens"}
    with pytest.raises(gear.DataError, match=r"late column 'logprobs' of 1 of 1 items .* is not there yet"):
        client.collect(selection, ["logprobs"])
    client.fill(selection.ids, {"logprobs": [np.ones(3, np.float32)]})
    assert client.collect(selection, ["logprobs"])["logprobs"].tolist() == [[1, 1, 1]]
    client.release(selection)
    insert(client, 2)
    with pytest.raises(gear.DataError, match="is not there yet"):
        client.sample(Query(1, views=("reward",)))
    assert set(client.sample(1)) == {"tokens"}  # the refused one was given back


def test_ids_that_left_are_counted(client):
    ids = insert(client, *range(1, 10))  # the first of nine has left by the ninth
    assert len(ids) == 8
    client.reset()
    assert client.fill(ids, {"reward": np.zeros(8, np.float32)}) == gear.Update(0, 8)


def test_a_requirement_that_is_not_declared_is_refused(make):  # noqa: F811
    client = make(columns=COLUMNS, item=gear.Whole(), requirements=["reward"])
    with pytest.raises(gear.SchemaError, match=r"declares no requirement \('logprobs',\); it declares \('reward',\)"):
        client.sample(1, require="logprobs")
    with pytest.raises(gear.SchemaError, match="include_open=True"):
        client.sample(1, include_open=True)


def test_each_set_has_its_own_mass(make):  # noqa: F811
    client = make(
        columns=COLUMNS, item=gear.Whole(), capacity=gear.Trajectories(64), mean_length=1,
        sampler=gear.Prioritized(1.0), requirements=["reward"],
    )  # fmt: skip
    for number in range(20):
        client.insert({"tokens": [number]}, priority=1.0)
    ids = ids_of(client)
    client.fill(ids[:2], {"reward": [0.0, 1.0]})
    client.update_priorities(ids[:2], [1.0, 3.0])
    batch = client.sample(400, require="reward")
    assert set(batch["reward"].tolist()) == {0.0, 1.0}
    assert set(batch.probabilities.tolist()) == {0.25, 0.75}
    assert len(set(client.sample(400)["tokens"][:, 0].tolist())) > 10


def test_rows_of_a_window_table_are_filled_by_the_id_of_any_window(make):  # noqa: F811
    client = make(
        columns=(gear.Column("x", (), "int64"), gear.Column("advantage", (), "int64", late=True)),
        item=gear.Window(3), requirements=["advantage"], capacity=gear.Steps(100),
    )  # fmt: skip
    client.insert({"x": np.arange(7)})
    batch = client.sample(1)
    client.fill(batch.ids, {"advantage": [np.arange(7) * 10]})
    batch = client.sample(16, require="advantage")
    assert (batch["advantage"] == 10 * batch["x"]).all()

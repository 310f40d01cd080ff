"""Trajectories that belong to a table and grow there, on every data path."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

import gear

from .paths import make  # noqa: F401 - a fixture

COLUMNS = (gear.Column("tokens", (), "int64"), gear.Column("version", (), "int32"))
WAIT = {"item": gear.Whole(), "mean_length": 4, "max_length": 64, "block_steps": 4, "capacity": gear.Trajectories(20)}


def rows(first: int, count: int, version: int = 0) -> dict[str, np.ndarray]:
    return {"tokens": np.arange(first, first + count), "version": np.full(count, version, np.int32)}


@pytest.fixture
def client(make):  # noqa: F811
    return make(columns=COLUMNS, include_open=True, **WAIT)


def test_3_tokens_and_then_5_make_8_with_the_version_of_each(client):
    """Origin: xtuner#2003, slime#1800."""
    one = client.open()
    assert client.append(one, rows(0, 3, 7), at=0) == 3
    assert client.append(one, rows(3, 5, 8), at=3) == 8
    assert client.seal(one, terminated=True) == 8
    batch = client.sample(1)
    assert batch["tokens"].tolist() == [list(range(8))]
    assert batch["version"].tolist() == [[7, 7, 7, 8, 8, 8, 8, 8]]
    assert batch.lengths.tolist() == [8]
    assert batch.ids.tolist() == [one]


def test_it_is_sampled_when_sealed_and_before_only_if_asked_for(client):
    one = client.open()
    with pytest.raises(gear.DeadlineExceeded, match="open trajectories included"):
        client.sample(1, include_open=True, timeout=0.02)
    client.append(one, rows(0, 5), at=0)
    with pytest.raises(gear.DeadlineExceeded, match="holds 0 items"):
        client.sample(1, timeout=0.02)
    assert client.sample(1, include_open=True)["tokens"].tolist() == [[0, 1, 2, 3, 4]]
    client.append(one, rows(5, 1), at=5)
    assert client.sample(1, include_open=True)["tokens"].tolist() == [[0, 1, 2, 3, 4, 5]]
    client.seal(one)
    assert client.sample(1)["tokens"].tolist() == client.sample(1, include_open=True)["tokens"].tolist()


def test_an_append_from_another_length_is_refused_and_changes_nothing(client):
    """Origin: xtuner#2003: a retried append must not double the tokens."""
    one = client.open()
    client.append(one, rows(0, 3), at=0)
    with pytest.raises(gear.DataError, match="expected at=3, the rows that .* has, got at=0; nothing was appended"):
        client.append(one, rows(0, 3), at=0)
    assert client.length(one) == 3


def test_another_client_goes_on_where_one_has_closed(make, client):  # noqa: F811
    if client.client._session.path == "inproc":
        pytest.skip("tables of a process end with their client")
    first = make(of=client)
    one = first.open()
    first.append(one, rows(0, 3), at=0)
    first.client.close()
    second = make(of=client)
    assert second.length(one, table=second.name) == 3
    second.append(one, rows(3, 2), at=3)
    second.seal(one)
    assert client.sample(1)["tokens"].tolist() == [[0, 1, 2, 3, 4]]


def test_open_ones_take_at_most_half_and_wait_for_room(make):  # noqa: F811
    client = make(columns=COLUMNS, **(WAIT | {"capacity": gear.Trajectories(4), "mean_length": 8, "max_length": 16}))
    one, two = client.open(), client.open()
    client.append(one, rows(0, 1), at=0)
    with pytest.raises(gear.DeadlineExceeded, match="take at most half of it; seal some"):
        client.open(timeout=0.02)
    opened = []
    thread = threading.Thread(target=lambda: opened.append(client.open(timeout=30)))
    thread.start()
    client.seal(one)
    thread.join(60)
    assert len(opened) == 1
    for number in range(6):  # evicts what is closed, never what is open
        client.insert(rows(number, 2))
    assert [client.length(n) for n in (two, *opened)] == [0, 0]
    with pytest.raises(gear.DataError, match="more than an open trajectory may have"):
        client.append(two, rows(0, 17), at=0)


def test_an_idle_one_is_dropped_and_counted(make):  # noqa: F811
    client = make(columns=COLUMNS, open_ttl=0.05, **WAIT)
    one = client.open()
    deadline = time.monotonic() + 60
    while figures(client)["dropped_open_trajectories"] == 0:
        assert time.monotonic() < deadline
        with pytest.raises(gear.DeadlineExceeded):
            client.sample(1, timeout=0.05)
    with pytest.raises(gear.DataError, match="went without an append for open_ttl=0.05"):
        client.append(one, rows(0, 1), at=0)


def figures(client) -> dict:
    return client.info()["tables"][client.name]


def test_what_is_sealed_dropped_or_empty_says_so(client):
    one, two, three = (client.open() for _ in range(3))
    client.append(one, rows(0, 2), at=0)
    client.seal(one)
    with pytest.raises(gear.DataError, match="is sealed"):
        client.append(one, rows(2, 1), at=2)
    with pytest.raises(gear.DataError, match="has no rows; append some first"):
        client.seal(two)
    client.drop(two)
    with pytest.raises(gear.DataError, match="is not there"):
        client.length(two)
    client.append(three, rows(0, 1), at=0)
    with pytest.raises(gear.DataError, match="misses column 'version'"):
        client.append(three, {"tokens": [1]}, at=1)
    client.reset()
    with pytest.raises(gear.DataError, match="is not there"):
        client.seal(three)
    assert figures(client)["open_trajectories"] == 0


def test_per_trajectory_columns_final_and_priorities_come_with_open_or_seal(make):  # noqa: F811
    client = make(
        columns=(gear.Column("x"), gear.Column("prompt", (2,), "int32", per="trajectory")),
        sampler=gear.MaxHeap(), **WAIT,
    )  # fmt: skip
    one = client.open(columns={"prompt": np.int32([1, 2])})
    two = client.open()
    for name, first in ((one, 0.0), (two, 5.0)):
        client.append(name, {"x": np.float32([first])}, at=0)
    with pytest.raises(gear.DataError, match="expected the per-trajectory columns prompt"):
        client.seal(two)
    client.seal(one, priority=1.0)
    client.seal(two, priority=2.0, columns={"prompt": np.int32([3, 4])}, final={"x": np.float32(9)})
    batch = client.sample(1)
    assert (batch["x"].tolist(), batch["prompt"].tolist()) == ([[5.0]], [[3, 4]])
    client.update_priorities(batch.ids, [0.0])
    assert client.sample(1)["prompt"].tolist() == [[1, 2]]


def test_a_seal_waits_for_the_limiter(make):  # noqa: F811
    client = make(columns=COLUMNS, limiter=gear.Queue(1), **WAIT)
    client.insert(rows(0, 1))
    one = client.open()
    client.append(one, rows(5, 2), at=0)
    with pytest.raises(gear.DeadlineExceeded, match=r"seal timed out: the limiter Queue\(size=1\)"):
        client.seal(one, timeout=0.02)
    thread = threading.Thread(target=client.seal, args=(one,), kwargs={"timeout": 30})
    thread.start()
    assert client.sample(1)["tokens"].tolist() == [[0]]
    thread.join(60)
    assert client.sample(1)["tokens"].tolist() == [[5, 6]]


def test_it_survives_the_death_of_the_process_that_opened_it(make, client):  # noqa: F811
    if client.client._session.path == "inproc":
        pytest.skip("tables of a process end with it")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            one = client.open()
            client.append(one, rows(0, 4), at=0)
            os.write(writer, one.to_bytes(8, "little"))
        finally:
            os._exit(0)  # no goodbye: as killed
    one = int.from_bytes(os.read(reader, 8), "little")
    os.waitpid(child, 0)
    os.close(reader), os.close(writer)
    deadline = time.monotonic() + 60
    while figures(client)["clients"] > 1:  # until the shard has seen that it is dead
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert client.append(one, rows(4, 1), at=4) == 5
    client.seal(one)
    assert client.sample(1)["tokens"].tolist() == [[0, 1, 2, 3, 4]]


def test_windows_of_open_trajectories_grow_with_them(make):  # noqa: F811
    client = make(
        columns=COLUMNS, include_open=True, capacity=gear.Steps(200), item=gear.Window(3), block_steps=2, publish="end",
    )  # fmt: skip
    one = client.open()
    client.append(one, rows(0, 4), at=0)
    seen = client.sample(64, include_open=True)["tokens"]
    assert {tuple(w) for w in seen.tolist()} == {(0, 1, 2), (1, 2, 3)}
    client.append(one, rows(4, 1), at=4)
    client.seal(one)
    seen = client.sample(64)["tokens"]
    assert {tuple(w) for w in seen.tolist()} == {(0, 1, 2), (1, 2, 3), (2, 3, 4)}

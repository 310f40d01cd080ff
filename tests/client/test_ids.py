"""The ids that `insert_many` returns name what it stored, on every path, without a draw."""

from __future__ import annotations

import numpy as np
import pytest

import gear

from .conftest import columns, rows
from .paths import make as make


@pytest.mark.parametrize("item", [gear.Whole(), gear.Step(), gear.Window(3, edge="tail")])
def test_the_ids_of_many_are_those_of_their_first_rows(make, item):
    client = make(columns=columns(), item=item, mean_length=8, max_length=10, capacity=gear.Steps(2000))
    lengths = [3, 25, 1, 10] * 30  # pieces, and more than one message
    values, offsets = rows(sum(lengths)), np.cumsum([0, *lengths])
    ids = client.insert_many(values, offsets=offsets)
    assert (ids.dtype, len(set(ids.tolist()))) == (np.int64, len(lengths))
    batch = client.collect(client.select(ids=ids))
    first = batch["step"] if batch["step"].ndim == 1 else batch["step"][:, 0]
    assert first.tolist() == offsets[:-1].tolist()


def test_late_columns_are_filled_by_the_ids_of_the_insert(make):
    declared = [gear.Column("tokens", (), "int64"), gear.Column("reward", (), per="trajectory", late=True)]
    client = make(columns=declared, item=gear.Whole(), sampler=gear.Fifo(), requirements=[("reward",)], mean_length=4)
    ids = client.insert_many([{"tokens": np.arange(n)} for n in (2, 3, 4)])
    assert client.client.fill(ids, {"reward": [5.0, 6.0, 7.0]}) == (3, 0)
    assert client.sample(1, require="reward")["reward"].tolist() == [5.0]


def test_what_has_left_since_has_an_id_that_is_stale(make):
    client = make(
        columns=columns(),
        item=gear.Whole(),
        mean_length=4,
        max_length=4,
        capacity=gear.Trajectories(4),
        sampler=gear.Prioritized(),
    )
    ids = client.insert_many([rows(4, k) for k in range(12)])
    assert client.client.update_priorities(ids, np.ones(12)) == (4, 8)
    with pytest.raises(gear.StaleItems, match="8 of 12"):
        client.select(ids=ids)


def test_without_waiting_there_are_none(make):
    client = make(columns=columns(), item=gear.Whole())
    assert client.insert_many([rows(3)], wait=False) is None
    client.client.flush()
    assert client.insert_many([]).tolist() == []
    assert client.sample(1)["step"].tolist() == [[0, 1, 2]]


def test_ids_that_do_not_come_in_time_are_said_not_made_up(embed, monkeypatch):
    client = embed(item=gear.Whole())

    def silent(*arguments):
        raise gear.DeadlineExceeded("the server is silent")

    monkeypatch.setattr(client._session, "names", lambda *arguments: None)
    monkeypatch.setattr(client._session, "identify", silent)
    with pytest.raises(gear.DeadlineExceeded, match="all 3 trajectories were committed, but their ids") as caught:
        client.insert_many([rows(3) for _ in range(3)], timeout=1)
    assert caught.value.committed == 3

"""`client.scan`: the same listing from an embedded client and through a server."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

import gear

from .conftest import columns, rows

LENGTHS = (9, 3, 25, 4, 4, 60, 1)


def fill(client: gear.Client, table: str) -> None:
    for number, length in enumerate(LENGTHS):
        client.insert(rows(length, 100 * number), table, priority=float(number))


@pytest.fixture
def served(server):
    with gear.connect(server.address) as client:
        yield client


@pytest.fixture(params=["embedded", "served"])
def client(request, server):
    with gear.embedded() if request.param == "embedded" else gear.connect(server.address) as client:
        yield client


def declared(**fields) -> gear.Table:
    fields = {"capacity": gear.Steps(1000), "item": gear.Window(4), "sampler": gear.Prioritized(1.0), **fields}
    return gear.Table(f"scan-{uuid.uuid4().hex}", columns(), **fields)


@pytest.mark.parametrize("page", [1, 7, 65536])
def test_every_item_is_listed_once_with_its_place_and_priority(client, page):
    table = declared()
    client.create_table(table)
    fill(client, table.name)
    pages = list(client.scan(table.name, page=page))
    assert all(0 < len(p) <= page for p in pages)
    ids, trajectories, positions, lengths, priorities = (
        np.concatenate([getattr(p, field) for p in pages]).tolist()
        for field in ("ids", "trajectories", "positions", "lengths", "priorities")
    )
    expected = [
        (number + 1, start, min(4, length), float(number))
        for number, length in enumerate(LENGTHS)
        for start in range(max(1, length - 3))
    ]
    assert sorted(zip(trajectories, positions, lengths, priorities, strict=True)) == expected
    assert len(set(ids)) == len(ids) == client.info()["tables"][table.name]["items"]
    batch = client.sample(64, table.name)
    assert set(batch.ids.tolist()) <= set(ids)


def test_ids_of_a_listing_update_priorities(client):
    table = declared()
    client.create_table(table)
    fill(client, table.name)
    (page,) = client.scan(table.name)
    update = client.update_priorities(page.ids, page.trajectories * 10.0)
    assert (update.applied, update.stale) == (len(page), 0)
    (again,) = client.scan(table.name)
    assert again.priorities.tolist() == (again.trajectories * 10.0).tolist()


def test_a_table_without_priorities_lists_none(client):
    table = declared(sampler=gear.Uniform())
    client.create_table(table)
    fill(client, table.name)
    assert next(client.scan(table.name)).priorities is None


def test_an_empty_table_has_no_pages(client):
    table = declared()
    client.create_table(table)
    assert list(client.scan(table.name)) == []


def test_a_listing_shows_what_this_clients_writers_have_written(client):
    table = declared(item=gear.Step(0))
    client.create_table(table)
    with client.writer(table.name) as writer:
        writer.append({"obs": np.zeros(2, np.float32), "step": 1})
        assert [len(page) for page in client.scan(table.name)] == [1]


def test_a_listing_goes_on_while_others_insert_and_evict(client):
    """What is stored from the first page to the last is listed exactly once."""
    table = declared(capacity=gear.Trajectories(20), item=gear.Whole(), mean_length=4, max_length=9)
    client.create_table(table)
    for _ in range(20):
        client.insert(rows(4), table.name)
    seen: list[int] = []
    for number, page in enumerate(client.scan(table.name, page=3)):
        seen += page.trajectories.tolist()
        if number < 5:
            client.insert(rows(4), table.name)  # the oldest leaves
    assert len(set(seen)) == len(seen)
    assert set(range(6, 21)) <= set(seen)


def test_arguments_of_a_listing_are_checked_before_anything_happens(client):
    table = declared()
    client.create_table(table)
    for page in (0, 65537, 2.5, True):
        with pytest.raises(gear.DataError, match="page must be a whole number >= 1"):
            client.scan(table.name, page=page)
    with pytest.raises(gear.TableNotFound):
        client.scan("nothing")

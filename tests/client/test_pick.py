"""Items by their ids: exactly those, in that order, whatever was drawn; stale ones are said, not replaced."""

from __future__ import annotations

import numpy as np
import pytest

import gear
from tests.transport.conftest import server

from .conftest import rows

__all__ = ["server"]

ITEMS = [gear.Whole(), gear.Step(0), gear.Window(4), gear.Window(4, stride=3, edge="tail"), gear.Window(4, edge="head")]


@pytest.mark.parametrize("item", ITEMS, ids=str)
def test_items_come_by_their_ids_in_the_order_asked_for(embed, item):
    client = embed(item=item, mean_length=6)
    for start in range(0, 100, 10):
        client.insert(rows(7, start))
    batch = client.sample(20)
    order = np.random.default_rng(0).permutation(20)
    again = client.collect(client.select(ids=batch.ids[order]))
    np.testing.assert_array_equal(again.ids, batch.ids[order])
    np.testing.assert_array_equal(again.lengths, batch.lengths[order])
    np.testing.assert_array_equal(again["step"], batch["step"][order])


def test_it_costs_neither_credit_nor_uses(embed):
    client = embed(item=gear.Whole(), limiter=gear.Queue(8))
    for start in range(0, 30, 10):
        client.insert(rows(5, start))
    first = client.select(1, ttl=60)
    for _ in range(9):
        picked = client.select(ids=first.ids)
        assert client.collect(picked)["step"][0].tolist() == [0, 1, 2, 3, 4]
        client.release(picked)
    client.release(first, delivered=False)
    figures = client.info()["tables"]["t"]
    assert (figures["sampled_items"], figures["reserved_items"], figures["pins"]) == (0, 0, 0)
    assert client.sample(1)["step"][0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("path", ["inproc", "shm", "tcp"])
def test_stale_items_are_an_error_that_counts_them_and_pins_nothing(embed, request, path):
    name = f"pick-{path}"
    table = gear.Table(name, [gear.Column("step", (), "int64")], gear.Steps(20), item=gear.Whole(), mean_length=5)
    if path == "inproc":
        client = embed()
    else:
        client = gear.connect(request.getfixturevalue("server").address, path=path)
    client.create_table(table)
    client.insert({"step": np.arange(5)}, name)
    old = client.sample(1, name).ids
    for start in (10, 20, 30, 40):
        client.insert({"step": np.arange(start, start + 5)}, name)
    new = client.sample(3, name)
    np.testing.assert_array_equal(client.collect(client.select(table=name, ids=new.ids))["step"], new["step"])
    with pytest.raises(gear.StaleItems, match="1 of 4 ids .* the first at index 1"):
        client.select(table=name, ids=[new.ids[0], old[0], *new.ids[1:]])
    with pytest.raises(gear.StaleItems, match="the first at index 0"):
        client.select(table=name, ids=[12345 << 40])
    client.close()


def test_a_picked_item_is_pinned(embed):
    client = embed(item=gear.Whole(), capacity=gear.Steps(40), mean_length=5)
    client.insert(rows(5))
    selection = client.select(ids=client.sample(1).ids)
    for start in range(10, 200, 10):
        client.insert(rows(5, start))
    assert client.collect(selection)["step"][0].tolist() == [0, 1, 2, 3, 4]
    client.release(selection)
    assert client.info()["tables"]["t"]["held_blocks"] == 0

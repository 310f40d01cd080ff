"""Trajectories dropped by id: gone at once, their rows kept for whoever reads them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gear
from tests.transport.helpers import eventually

from .served import Desk, numbers


def test_what_is_dropped_is_drawn_no_more_and_ids_of_what_has_left_are_counted(desk):
    client = desk.open()
    desk.insert(client, *range(5))
    ids = {int(k): number for batch in [client.sample(64, desk.name, timeout=60.0)] for k, number in
           zip(batch["k"][:, 0], batch.ids.tolist(), strict=True)}  # fmt: skip
    some = np.array([ids[k] for k in sorted(ids)][:2])
    assert client.drop(some) == (2, 0)
    assert client.drop([*some, int(some[0])]) == (0, 3)
    left = set(numbers(client.sample(64, desk.name, timeout=60.0)))
    assert left <= set(range(5)) - set(sorted(ids)[:2])
    figures = desk.figures(client)
    assert (figures["trajectories"], figures["items"], figures["evicted_trajectories"]) == (3, 3, 2)


def test_rows_that_are_read_stay_until_the_reader_lets_go(desk):
    client = desk.open()
    desk.insert(client, 7)
    selection = client.select(1, desk.name, timeout=60.0)
    assert client.drop(selection.ids, table=desk.name) == (1, 0)
    assert desk.figures(client)["held_blocks"] > 0
    assert client.collect(selection)["k"].tolist() == [[7, 7]]
    client.release(selection)
    desk.insert(client, 8)  # a message later it is free
    assert desk.figures(client)["held_blocks"] == 0


def test_a_group_goes_as_a_whole_and_consumers_are_not_served_it(desk: Desk):
    client = desk.open(sampler=gear.Groups(2), consumers=("one", "two"))
    for prompt in "ab":
        desk.insert(client, 0, 1, group=prompt)
    ids = client.sample(1, desk.name, consumer="one", timeout=60.0).ids
    assert client.drop(ids[:1]) == (1, 0)
    assert client.ack(ids, consumer="one").stale == 2
    assert desk.figures(client)["trajectories"] == 2
    assert client.sample(1, desk.name, consumer="two", timeout=60.0).ids.tolist() != ids.tolist()
    assert desk.figures(client)["consumers"]["two"]["dropped"] == 2


def test_room_that_is_made_lets_waiting_inserts_in(desk):
    client = desk.open(limiter=gear.Queue(2))
    desk.insert(client, 1, 2)
    page = next(iter(client.scan(desk.name)))
    client.insert({"k": np.full(2, 3), "reward": np.float32(0)}, desk.name, wait=False)
    client.drop(page.ids[:1])
    client.flush(timeout=60.0)
    assert numbers(client.sample(2, desk.name, timeout=60.0)) == [2, 3]


def test_a_trajectory_that_a_writer_still_writes_is_not_dropped(desk):
    client = desk.open(item=gear.Step(), publish="rows")
    desk.insert(client, 5)
    with client.writer(desk.name) as writer:
        writer.set({"reward": 0.0})
        writer.extend({"k": np.zeros(40, np.int64)})
        writer.publish(timeout=60.0)
        writer.flush(timeout=60.0)
        page = next(iter(client.scan(desk.name)))
        with pytest.raises(gear.DataError, match="is written by a client; .* nothing was dropped"):
            client.drop(page.ids)
        assert desk.figures(client)["trajectories"] == 2


def test_samples_promised_to_who_waits_are_not_promised_of_what_is_dropped(desk):
    client = desk.open(limiter=gear.Queue(3))
    desk.insert(client, 1, 2)
    page = next(iter(client.scan(desk.name)))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.sample, 3, desk.name, timeout=20)
        eventually(lambda: desk.figures(client)["reserved_items"] == 2, "it has gathered two")
        client.drop(page.ids)
        desk.insert(client, 3, 4, 5)
        assert numbers(waiting.result()) == [3, 4, 5]
    figures = desk.figures(client)
    assert (figures["returned_items"], figures["sampled_items"]) == (2, 3)

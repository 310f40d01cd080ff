"""Consumers that need late columns: an item waits for each of them from when it has what that one needs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gear

from .served import Desk, numbers

COLUMNS = (
    gear.Column("k", (), "int64"),
    gear.Column("logprobs", (), "float32", late=True),
    gear.Column("reward", (), "float32", per="trajectory", late=True),
)
NEEDS = {"reference": (), "reward": ("logprobs",), "trainer": ("reward", "logprobs")}


def table(desk: Desk, **fields) -> gear.Client:
    return desk.open(columns=COLUMNS, consumers=NEEDS, **fields)


def insert(desk: Desk, client: gear.Client, *trajectories: int, **options) -> None:
    for number in trajectories:
        client.insert({"k": np.full(2, number)}, desk.name, timeout=60.0, **options)


def take(desk: Desk, client: gear.Client, size: int, consumer: str, timeout: float = 5) -> gear.Batch:
    return client.sample(size, desk.name, consumer=consumer, timeout=timeout)


def fill(client: gear.Client, ids, *names: str) -> None:
    rows = {"logprobs": [np.zeros(2, np.float32)] * len(ids), "reward": np.arange(len(ids), dtype=np.float32)}
    client.fill(ids, {name: rows[name] for name in names})


def test_each_consumer_is_served_what_has_the_columns_it_needs_in_the_order_of_their_arrival(desk):
    client = table(desk)
    insert(desk, client, *range(4))
    every = take(desk, client, 4, "reference")  # not held up
    assert list(every) == ["k"]
    fill(client, every.ids[[2, 0]], "logprobs")
    batch = take(desk, client, 2, "reward")
    assert (list(batch), numbers(batch)) == (["k", "logprobs"], [2, 0])
    with pytest.raises(gear.DeadlineExceeded, match="items wait for it once they have logprobs and reward"):
        take(desk, client, 1, "trainer", 0.01)
    fill(client, every.ids[[0, 1]], "reward")
    fill(client, every.ids[[1]], "logprobs")
    fill(client, every.ids[[1, 0]], "reward", "logprobs")  # overwriting delivers nothing twice
    batch = take(desk, client, 2, "trainer")
    assert (list(batch), numbers(batch)) == (["k", "logprobs", "reward"], [0, 1])
    with pytest.raises(gear.DeadlineExceeded):
        take(desk, client, 1, "trainer", 0.01)


def test_a_consumer_that_waits_is_woken_by_the_last_column(desk):
    client = table(desk)
    insert(desk, client, 7)
    ids = take(desk, client, 1, "reference").ids
    drawn = []
    waiting = threading.Thread(target=lambda: drawn.append(numbers(take(desk, client, 1, "trainer", 20))))
    waiting.start()
    fill(client, ids, "logprobs")
    assert not drawn
    fill(client, ids, "reward")
    waiting.join()
    assert drawn == [[7]]


def test_what_was_not_delivered_waits_again_before_what_came_later(desk):
    client = table(desk)
    insert(desk, client, *range(3))
    ids = take(desk, client, 3, "reference").ids
    fill(client, ids[[2, 0]], "logprobs")
    selection = client.select(2, desk.name, consumer="reward", timeout=60.0)
    fill(client, ids[[1]], "logprobs")
    client.release(selection, delivered=False)
    assert numbers(take(desk, client, 3, "reward")) == [2, 0, 1]


def test_a_queue_lets_go_of_an_item_that_every_consumer_acknowledged(desk):
    client = table(desk, limiter=gear.Queue(2))
    insert(desk, client, 1, 2)
    ids = take(desk, client, 2, "reference").ids
    client.ack(ids)
    client.ack(ids[:1], consumer="trainer")  # before it had the columns: it is not served to it later
    fill(client, ids, "logprobs", "reward")
    client.ack(take(desk, client, 2, "reward").ids)
    assert desk.figures(client)["items"] == 1
    assert numbers(take(desk, client, 1, "trainer")) == [2]
    client.ack(ids[1:])
    assert desk.figures(client)["items"] == 0


def test_a_group_waits_for_a_consumer_when_its_last_member_has_the_columns(desk):
    client = table(desk, sampler=gear.Groups(2))
    for prompt in range(2):
        insert(desk, client, 2 * prompt, 2 * prompt + 1, group=f"prompt {prompt}")
    ids = take(desk, client, 2, "reference").ids
    fill(client, ids[[3, 0, 2]], "logprobs")
    assert numbers(take(desk, client, 1, "reward")) == [2, 3]
    fill(client, ids[[1]], "logprobs")
    assert numbers(take(desk, client, 1, "reward")) == [0, 1]


def test_what_cannot_be_needed_or_required_is_named(desk):
    with pytest.raises(gear.SchemaError, match=r"consumer 'trainer' needs \('k',\), expected late columns \(logprobs"):
        desk.table(columns=COLUMNS, consumers={"trainer": ("k",)})
    client = table(desk)
    with pytest.raises(gear.SchemaError, match="consumer 'trainer' needs logprobs, reward; leave require= out"):
        client.sample(1, desk.name, consumer="trainer", require="reward", timeout=5)
    declared = desk.table(columns=COLUMNS, consumers=NEEDS)
    assert declared.consumers == ("reference", "reward", "trainer")
    assert declared.needs_of(2) == ("logprobs", "reward")
    plain = desk.table(columns=COLUMNS, consumers=("a", "b"))
    assert desk.table(columns=COLUMNS, consumers={"a": (), "b": ()}) == plain

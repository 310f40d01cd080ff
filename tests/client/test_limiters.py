"""Limiters through a client, in process and through a server: who waits for whom, and what a timeout says."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import gear

from .conftest import columns, rows


@pytest.fixture(params=["embedded", "server"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., gear.Client]]:
    """Makes clients over one table of whole trajectories and closes them."""
    with ExitStack() as stack:

        def one(**fields) -> gear.Client:
            declared = {"columns": columns(), "capacity": gear.Trajectories(20), "item": gear.Whole(), **fields}
            table = gear.Table(f"t-{uuid.uuid4().hex[:8]}", mean_length=8, **declared)
            if request.param == "embedded":
                return stack.enter_context(gear.embedded([table]))
            client = stack.enter_context(gear.connect(request.getfixturevalue("server").address))
            client.create_table(table)
            sample = client.sample  # the server of the module has other tests' tables too
            client.sample = lambda size, **given: sample(size, table.name, **given)
            insert = client.insert
            client.insert = lambda data, **given: insert(data, table.name, **given)
            return client

        yield one


def first_steps(batch: gear.Batch) -> list[int]:
    return np.asarray(batch["step"])[:, 0].tolist()


def test_a_queue_of_10_blocks_the_11th_insert_and_yields_0_to_10_in_order(make):
    """Origin: Reverb's Queue."""
    client = make(limiter=gear.Queue(10))
    for number in range(10):
        client.insert(rows(3, number))
    with pytest.raises(gear.DeadlineExceeded, match=r"limiter Queue\(size=10\) .* nothing was inserted"):
        client.insert(rows(3, 10), timeout=0.05)
    assert first_steps(client.sample(1)) == [0]
    client.insert(rows(3, 10), timeout=60.0)
    assert first_steps(client.sample(10)) == list(range(1, 11))
    with pytest.raises(gear.DeadlineExceeded, match="sample of 1 timed out"):
        client.sample(1, timeout=0.05)


def test_a_waiting_insert_is_let_in_by_a_sample_of_another_thread(make):
    client = make(limiter=gear.Stack(1))
    client.insert(rows(3, 0))
    thread = threading.Thread(target=client.insert, args=(rows(3, 1),))
    thread.start()
    assert first_steps(client.sample(1)) == [0]
    thread.join()
    assert first_steps(client.sample(1)) == [1]


def test_a_request_for_2_with_one_single_use_item_gives_1(make):
    """Origin: Reverb, SampleFlexibleBatch."""
    client = make(max_times_sampled=1)
    client.insert(rows(3, 7))
    assert first_steps(client.sample(2)) == [7]


def test_a_distinct_batch_that_is_too_large_says_how_many_items_there_are(make):
    client = make(distinct=True)
    for number in range(3):
        client.insert(rows(3, number))
    assert sorted(first_steps(client.sample(3))) == [0, 1, 2]
    with pytest.raises(gear.DeadlineExceeded, match="3 items can be drawn and a batch of 4 distinct ones"):
        client.sample(4, timeout=0.05)


@pytest.mark.parametrize("sampler", [gear.Lifo(), gear.MaxHeap(), gear.MinHeap(), gear.Epochs()])
def test_every_sampler_serves_batches(make, sampler):
    client = make(sampler=sampler)
    for number in range(4):
        client.insert(rows(3, number), priority=float(number))
    assert len(set(first_steps(client.sample(4)))) == (4 if isinstance(sampler, gear.Epochs) else 1)

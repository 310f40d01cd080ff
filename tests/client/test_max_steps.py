"""Batches by a budget of steps: as full as whole items allow, never above it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear
from tests.transport.conftest import server

__all__ = ["server"]

OBS = gear.Column("obs", (), "int64")
FIFO = {"item": gear.Whole(), "sampler": gear.Fifo(), "max_times_sampled": 1}


def table(name="t", **fields):
    return gear.Table(name, [OBS], gear.Trajectories(64), mean_length=8, max_length=32, **{**FIFO, **fields})


def insert(client, lengths, name="t"):
    for number, length in enumerate(lengths):
        client.insert({"obs": number * 100 + np.arange(length)}, name)


@pytest.mark.parametrize("path", ["inproc", "shm", "tcp"])
def test_eight_sequences_of_7_under_a_cap_of_8_are_eight_batches(request, path):  # origin: verl#7553, OpenRLHF#1280
    if path == "inproc":
        client = gear.embedded([])
    else:
        client = gear.connect(request.getfixturevalue("server").address, path=path)
    with client:
        name = f"cap-{path}"
        client.create_table(table(name))
        insert(client, [7] * 8, name)
        query = gear.Query(table=name, max_steps=8, layout="packed")
        batches = [client.sample(query) for _ in range(8)]
        assert [batch["obs"].tolist() for batch in batches] == [list(range(n * 100, n * 100 + 7)) for n in range(8)]
        with pytest.raises(gear.DeadlineExceeded):
            client.sample(query, timeout=0.05)


def test_an_item_longer_than_the_cap_is_an_error_or_comes_alone():  # origin: verl#7553
    with gear.embedded([table()]) as client:
        insert(client, [5, 21, 5])
        assert len(client.sample(gear.Query(max_steps=20)).ids) == 1
        with pytest.raises(gear.DataError, match="an item of 21 steps .* does not fit into max_steps=20"):
            client.sample(gear.Query(max_steps=20))
        assert client.info()["tables"]["t"]["pins"] == 0
        alone = gear.Query(max_steps=20, overlong="alone")
        assert [client.sample(alone).lengths.tolist() for _ in range(2)] == [[21], [5]]


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30), cap=st.integers(9, 40))
def test_every_item_comes_once_in_order_and_no_batch_could_have_held_the_next(lengths, cap):
    with gear.embedded([table()]) as client:
        insert(client, lengths)
        got = []
        while len(got) < len(lengths):
            batch = client.sample(gear.Query(max_steps=cap, layout="packed"))
            taken = batch.lengths.tolist()
            assert sum(taken) <= cap
            behind = len(got) + len(taken)
            assert behind == len(lengths) or sum(taken) + lengths[behind] > cap
            got += taken
        assert got == lengths


@pytest.mark.parametrize("sampler", [gear.Uniform(), gear.Prioritized(), gear.Epochs()])
def test_what_does_not_fit_leaves_no_trace(sampler):
    with gear.embedded([table(sampler=sampler, max_times_sampled=0)]) as client:
        insert(client, [3, 4, 5, 6] * 4)
        for _ in range(30):
            batch = client.sample(gear.Query(max_steps=17, layout="packed"))
            assert 12 <= len(batch["obs"]) <= 17
        figures = client.info()["tables"]["t"]
        assert (figures["pins"], figures["reserved_items"], figures["held_blocks"]) == (0, 0, 0)


def test_the_size_bounds_it_too_and_defaults_to_what_fits():
    assert (gear.Query().size, gear.Query(max_steps=65536).size, gear.Query(4, max_steps=99).size) == (256, 65536, 4)
    with gear.embedded([table()]) as client:
        insert(client, [3] * 9)
        assert len(client.sample(gear.Query(2, max_steps=30)).ids) == 2
    with pytest.raises(gear.SchemaError, match="overlong must be 'error' or 'alone'"):
        gear.Query(max_steps=8, overlong="skip")

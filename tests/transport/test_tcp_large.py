"""Batches that come with their selection, of a size that threads of the shard gather together."""

from __future__ import annotations

import numpy as np
import pytest

import gear
from gear.server.gatherer import AT_ONCE, COPIED, SHARED
from gear.transport import reach
from gear.transport import tcp as path
from gear.transport.message import PIECE
from gear.views import View

SILENCE = "10"
"""Of the `server`: nothing here is about silence."""

STEPS = 16
ROW = 8 + 1  # a number, and its place in the mask


@pytest.fixture
def table(name) -> gear.Table:
    columns = [gear.Column("k", (), "int64")]
    return gear.Table(name, columns, gear.Steps(4000), item=gear.Window(STEPS), mean_length=2 * STEPS)


@pytest.fixture(params=["lane", "ZeroMQ"])
def clients(server, table, request, monkeypatch):
    """One over each path, with a table whose every row says which it is."""
    if request.param == "ZeroMQ":
        address_of = reach.lane_address
        monkeypatch.setattr(reach, "lane_address", lambda at, to: address_of(at, to) if at.startswith("ipc") else None)
    with gear.connect(server.address, path="tcp") as tcp, gear.connect(server.address, path="shm") as shm:
        tcp.create_table(table)
        for first in range(0, 3000, 60):
            tcp.insert({"k": np.arange(first, first + 60)}, table.name, wait=False)
        tcp.flush()
        yield tcp, shm


@pytest.mark.parametrize("nbytes", [COPIED // 2, AT_ONCE // 2, SHARED - SHARED // 4, 2 * SHARED, 2 * PIECE, 3 * PIECE])
def test_batches_of_every_size_are_those_of_shared_memory(clients, table, nbytes):
    tcp, shm = clients
    size = nbytes // (STEPS * ROW)
    batch = tcp.sample(size, table.name)
    again = tcp.sample(size, table.name, out=tcp.sample(size, table.name))
    for one in (batch, again):
        same = shm.collect(shm.select(ids=one.ids, table=table.name))
        np.testing.assert_array_equal(one.buffer[: one.plan.nbytes], same.buffer)
        assert (np.diff(one["k"], axis=1) == 1).all()


def test_a_new_batch_is_the_memory_that_it_came_in_and_nobody_elses(clients, table, monkeypatch):
    tcp, _ = clients
    monkeypatch.setattr(path, "place", None)  # nothing is copied
    one, two = tcp.sample(2000, table.name), tcp.sample(2000, table.name)
    one["k"][:] = -1
    assert (np.diff(two["k"], axis=1) == 1).all()
    assert not np.shares_memory(one.buffer, two.buffer)


def test_views_are_gathered_together_too(clients, table):
    tcp, shm = clients
    query = gear.Query(12_000, views=(View("k"), View("k", name="next", shift=1), View("k", name="two", length=2)))
    batch = tcp.sample(query, table.name)
    assert batch.plan.nbytes > 2 * SHARED
    same = shm.collect(shm.select(ids=batch.ids, table=table.name), columns=query.views)
    for name in batch:
        np.testing.assert_array_equal(batch[name], same[name])

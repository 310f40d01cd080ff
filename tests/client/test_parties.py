"""One selection for several clients, as the stages of a pipeline share it; over shared memory."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import gear

TABLE = gear.Table(
    "t",
    [gear.Column("obs", (2,)), gear.Column("reward")],
    gear.Trajectories(4),
    item=gear.Whole(),
    mean_length=8,
    max_length=16,
)


def rows(value: float) -> dict[str, np.ndarray]:
    return {"obs": np.full((8, 2), value, np.float32), "reward": np.full(8, value, np.float32)}


def test_two_clients_collect_their_columns_of_one_selection_while_it_is_evicted(start_server):
    server = start_server()
    with gear.connect(server.address) as first, gear.connect(server.address) as second:
        first.create_table(TABLE)
        first.insert(rows(1.0))
        selection = first.select(3, parties=2)
        sent = gear.Selection.from_bytes(selection.to_bytes())
        one = first.collect(selection, columns=["obs"])
        for k in range(6):
            first.insert(rows(2.0 + k))
        two = second.collect(sent, columns=["reward"])
        assert set(one) == {"obs"}
        assert (one["obs"] == 1).all()
        assert (two["reward"] == 1).all()
        first.release(selection)
        assert first.info()["tables"]["t"]["pins"] == 1
        second.release(sent)
        deadline = time.monotonic() + 60
        while first.info()["tables"]["t"]["pins"] or second.info()["tables"]["t"]["held_blocks"]:
            assert time.monotonic() < deadline
        assert first.info()["tables"]["t"]["sampled_items"] == 3
        with pytest.raises(gear.PinLost):
            second.collect(sent)


def test_a_party_that_never_comes_does_not_keep_the_rows_for_ever(start_server):
    server = start_server()
    with gear.connect(server.address) as client:
        client.create_table(TABLE)
        client.insert(rows(1.0))
        selection = client.select(3, parties=2, ttl=0.2)
        assert (client.collect(selection)["obs"] == 1).all()
        client.release(selection)
        deadline = time.monotonic() + 60
        while client.info()["tables"]["t"]["pins"]:
            assert time.monotonic() < deadline


def test_an_abandoned_selection_ends_at_its_deadline(start_server):
    server = start_server()
    with gear.connect(server.address) as client:
        client.create_table(TABLE)
        client.insert(rows(1.0))
        selection = client.select(3, ttl=0.2)
        deadline = time.monotonic() + 60
        while client.info()["tables"]["t"]["pins"] or client.info()["tables"]["t"]["reserved_items"]:
            assert time.monotonic() < deadline
        with pytest.raises(gear.PinLost, match="deadline passed"):
            client.collect(selection)


def test_a_selection_of_another_server_is_refused_not_read_as_other_rows(start_server):
    with gear.connect(start_server().address) as one, gear.connect(start_server().address) as other:
        for client, value in ((one, 1.0), (other, 2.0)):
            client.create_table(TABLE)
            client.insert(rows(value))
        foreign = gear.Selection.from_bytes(one.select(2, parties=2).to_bytes())
        other.select(2, parties=2)
        with pytest.raises(gear.PinLost):
            other.collect(foreign)


def test_an_insert_keeps_its_deadline_while_the_server_is_stopped(start_server):
    server = start_server()
    with gear.connect(server.address) as client:
        client.create_table(TABLE)
        client.insert(rows(1.0))
        pid = client.info()["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError, match="unknown|no answer"):
                client.insert(rows(2.0), timeout=0.2)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert client.info(timeout=20.0)["tables"]["t"]["trajectories"] >= 1

"""Idle leases are called back when another client comes; over shared memory, with a real server."""

from __future__ import annotations

import time

import numpy as np

import gear


def test_idle_leases_beyond_the_share_come_back_when_a_second_client_connects(start_server):
    server = start_server()
    table = gear.Table(
        "t", [gear.Column("x")], gear.Trajectories(2000), item=gear.Whole(), mean_length=1, block_steps=1
    )
    with gear.connect(server.address) as first:
        first.create_table(table)
        for _ in range(600):  # its pool grows with use
            first.insert({"x": np.zeros(1, np.float32)}, wait=False)
        first.flush()
        info = first.info()["tables"]["t"]
        share_of_two = info["reserve_blocks"] // 4
        assert info["leased_blocks"] > share_of_two
        with gear.connect(server.address) as second:
            second.insert({"x": np.zeros(1, np.float32)}, "t")
            deadline = time.monotonic() + 60
            while second.info()["tables"]["t"]["leased_blocks"] > 2 * share_of_two:
                assert time.monotonic() < deadline
            first.insert({"x": np.ones(1, np.float32)})
            assert second.info()["tables"]["t"]["trajectories"] == 602

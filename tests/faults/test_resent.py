"""An insert whose acknowledgement was lost is done once, whatever has become of its trajectory and of the shard."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import gear
from gear.client.client import Client
from gear.transport.shm import ShmSession
from gear.transport.tcp import TcpSession
from tests.server.test_supervisor import gone
from tests.transport.helpers import Proxy, eventually

pytestmark = pytest.mark.faults

TABLE = gear.Table("t", [gear.Column("k", (), "int64")], gear.Trajectories(64), item=gear.Whole(), mean_length=3)


def rows(number: int) -> dict[str, np.ndarray]:
    return {"k": np.full(3, number)}


@pytest.mark.parametrize("kind", [ShmSession, TcpSession], ids=["shm", "tcp"])
def test_the_acknowledgement_is_lost_the_item_evicted_the_shard_crashed_the_insert_resent(start_server, faults, kind):
    if kind is TcpSession and not faults.long:
        pytest.skip("the other path is enough: --faults-long, or make test-faults")
    server = start_server("--client-timeout", "10", "--max-restarts", "9")
    proxy = Proxy(server.address)
    try:
        with gear.connect(server.address) as others, Client(proxy.session(kind)) as client:
            others.create_table(TABLE)
            client.insert(rows(1))
            client.insert(rows(2))  # it has leases now for one more at least

            def inserted() -> int:
                return others.info(timeout=30.0)["tables"]["t"]["inserted_trajectories"]

            proxy.lose_answers()
            client.insert(rows(3), wait=False)
            eventually(lambda: inserted() == 3, "it is committed")
            others.insert_many([rows(number) for number in range(100, 170)])
            assert others.info()["tables"]["t"]["evicted_trajectories"] == 3 + 6
            pid = others.info()["pid"]
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: gone(pid), "the shard is dead")
            proxy.tell_again()
            client.flush(60.0)  # resent: it has no acknowledgement
            client.insert(rows(4), timeout=60.0)
            assert inserted() == 3 + 70 + 1
            page = next(others.scan("t"))
            selection = others.select(ids=page.ids)
            assert sorted(others.collect(selection)["k"][:, 0].tolist()) == [4, *range(107, 170)]
            others.release(selection)
    finally:
        proxy.close()

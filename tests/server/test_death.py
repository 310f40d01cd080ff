"""One shard of two is killed and not started again: the other goes on serving, clients with it; everybody is told."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gear
from gear.errors import ConnectionLost, DeadlineExceeded
from gear.parts import holders
from gear.server import cli
from gear.storage.fields import ID_SHARD_SHIFT
from gear.toml import from_toml, to_toml
from gear.transport.discovery import discover
from tests.server.test_supervisor import gone
from tests.transport.helpers import eventually

pytestmark = pytest.mark.faults

OPTIONS = ("--devices", "cpu:2", "--client-timeout", "2", "--max-restarts", "0")

STEP = {"k": np.zeros(2, np.int64)}


def declare(name: str = "t", **fields) -> gear.Table:
    fields = {"capacity": gear.Trajectories(1000), "item": gear.Whole(), "mean_length": 4, **fields}
    return gear.Table(name, [gear.Column("k", (), "int64")], **fields)


def on(home: int) -> str:
    """The name of a table whose home is that shard."""
    return next(name for name in map("t{}".format, range(99)) if holders(declare(name), 2)[0] == home)


class Killer:
    """A server of two shards, one of which can be killed."""

    def __init__(self, server) -> None:
        self.server, self.address = server, server.address

    def kill(self, client: gear.Client, shard: int) -> None:
        pid = client.info()["shards"][str(shard)]["pid"]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: gone(pid), "the shard is dead")
        eventually(lambda: len(discover(self.address, "", 60.0).shards) == 1, "the supervisor knows")
        eventually(lambda: client._session.session(shard).lost, "the client knows")


@pytest.fixture
def killer(start_server) -> Iterator[Killer]:
    killer = Killer(start_server(*OPTIONS, "--metrics-port", "0"))
    yield killer
    assert killer.server.stop() == 1
    assert "1 of 2 shards go on serving" in killer.server.log.read_text()


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_the_living_shard_serves_on(killer, path, capsys):
    with gear.connect(killer.address, path=path) as client:
        client.create_table(declare())
        client.create_table(declare("ordered", sampler=gear.Fifo(), limiter=gear.MinSize(1)))
        for number in range(20):
            client.insert({"k": np.full(2, number)}, "t")
        client.sample(8, "t")
        before = client.sample(64, "t")
        held = client.select(64, "t")
        killer.kill(client, 1)
        for number in range(20, 40):
            client.insert({"k": np.full(2, number)}, "t", timeout=20.0)
        client.insert_many([STEP] * 30, "t", timeout=20.0)
        with client.writer("t") as writer:
            writer.append({"k": 5})
            writer.end()
        client.flush()
        for _ in range(5):
            batch = client.sample(64, "t", timeout=20.0)
            assert set((batch.ids >> ID_SHARD_SHIFT & 0xFF).tolist()) == {0}
        dead = before.ids >> ID_SHARD_SHIFT & 0xFF == 1
        assert 0 < dead.sum() < 64
        client.release(held)
        info = client.info()
        assert {shard: state["ready"] for shard, state in info["shards"].items()} == {"0": True, "1": False}
        assert sum(len(page) for page in client.scan("t")) == info["tables"]["t"]["items"] == 10 + 20 + 30 + 1
        client.create_table(declare())  # it exists
        with pytest.raises(ConnectionLost, match="'new' cannot be created: shard 1"):
            client.create_table(declare("new"))
        client.reset("t")
        with pytest.raises(ConnectionLost, match=r"'q' is not among .*\(t\); shard 1, which may hold it"):
            client.insert(STEP, "q")  # were it on that shard, to make it here would make another one
    with gear.connect(killer.address, path=path) as late:
        late.insert(STEP, "t", timeout=20.0)
        assert len(late.sample(4, "t", timeout=20.0).ids) == 4
    assert cli.main(["info", killer.address]) == 0
    assert "ready: False" in capsys.readouterr().out
    url = f"http://{killer.server.fields['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=60.0) as answer:  # our own, on loopback
        text = answer.read().decode()
    assert 'gear_shard_up{shard="0"} 1.0' in text
    assert 'gear_shard_up{shard="1"} 0.0' in text


@pytest.mark.parametrize("path", ["tcp"])
def test_what_was_under_way_to_the_dead_shard_is_said_to_be_lost(killer, path):
    with gear.connect(killer.address, path=path) as client, gear.connect(killer.address, path=path) as filler:
        client.create_table(declare(limiter=gear.SampleToInsertRatio(1.0, 1, (0.0, 10.0))))
        home = holders(declare(), 2)[0]
        for _ in range(10):
            filler.insert(STEP, "t", timeout=20.0)
        for _ in range(10):  # they wait for the limiter, half of them on each shard
            client.insert(STEP, "t", wait=False)
        eventually(lambda: client.info()["tables"]["t"]["waiting_writers"] == 2, "they wait")
        port = client._tables.port("t", 1.0)
        assert [part.session.pending(part.open) for part in port._ports] == [5, 5]
        writer = client.writer("t")
        while writer._track._port.shard == home:
            writer._track._choose()
        writer._track._place(writer._track._piece.extend())
        killer.kill(client, 1 - home)
        with pytest.raises(
            ConnectionLost, match=f"shard {1 - home} of the server died: 5 trajectories .* lost or unknown"
        ):
            client.flush(timeout=60.0)
        with pytest.raises(DeadlineExceeded, match="5 commits"):
            client.flush(timeout=0.1)  # said once; the others still wait
        client.sample(6, "t", timeout=20.0)
        client.flush(timeout=20.0)
        writer.append({"k": 1})
        writer.end(timeout=20.0)
        client.sample(2, "t", timeout=20.0)
        writer.close()


def test_writers_that_lose_their_shard_say_so_and_go_on_with_the_other(killer):
    with gear.connect(killer.address) as client:
        client.create_table(declare(block_steps=2))
        client.create_table(declare("envs", block_steps=2))
        writers = [client.writer("t") for _ in range(2)]
        for writer in writers:
            for step in range(5):
                writer.append({"k": step})
        assert {writer._track._port.shard for writer in writers} == {0, 1}
        envs, steps = client.writer("envs", num_envs=4, autoreset="disabled"), {"k": np.arange(4)}
        for _ in range(5):
            envs.append(steps)
        killer.kill(client, 1)
        lost, kept = sorted(writers, key=lambda writer: -writer._track._port.shard)
        with pytest.raises(ConnectionLost, match="5 rows of the unended trajectory are lost"):
            lost.end()
        kept.end()
        lost.append({"k": 9})
        lost.end()
        for writer in writers:
            writer.close()
        assert client.info()["tables"]["t"]["steps"] == 6
        errors = 0
        for _ in range(20):
            try:
                envs.append(steps)
            except ConnectionLost:
                errors += 1
        assert errors == 2
        envs.end()
        envs.close()
        assert client.info()["tables"]["envs"]["trajectories"] == 4


@pytest.mark.parametrize("path", ["shm"])
def test_without_the_home_of_its_limiter_a_table_waits_and_says_for_whom(killer, path):
    with gear.connect(killer.address, path=path) as client:
        name = on(1)
        client.create_table(declare(name, limiter=gear.SampleToInsertRatio(1.0, 2, (0.0, 8.0))))
        for _ in range(6):
            client.insert(STEP, name, timeout=20.0)
        client.sample(2, name, timeout=20.0)
        killer.kill(client, 1)
        with pytest.raises(ConnectionLost, match=f"shard 1, the home of the limiter of table '{name}', is gone"):
            client.sample(2, name, timeout=20.0)
        with pytest.raises(DeadlineExceeded, match=f"shard 1, the home of the limiter of table '{name}', is gone"):
            client.insert(STEP, name, timeout=1.0)


def test_the_home_goes_on_without_a_borrower_and_counts_what_it_reported(killer):
    with gear.connect(killer.address) as client:
        name = on(0)
        client.create_table(declare(name, limiter=gear.SampleToInsertRatio(1.0, 2, (0.0, 8.0))))
        for _ in range(8):
            client.insert(STEP, name, timeout=20.0)
        with pytest.raises(DeadlineExceeded):
            client.insert(STEP, name, timeout=0.2)
        client.sample(2, name, timeout=20.0)
        killer.kill(client, 1)
        for _ in range(2):
            client.insert(STEP, name, timeout=20.0)
        with pytest.raises(DeadlineExceeded, match="10 items inserted on all shards, 2 sampled"):
            client.insert(STEP, name, timeout=0.2)
        client.sample(8, name, timeout=20.0)
        with pytest.raises(DeadlineExceeded, match="waits for inserts"):
            client.sample(1, name, timeout=0.2)


def test_the_last_shard_ends_the_server(start_server):
    server = start_server(*OPTIONS)
    with gear.connect(server.address) as client:
        pids = [state["pid"] for state in client.info()["shards"].values()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert server.process.wait(60) == 1
        with pytest.raises(ConnectionLost, match="every shard of the server is gone"):
            client.info()
    assert not Path(f"/proc/{pids[0]}").exists()


def test_a_signal_ends_all_shards_and_leaves_nothing(start_server, tmp_path, capsys):
    file = tmp_path / "tables.toml"
    declared = [declare("one", limiter=gear.MinSize(3)), declare("two", sampler=gear.Fifo())]
    file.write_text(to_toml(declared))
    server = start_server("--devices", "cpu:2", "--memory", "64MiB", "--tables", str(file))
    assert cli.main(["tables", server.address]) == 0
    assert from_toml(capsys.readouterr().out) == declared
    assert server.fields["devices"] == "cpu:2"
    assert server.fields["memory"] == "2x32.00MiB"
    with gear.connect(server.address) as client:
        client.create_table(declare())
        states = client.info()["shards"]
        folder = client._session.session(0)._door.directory.parent
        assert sorted(path.name for path in folder.iterdir()) == ["shard-0", "shard-1"]
    assert server.stop() == 0
    assert all(gone(state["pid"]) for state in states.values())
    assert not folder.exists()


def test_shards_outlive_their_supervisor(start_server):
    server = start_server("--devices", "cpu:2")
    with gear.connect(server.address) as client:
        client.create_table(declare(limiter=gear.SampleToInsertRatio(1.0, 2, (0.0, 8.0))))
        client.insert(STEP, "t", timeout=20.0)
        server.process.kill()
        server.process.wait(60)
        client.insert(STEP, "t", timeout=20.0)
        assert len(client.sample(2, "t", timeout=20.0).ids) == 2
        pids = [state["pid"] for state in client.info()["shards"].values()]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: all(map(gone, pids)), "they end when they are told to", 20.0)

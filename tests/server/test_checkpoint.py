"""Checkpoints of real servers: saved under load, by the clock and at the end; restored, refused; a deploy."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import gear
from gear.errors import CheckpointError
from gear.server.reinsert import Reader
from gear.server.schedule import Checkpoints
from gear.storage import manifest, shelf
from gear.storage.table import StoredTable
from tests.storage.test_checkpoint import save
from tests.transport.helpers import eventually

from .test_restart import Ledger, declare, trajectory
from .test_supervisor import gone


def stored(client: gear.Client, table: str = "t") -> dict[int, list[int]]:
    """What is there: the steps of each trajectory, by its number."""
    found = {}
    for page in client.scan(table):
        selection = client.select(table=table, ids=page.ids)
        batch = client.collect(selection)
        client.release(selection)
        for k, t, length in zip(batch["k"], batch["t"], batch.lengths.tolist(), strict=True):
            assert (k[:length] == k[0, 0]).all()
            found[int(k[0, 0])] = t[:length].tolist()
    return found


def held(path: Path, table: str = "t") -> dict[int, list[int]]:
    """The same of what a checkpoint holds."""
    found = {}
    for part in manifest.load(path).parts:
        for saved in part.tables:
            for _, one in Reader(path, saved) if saved.name == table else ():
                assert (one.columns["k"] == one.columns["k"][0, 0]).all()
                found[int(one.columns["k"][0, 0])] = one.columns["t"].tolist()
    return found


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from gear.server.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


def test_a_restored_server_holds_what_was_saved_and_draws_what_would_have_been_drawn(start_server, tmp_path):
    arguments = ("--devices", "cpu:2", "--checkpoint", str(tmp_path / "saved"))
    server, seen = start_server(*arguments), []
    with gear.connect(server.address) as client:
        client.create_table(declare(sampler=gear.Prioritized(0.6)))
        client.create_table(declare("u", sampler=gear.Uniform(), shards=1))
        for number in range(1, 400):
            client.insert(trajectory(number), "t", priority=1.0 + number % 7)
            client.insert(trajectory(number), "u")
        client.publish("policy", {"w": np.arange(10.0)})
        before = stored(client), stored(client, "u")
        client.sample(16, "u")
        done = client.checkpoint(progress=lambda *state: seen.append(state))
        assert done.trajectories == len(before[0]) + len(before[1])
        assert done.left_out == 0
        assert Path(done.path).name == "checkpoint-000001"
        assert seen[-1] == (done.nbytes, done.nbytes)
        expected = [client.sample(16, "u").ids.tolist() for _ in range(5)]
        client.insert(trajectory(1000), "t")
        figures = client.info()["checkpoint"]
        assert (figures["bytes"], figures["failures"], figures["running"]) == (done.nbytes, 0, 0)
    server.stop()
    again = start_server(*arguments, "--restore", done.path)
    with gear.connect(again.address) as client:
        assert (stored(client), stored(client, "u")) == before
        assert [client.sample(16, "u").ids.tolist() for _ in range(5)] == expected
        assert client.fetch("policy").arrays["w"].tolist() == list(range(10))
        assert client.publish("policy", {"w": np.zeros(1)}) == 2
        for number in range(2000, 2010):
            client.insert(trajectory(number), "t")
        assert len(client.sample(64, "t").ids) == 64
        assert client.checkpoint().written > done.nbytes, "a line of its own"
        again = client.checkpoint()
        assert 0 < again.written < again.nbytes


def test_saves_go_on_by_the_clock_and_at_the_end_while_clients_work(start_server, tmp_path):
    directory = tmp_path / "saved"
    arguments = ("--checkpoint", str(directory), "--keep", "2")
    server = start_server(*arguments, "--checkpoint-every", "1s", "--metrics-port", "0")
    ledger = Ledger(server.address, "shm")
    ledger.client.create_table(declare())

    def wait() -> None:
        eventually(lambda: shelf.listed(directory) and shelf.listed(directory)[-1].number >= 3, "three saves", 60.0)

    ledger.run(wait)
    before = stored(ledger.client)
    with urllib.request.urlopen(f"http://{server.fields['metrics']}/metrics", timeout=60.0) as answer:
        text = answer.read().decode()
    assert float(re.search(r'gear_checkpoint_bytes\{shard="0"\} (\S+)', text)[1]) > 0
    assert abs(float(re.search(r'gear_checkpoint_timestamp_seconds\{shard="0"\} (\S+)', text)[1]) - time.time()) < 60
    ledger.close()
    assert "of it new" in cli("checkpoint", "save", server.address).stdout
    assert server.stop() == 0
    there = shelf.listed(directory)
    assert len(there) == 2
    assert shelf.incomplete(directory) == []
    assert held(there[-1].path) == before, "the checkpoint of the end holds all that was acknowledged"
    shown = cli("checkpoint", "inspect", str(directory))
    assert f"table t: {len(before)} trajectories" in shown.stdout
    assert "all as they were saved" in cli("checkpoint", "verify", str(there[0].path)).stdout


@pytest.mark.faults
def test_a_damaged_checkpoint_is_refused_by_name_and_none_is_passed_over(start_server, tmp_path):
    directory = tmp_path / "saved"
    arguments = ("--checkpoint", str(directory))
    server = start_server(*arguments, "--restore", "latest")  # there is none yet: said, and no error
    assert "holds no complete checkpoint" in server.log.read_text()
    with gear.connect(server.address) as client:
        client.create_table(declare())
        for number in range(1, 50):
            client.insert(trajectory(number))
            if number == 25:
                first = client.checkpoint()
        second = client.checkpoint()
    server.stop()
    last = shelf.listed(directory)[-1].path
    (directory / ".partial-0123456789abcdef").mkdir()
    for path in (Path(second.path), last):
        victim = next(path.rglob("rows-*.npy"))
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 4
        victim.unlink()  # a link of it may be part of another one
        victim.write_bytes(data)
    refused = start_server(*arguments, "--restore", "latest", ready=False)
    assert refused.process.wait(60) == 1
    assert victim.name in refused.log.read_text()
    shown = cli("checkpoint", "verify", str(last))
    assert shown.returncode == 1
    assert victim.name in shown.stderr
    again = start_server(*arguments, "--restore", first.path)
    with gear.connect(again.address) as client:
        assert len(stored(client)) == 25


def test_a_server_without_a_directory_and_one_that_cannot_write_say_so_and_go_on(start_server, tmp_path):
    directory = tmp_path / "saved"
    with gear.connect(start_server().address) as client, pytest.raises(CheckpointError, match="--checkpoint DIR"):
        client.checkpoint()
    server = start_server("--checkpoint", str(directory))
    with gear.connect(server.address) as client:
        client.create_table(declare())
        client.insert(trajectory(1))
        clash = start_server("--checkpoint", str(directory), ready=False)
        assert clash.process.wait(60) == 1
        assert "another server writes there" in clash.log.read_text()
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        directory.write_text("no directory")
        with pytest.raises(CheckpointError, match="could not be saved"):
            client.checkpoint()
        client.insert(trajectory(2))
        assert client.info()["checkpoint"]["failures"] == 1


@pytest.mark.faults
def test_memory_that_is_kept_is_not_lost_for_a_checkpoint_that_it_began_with(start_server, tmp_path):
    """A restored server of which a shard was started again is killed as a whole: its memory is newer than any file."""
    save(StoredTable(declare()), tmp_path / "saved")
    arguments = ("--checkpoint", str(tmp_path / "saved"), "--restore", "latest", "--client-timeout", "5")
    server = start_server(*arguments, discard=False)
    with gear.connect(server.address) as client:
        client.insert(trajectory(1))
        os.kill(client.info()["pid"], signal.SIGKILL)
        client.insert(trajectory(2), timeout=30.0)
        pid = client.info()["pid"]
    for victim in (server.process.pid, pid):
        os.kill(victim, signal.SIGKILL)
    server.process.wait(60)
    eventually(lambda: gone(pid), "the shard is dead")
    again = start_server("--name", server.name, *arguments, discard=False)
    with gear.connect(again.address) as client:
        assert sorted(stored(client)) == [1, 2]
    again.stop()
    start_server("--name", server.name).stop()  # --discard


def test_what_was_cut_off_is_removed_and_what_stays_is_said_to_stay(tmp_path, caplog):
    (tmp_path / ".partial-0123456789abcdef" / "shard-0").mkdir(parents=True)
    (tmp_path / "checkpoint-000003" / "shard-0").mkdir(parents=True)
    checkpoints = Checkpoints(str(tmp_path), 0, "test")
    checkpoints.tidy()
    checkpoints.close()
    assert [path.name for path in shelf.incomplete(tmp_path)] == ["checkpoint-000003"]
    assert ".partial-0123456789abcdef was never completed: removed" in caplog.text
    assert "checkpoint-000003 was never completed: it counts for nothing, remove it yourself" in caplog.text


def priorities(client: gear.Client, table: str) -> dict[int, float]:
    """The priority of each trajectory, by its number."""
    found = {}
    for page in client.scan(table):
        selection = client.select(table=table, ids=page.ids)
        numbers = client.collect(selection, columns=["n"])["n"].tolist()
        client.release(selection)
        found |= dict(zip(numbers, page.priorities.tolist(), strict=True))
    return found


def test_a_checkpoint_is_dealt_out_to_another_number_of_shards(start_server, tmp_path):
    """And back: rows, priorities, late columns and what the limiter counted are the same; ids are new."""
    columns = [
        gear.Column("k", (8,), "int64"), gear.Column("t", (), "int32"), gear.Column("n", (), "int64", per="trajectory"),
        gear.Column("late", (), "int64", per="trajectory", late=True),
    ]  # fmt: skip
    limiter = gear.SampleToInsertRatio(2.0, 1, 300.0)
    spread = gear.Table("t", columns, gear.Steps(2000), item=gear.Whole(), mean_length=8, limiter=limiter,
                        sampler=gear.Prioritized(0.6), requirements=[("late",)])  # fmt: skip
    arguments = ("--checkpoint", str(tmp_path / "saved"))
    server = start_server("--devices", "cpu:2", *arguments)
    with gear.connect(server.address) as client:
        client.create_table(spread)
        client.create_table(declare("q", limiter=gear.Queue(100)))
        for number in range(1, 60):
            one = trajectory(number) | {"n": number}
            client.insert(one, "t", priority=1.0 + number % 7)
            client.insert(trajectory(number), "q")
        for page in client.scan("t"):
            selection = client.select(table="t", ids=page.ids[::2])
            numbers = client.collect(selection, columns=["n"])["n"]
            client.release(selection)
            client.fill(selection.ids, {"late": numbers * 10})
        client.sample(32, "t")
        before = stored(client), priorities(client, "t")
        done = client.checkpoint()
        first = [client.sample(1, "q")["k"][0, 0, 0] for _ in range(3)]
        counted = client.info()["tables"]["t"]
    server.stop()
    path = done.path
    for devices in ("cpu:3", "cpu"):
        server = start_server("--devices", devices, *arguments, "--restore", path)
        with gear.connect(server.address) as client:
            assert (stored(client), priorities(client, "t")) == before
            batch = client.sample(16, "t", require=["late"])
            assert (batch["late"] == 10 * batch["n"]).all()
            figures = client.info()["tables"]["t"]
            assert figures["inserted_items"] == counted["inserted_items"] + (devices == "cpu")
            if devices == "cpu:3":
                assert [client.sample(1, "q")["k"][0, 0, 0] for _ in range(3)] == first
            client.insert(trajectory(100) | {"n": 100}, "t")
            before[0][100], before[1][100] = list(range(1 + 100 % 13)), max(before[1].values())
        assert server.stop() == 0
        path = "latest"


@pytest.mark.faults
def test_a_deploy_under_load_fails_no_call(start_server, tmp_path):
    """SIGTERM, a checkpoint, the next release started: calls wait meanwhile, and nothing is lost or twice."""
    arguments = ("--client-timeout", "5", "--checkpoint", str(tmp_path / "saved"), "--restore", "latest")
    server = start_server(*arguments, discard=False)
    port = server.address.rpartition(":")[2]
    ledgers = [Ledger(server.address, path, path) for path in ("shm", "tcp")]
    for ledger in ledgers:
        ledger.client.create_table(declare(ledger.table))

    def deploy() -> None:
        nonlocal server
        assert server.stop() == 0
        server = start_server("--name", server.name, "--port", port, *arguments, discard=False)
        assert "took up 2 tables, " in server.log.read_text()
        for ledger in ledgers:
            ledger.progress()

    ledgers[0].run(lambda: ledgers[1].run(deploy))
    for ledger in ledgers:
        ledger.check()
        ledger.close()
    server.stop()
    assert len(shelf.listed(tmp_path / "saved")) == 2
    start_server("--name", server.name).stop()  # --discard


def test_evictions_during_a_save_leave_a_consistent_checkpoint(start_server, tmp_path):
    server = start_server("--checkpoint", str(tmp_path / "saved"))
    with gear.connect(server.address) as client:
        client.create_table(declare(capacity=gear.Steps(200_000)))
        for number in range(1, 3000):
            client.insert(trajectory(number), wait=False)
        client.flush()
        over = threading.Event()

        def write() -> None:
            number = 3000
            with gear.connect(server.address) as other:
                while not over.is_set():
                    other.insert(trajectory(number))
                    number += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            saved = [client.checkpoint() for _ in range(3)]
        finally:
            over.set()
            thread.join()
    there = held(Path(saved[-1].path))
    assert len(there) == saved[-1].trajectories
    assert all(steps == list(range(1 + number % 13)) for number, steps in there.items())
    numbers = sorted(there)
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "nothing is missing between two that are there"

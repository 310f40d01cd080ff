"""A shard that is killed is started again and takes up its tables; so does a server that was killed as a whole."""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

import gear
from gear.parts import holders
from gear.server.runtime import runtime_directory
from tests.server.test_supervisor import gone
from tests.transport.helpers import eventually

pytestmark = pytest.mark.faults

COLUMNS = [gear.Column("k", (8,), "int64"), gear.Column("t", (), "int32")]


def declare(name: str = "t", **fields) -> gear.Table:
    fields = {"capacity": gear.Steps(2000), "item": gear.Whole(), "mean_length": 8, **fields}
    return gear.Table(name, COLUMNS, **fields)


def trajectory(number: int) -> dict[str, np.ndarray]:
    length = 1 + number % 13
    return {"k": np.full((length, 8), number), "t": np.arange(length, dtype=np.int32)}


class Ledger:
    """Writers insert numbered trajectories and note which were acknowledged; what is stored is held against that."""

    def __init__(self, address: str, path: str, table: str = "t") -> None:
        self.address, self.path, self.table = address, path, table
        self.acknowledged: list[int] = []
        self.stopping = threading.Event()
        self.errors: list[Exception] = []
        self.numbers = iter(range(1, 1 << 40))
        self.lock = threading.Lock()
        self.sampled = 0
        self.client = gear.connect(address, path=path)

    def write(self) -> None:
        try:
            while not self.stopping.is_set():
                with self.lock:
                    number = next(self.numbers)
                self.client.insert(trajectory(number), self.table, timeout=30.0)
                with self.lock:
                    self.acknowledged.append(number)
        except Exception as error:
            self.errors.append(error)

    def read(self) -> None:
        try:
            with gear.connect(self.address, path=self.path) as client:
                while not self.stopping.is_set():
                    batch = client.sample(8, self.table, timeout=30.0)
                    for k, t, length in zip(batch["k"], batch["t"], batch.lengths.tolist(), strict=True):
                        assert (k[:length] == k[0, 0]).all(), "rows of two trajectories are mixed"
                        assert t[:length].tolist() == list(range(length)), "an item is torn"
                        assert length == 1 + k[0, 0] % 13, "an item is torn"
                    self.sampled += 1
        except Exception as error:
            self.errors.append(error)

    def run(self, disturb: Callable[[], None], writers: int = 2, readers: int = 1) -> None:
        threads = [threading.Thread(target=self.write) for _ in range(writers)]
        threads += [threading.Thread(target=self.read) for _ in range(readers)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: len(self.acknowledged) > 50 or self.errors, "they work", 30.0)
            disturb()
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join(60)
        assert not self.errors, self.errors

    def progress(self) -> None:
        """Wait until inserts and samples go on."""
        inserted, sampled = len(self.acknowledged), self.sampled
        eventually(
            lambda: (len(self.acknowledged) > inserted + 20 and self.sampled > sampled) or self.errors,
            "inserts and samples go on", 30.0,
        )  # fmt: skip
        assert not self.errors, (self.errors, self.why())

    def why(self):
        session = self.client._session
        return [(s._talk._error, s._talk.link.lost) for s in getattr(session, "_sessions", {0: session}).values()]

    def check(self, capacity: bool = True) -> None:
        """Acknowledged is stored or evicted, oldest first; nothing is there twice, nothing unknown."""
        figures = self.client.info()["tables"][self.table]
        stored: list[int] = []
        for page in self.client.scan(self.table):
            selection = self.client.select(table=self.table, ids=page.ids)
            stored += self.client.collect(selection, columns=["k"])["k"][:, 0, 0].tolist()
            self.client.release(selection)
        assert len(set(stored)) == len(stored), "a trajectory is stored twice"
        assert figures["inserted_trajectories"] == len(self.acknowledged), "inserted twice, or acknowledged and lost"
        assert len(stored) == figures["trajectories"] == len(self.acknowledged) - figures["evicted_trajectories"]
        assert set(stored) <= set(self.acknowledged)

    def close(self) -> None:
        self.client.close()


def shard_pid(client: gear.Client) -> int:
    return client.info()["pid"]


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_killed_shards_come_back_and_nothing_is_lost_or_twice(start_server, path):
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)  # noqa: T201 - for whoever looks into a failure
    random = Random(seed)
    server = start_server("--client-timeout", "15")
    ledger = Ledger(server.address, path)
    ledger.client.create_table(declare())

    def kill() -> None:
        for _ in range(2):
            time.sleep(random.random() * 0.05)
            os.kill(shard_pid(ledger.client), signal.SIGKILL)
            ledger.progress()

    ledger.run(kill)
    ledger.check()
    assert ledger.client.info()["restarts"] == 2
    ledger.close()
    again = "the shard serves again after"  # what clients may have found out before its server has
    eventually(lambda: server.log.read_text().count(again) == 2, "it is said")
    assert server.log.read_text().count("died with exit code -9 and is started again") == 2


def test_a_shard_comes_back_though_nobody_can_note_it_down(start_server):
    """Origin: a full directory of locks and records ended all shards when one had died."""
    server = start_server()
    client = gear.connect(server.address)
    client.create_table(declare())
    name = client.info()["name"]
    blocked = runtime_directory() / f"{name}.new"
    blocked.mkdir()
    try:
        os.kill(shard_pid(client), signal.SIGKILL)
        client.insert(trajectory(1), "t")
        eventually(lambda: "cannot be noted down" in server.log.read_text(), "it is said")
        assert client.info()["restarts"] == 1
    finally:
        blocked.rmdir()
    client.close()


def test_a_server_killed_as_a_whole_goes_on_when_it_is_started_again(start_server):
    """Supervisor and shard die at once; clients wait, and what waits for them is found by the next start."""
    server = start_server("--client-timeout", "15", discard=False)
    ledger = Ledger(server.address, "shm")
    ledger.client.create_table(declare(sampler=gear.Prioritized(0.6)))
    port, again = server.address.rpartition(":")[2], server

    def kill() -> None:
        nonlocal again
        pid = shard_pid(ledger.client)
        for victim in (server.process.pid, pid):
            os.kill(victim, signal.SIGKILL)
        server.process.wait(60)
        eventually(lambda: gone(pid), "the shard is dead")
        again = start_server("--name", server.name, "--port", port, "--client-timeout", "15", discard=False)
        assert "took up 1 table, " in again.log.read_text()
        ledger.progress()

    ledger.run(kill)
    ledger.check()
    ledger.close()
    again.stop()
    start_server("--name", server.name).stop()  # --discard


def test_a_supervisor_takes_over_shards_that_outlived_the_one_before(start_server):
    server = start_server("--devices", "cpu:2", "--client-timeout", "15", discard=False)
    port = server.address.rpartition(":")[2]
    with gear.connect(server.address) as client:
        client.create_table(declare())
        for number in range(50):
            client.insert(trajectory(number))
        pids = {state["pid"] for state in client.info()["shards"].values()}
        server.process.kill()
        server.process.wait(60)
        client.insert(trajectory(50))
        arguments = ("--name", server.name, "--port", port, "--devices", "cpu:2", "--client-timeout", "15")
        again = start_server(*arguments, discard=False)
        assert again.log.read_text().count("outlived its supervisor and is taken over") == 2
        assert {state["pid"] for state in client.info()["shards"].values()} == pids
        with gear.connect(server.address) as another:
            assert another.info()["tables"]["t"]["trajectories"] == 51
        victim = pids.pop()
        os.kill(victim, signal.SIGKILL)  # it is the new one's to start again
        eventually(lambda: "serves again" in again.log.read_text(), "it was started again", 30.0)
        client.insert(trajectory(51))
        assert client.info()["tables"]["t"]["trajectories"] == 52
        client.reset("t")
    assert again.stop() == 0
    start_server("--name", server.name, "--devices", "cpu:2").stop()


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_the_other_shard_serves_while_one_is_started_again(start_server, path):
    """Learners go on with what the other one holds; later all is there again, under one limiter."""
    server = start_server("--devices", "cpu:2", "--client-timeout", "15", "--metrics-port", "0")
    ledger = Ledger(server.address, path)
    ledger.client.create_table(declare(limiter=gear.MinSize(20)))
    stopped = {}

    def kill() -> None:
        for shard in ("0", "1"):
            pid = ledger.client.info()["shards"][shard]["pid"]
            sampled = ledger.sampled
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            eventually(lambda before=sampled: ledger.sampled > before + 5 or ledger.errors, "samples go on", 30.0)
            stopped[shard] = time.monotonic() - began
            ledger.progress()
            eventually(lambda n=int(shard) + 1: server.log.read_text().count("serves again") == n, "it is back", 30.0)

    ledger.run(kill, writers=3, readers=2)
    ledger.check()
    assert ledger.client.info()["restarts"] == 2
    ledger.close()
    with urllib.request.urlopen(f"http://{server.fields['metrics']}/metrics", timeout=60.0) as answer:
        text = answer.read().decode()
    assert 'gear_shard_restarts_total{shard="0"} 1.0' in text
    assert 'gear_shard_up{shard="1"} 1.0' in text


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_what_names_items_waits_for_a_shard_that_is_started_again(start_server, path):
    """A listing, a read by ids and a reset are of the whole table; only draws do without a part of it."""
    server = start_server("--devices", "cpu:2", "--client-timeout", "15")
    with gear.connect(server.address, path=path) as client:
        client.create_table(declare())
        for number in range(40):
            client.insert(trajectory(number))

        def kill() -> None:
            session = client._session.session(1)
            before = session._talk.link.reconnects
            os.kill(client.info()["shards"]["1"]["pid"], signal.SIGKILL)
            eventually(lambda: session.away or session._talk.link.reconnects > before, "the client knows")

        kill()
        ids = np.concatenate([page.ids for page in client.scan()])
        assert len(ids) == 40
        kill()
        selection = client.select(ids=ids)
        assert set(client.collect(selection)["k"][:, 0, 0].tolist()) == set(range(40))
        client.release(selection)
        kill()
        client.reset("t")
        assert client.info()["tables"]["t"]["trajectories"] == 0


def test_a_table_of_a_shard_that_does_not_answer_is_not_said_to_be_missing(start_server):
    """Origin: a consumer asked for its queue while the one shard that holds it was being started again, and was told
    by the other one that there is no such table."""
    server = start_server("--devices", "cpu:2", "--client-timeout", "15")
    with gear.connect(server.address) as client:
        for name in ("one", "other"):  # ordered tables lie on one shard
            client.create_table(declare(name, sampler=gear.Fifo()))
        pids = {int(shard): state["pid"] for shard, state in client.info()["shards"].items()}
        with gear.connect(server.address) as late:
            home = holders(declare("one", sampler=gear.Fifo()), 2)[0]
            os.kill(pids[home], signal.SIGSTOP)
            try:
                for table in ("one", None):
                    with pytest.raises(gear.DeadlineExceeded, match="no answer of the server in time"):
                        late.sample(1, table, timeout=0.3)
            finally:
                os.kill(pids[home], signal.SIGCONT)
            late.insert(trajectory(1), "one", timeout=30.0)
            with pytest.raises(gear.TableNotFound):
                late.sample(1, "none", timeout=30.0)

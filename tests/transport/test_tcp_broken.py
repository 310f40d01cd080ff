"""The tcp path over connections that break, and with ends that die: nothing is lost, doubled or left behind."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import gear
from gear.client.client import Client
from gear.errors import ConnectionLost
from gear.schema import Prioritized, Steps
from gear.transport import pieces, tcp
from gear.transport.base import Wanted
from gear.transport.negotiation import connect
from gear.transport.tcp import TcpSession
from tests.transport.helpers import Proxy, Python, eventually, fifo, figures, insert, put, table


def test_inserts_happen_exactly_once_over_a_connection_that_keeps_breaking(proxy, session, name):
    broken = proxy.session(TcpSession)
    opened = broken.create_table(table(name, capacity=Steps(20_000)), 60.0)
    chance, count = random.Random(7), 1500
    for number in range(count):
        if number % 50 == 0:
            proxy.cut_after(chance.randrange(1, 4000))  # fewer bytes than the 50 that follow have
        last = put(broken, opened, number, length=1 + number % 10, timeout=20.0)
        if number % 50 == 49:
            broken.wait(opened, last, 20.0)
    after = figures(session, name)
    assert proxy.cuts > 10
    assert broken._talk.link.reconnects > 10
    assert after["inserted_trajectories"] == count
    assert after["inserted_steps"] == sum(1 + number % 10 for number in range(count))
    everything = np.zeros(count)
    reader = Client(session)
    while not everything.all():
        batch = reader.sample(256, name)
        for values, length in zip(batch["k"], batch.lengths, strict=True):
            assert (values[:length] == values[0]).all()
            assert length == 1 + values[0] % 10
            everything[values[0]] = 1
    broken.close()
    assert figures(session, name)["leased_blocks"] == 0


def test_batches_are_whole_over_a_connection_that_keeps_breaking(proxy, session, name, monkeypatch):
    monkeypatch.setattr(pieces, "most", lambda laned: 4000)
    broken = proxy.session(TcpSession)
    opened = broken.create_table(table(name, sampler=Prioritized()), 60.0)
    for number in range(50):
        insert(broken, opened, number, length=1 + number % 10)
    client = Client(broken)
    chance = random.Random(3)
    for round_ in range(60):
        if round_ % 3 == 0:
            proxy.cut_after(chance.randrange(1, 40_000))
        batch = client.sample(200, name, timeout=20.0)
        first = batch["k"][:, :1]
        assert ((batch["k"] == first) | ~batch.mask).all()
        assert (batch.lengths == 1 + first[:, 0] % 10).all()
    broken.info(20.0)
    after = figures(session, name)
    assert proxy.cuts > 10
    assert (after["sampled_items"], after["pins"]) == (60 * 200, 0)
    broken.close()


def test_a_growing_trajectory_survives_cuts(proxy, session, name):
    broken = proxy.session(TcpSession)
    opened = broken.create_table(
        table(name, item=gear.Step(0), publish="rows", max_length=1000, mean_length=100, block_steps=7), 5.0
    )
    client, chance = Client(broken), random.Random(5)
    with client.writer(name) as writer:
        for step in range(600):
            if step % 20 == 3:
                proxy.cut_after(chance.randrange(1, 800))
            writer.append({"k": np.int64(step)})
            if step % 3 == 0:
                writer.flush(20.0)
        writer.end()
    client.flush(20.0)
    after = figures(session, name)
    assert proxy.cuts > 10
    assert (after["inserted_steps"], after["trajectories"]) == (600, 1)
    batch = Client(session).sample(5000, name)
    assert set(batch["k"].tolist()) == set(range(600))
    assert opened.lost == set()
    broken.close()


@pytest.mark.faults
def test_a_client_given_up_meanwhile_is_told(server, name):
    proxy = Proxy(server.address)
    broken = proxy.session(TcpSession)
    opened = broken.create_table(table(name), 60.0)
    insert(broken, opened, 1)
    proxy.close()
    begin = time.monotonic()
    with pytest.raises(ConnectionLost):
        broken.select(opened, Wanted(1), None)
    assert time.monotonic() - begin < 60
    broken.close()


CLIENT = """
import sys
import numpy as np
from gear.client.client import Client
from gear.transport.base import Wanted
from gear.transport.negotiation import connect
from gear.transport.pieces import Piece
session = connect(sys.argv[1], timeout=60.0, path="tcp")
opened = session.open_table(sys.argv[2], 10.0)
selection = session.select(opened, Wanted(1), 60.0)
client = Client(session)
writer = client.writer(sys.argv[2])
writer.append({"k": 77})
writer.flush()
print("holds", flush=True)
if sys.argv[3] == "collects":
    plan = client._tables.reader(sys.argv[2], None, None).plan((), 1, 1)
    piece, out = Piece(plan, slice(0, 1), 0, 0), np.zeros(plan.nbytes, np.uint8)
    while True:
        session._ask_for(opened, selection, plan, piece, out)
sys.stdin.readline()
"""


@pytest.mark.faults
@pytest.mark.parametrize("doing", ["nothing", "collects"])
def test_a_killed_client_leaves_nothing(server, session, open_session, name, doing):
    opened = session.create_table(table(name, item=gear.Step(0), publish="rows"), 60.0)
    insert(session, opened, 1)
    client = Python(CLIENT, server.address, name, doing)
    assert client.read() == "holds"
    before = figures(session, name)
    assert (before["pins"], before["trajectories"]) == (1, 2)
    client.process.kill()
    client.end()
    eventually(lambda: figures(session, name)["pins"] == 0, "its pin ended", timeout=60.0)
    after = figures(session, name)
    assert (after["leased_blocks"], after["quarantined_blocks"], after["trajectories"]) == (
        before["leased_blocks"],
        0,
        2,
    )
    eventually(lambda: session.info(60.0)["clients"]["silent"] == 0, "it was forgotten")


@pytest.mark.faults
def test_a_silent_reader_loses_its_pins_when_their_blocks_are_needed(server, session, name):
    opened = session.create_table(fifo(name=name, capacity=Steps(40), item=gear.Step(0), publish="rows"), 60.0)
    insert(session, opened, 1)
    client = Python(CLIENT, server.address, name, "nothing")
    assert client.read() == "holds"
    os.kill(client.process.pid, signal.SIGSTOP)
    try:
        for number in range(100):
            insert(session, opened, number)
    finally:
        os.kill(client.process.pid, signal.SIGCONT)
    client.say("end")
    assert client.end() == 0
    eventually(lambda: figures(session, name)["pins"] == 0, "nothing is pinned")


@pytest.mark.faults
def test_a_server_killed_in_mid_call_is_a_lost_connection_and_what_it_had_is_counted(start_server, monkeypatch):
    """Origin: flush and close said that the server is gone, not what was lost, and named a shard's port."""
    monkeypatch.setattr(tcp, "REFUSED", 1.0)
    server = start_server("--client-timeout", "30", "--max-restarts", "0")  # a client is given up after five of them
    session = connect(server.address, timeout=60.0, path="tcp")
    opened = session.create_table(table("t"), 60.0)
    client = gear.connect(server.address, path="tcp")
    rows = {"k": np.zeros(1, np.int64)}
    client.insert(rows)
    writer = client.writer("t")
    writer.extend({name: np.repeat(array, 2, 0) for name, array in rows.items()})
    errors = []

    def wait() -> None:
        try:
            session.select(opened, Wanted(1), None)
        except ConnectionLost as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    shard = session.info(60.0)["pid"]
    os.kill(shard, signal.SIGSTOP)
    thread.start()
    eventually(lambda: session._talk.led, "the thread waits")
    for _ in range(3):
        client.insert(rows, wait=False)
    os.kill(shard, signal.SIGKILL)
    thread.join(60)
    assert len(errors) == 1
    session.close()
    gone = rf"the server at {server.address} is gone \(waited \d+ s for it\)"
    lost = "commits of table 't' sent without an answer are lost or unknown"
    with pytest.raises(ConnectionLost, match=f"^{gone}.*; 3 {lost}$"):
        client.flush(60.0)
    with pytest.raises(ConnectionLost, match=f"^{gone}.*; 4 {lost}$"):  # with that of the writer's steps
        client.close()


def test_one_slow_answer_of_a_server_that_starts_its_shard_again_ends_no_client(monkeypatch):
    """Origin: a shard took half a minute to come back, its server was asked all the time and answered late once."""
    now, answers = [0.0], []
    monkeypatch.setattr(tcp, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(tcp, "refuses", lambda endpoint: True)
    session = TcpSession.__new__(TcpSession)
    session._opened, session._endpoint, session._heartbeat = {}, "tcp://127.0.0.1:1", 100.0
    session._start_afresh()
    session._talk = SimpleNamespace(link=SimpleNamespace(down_since=0.0, ending=False))
    session.listed = lambda: answers[-1]
    asked = [(14, None, True), (20, True, True), (27, None, True), (34, None, True), (36, None, False)]
    for at, answer, alive in asked:
        now[0] = at
        answers.append(answer)
        assert session._alive() is alive, at
    now[0] = 20
    answers.append(False)
    assert not session._alive()  # its word counts at once
    session._talk = None


FORK = """
import os, sys
import numpy as np
import gear
client = gear.connect(sys.argv[1], path="tcp")
big = {"k": np.arange(10)}
for number in range(20):
    client.insert(big, sys.argv[2], wait=False)
child = os.fork()
for number in range(20):
    client.insert(big, sys.argv[2], wait=number % 2 == 0)
client.flush()
assert (client.sample(10, sys.argv[2])["k"] == big["k"]).all()
if child == 0:
    client.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("done", flush=True)
client.close()
"""


@pytest.mark.faults
def test_a_forked_child_speaks_for_itself(server, session, name):
    session.create_table(table(name), 60.0)
    client = Python(FORK, server.address, name)
    assert client.read() == "done"
    assert client.end() == 0
    assert figures(session, name)["inserted_trajectories"] == 60

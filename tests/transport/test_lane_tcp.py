"""Lanes over TCP: batches of any size arrive whole over connections that break, are slow or cannot be had."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

import gear
from gear.client.client import Client
from gear.errors import DeadlineExceeded
from gear.server.config import ShardOptions
from gear.server.keys import make_keys
from gear.server.shard import Shard
from gear.transport import link, reach
from gear.transport import messages as m
from gear.transport.arriving import PLACED, Arriving
from gear.transport.base import Wanted
from gear.transport.tcp import TcpSession
from tests.transport.helpers import eventually, figures, insert

STEPS = 16
COLUMNS = [gear.Column("k", (), "int64"), gear.Column("x", (100,), "int32"), gear.Column("d", (), "bool")]
ROW = 8 + 400 + 1


def windows(name: str) -> gear.Table:
    return gear.Table(name, COLUMNS, gear.Steps(4000), item=gear.Window(STEPS), mean_length=2 * STEPS)


def fill(client: gear.Client, name: str) -> None:
    for first in range(0, 3000, 60):
        k = np.arange(first, first + 60)
        client.insert({"k": k, "x": np.repeat(k[:, None].astype(np.int32), 100, 1), "d": k % 3 == 0}, name, wait=False)
    client.flush()


def check(batch: gear.Batch) -> None:
    """Every row is whole, and those of an item follow each other."""
    k = batch["k"]
    assert (np.diff(k, axis=1) == 1).all()
    assert (batch["x"] == k[..., None]).all()
    assert (batch["d"] == (k % 3 == 0)).all()
    assert np.asarray(batch.mask).all()


def test_large_batches_are_whole_over_a_lane_that_keeps_breaking(proxy, session, name, monkeypatch):
    monkeypatch.setattr(link, "_LANE_SECONDS", 60.0)  # however busy the machine is
    broken = proxy.session(TcpSession)
    client, chance = Client(broken), np.random.default_rng(3)
    client.create_table(windows(name))
    fill(client, name)
    assert broken._talk.link.laned
    size, out = (3 << 19) // (STEPS * ROW), None
    for round_ in range(24):
        if round_ % 2 == 0:
            proxy.cut_after(int(chance.integers(1, 2 << 20)))
        batch = client.sample(size, name, timeout=20.0, out=out)
        check(batch)
        out = batch if round_ % 3 else None
    assert proxy.cuts > 6
    assert broken._talk.link.laned
    broken.info(20.0)
    assert figures(session, name)["pins"] == 0
    broken.close()


def test_parts_of_several_shards_come_straight_to_their_places(shards, name):
    with gear.connect(shards.address, path="tcp") as tcp, gear.connect(shards.address, path="shm") as shm:
        tcp.create_table(windows(name))
        fill(tcp, name)
        selection = tcp.select(1500, name, parties=2)
        batch = tcp.collect(selection)
        check(batch)
        same = shm.collect(selection)
        for column in batch:
            np.testing.assert_array_equal(batch[column], same[column])
        check(tcp.sample(1500, name, out=batch))


@pytest.mark.parametrize("there", ["nobody", "somebody else", "silence"])
def test_where_the_lane_cannot_be_had_everything_goes_by_zeromq_and_the_log_says_so_once(
    proxy, name, monkeypatch, caplog, there
):
    monkeypatch.setattr(link, "_LANE_SECONDS", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    if there == "nobody":
        listener.close()
    elif there == "somebody else":

        def answer() -> None:
            while True:
                try:
                    one = listener.accept()[0]
                except OSError:
                    return
                one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                one.close()

        threading.Thread(target=answer, daemon=True).start()
    monkeypatch.setattr(reach, "lane_address", lambda endpoint, welcome: ("127.0.0.1", port))
    with caplog.at_level(logging.WARNING):
        session = proxy.session(TcpSession)
        client = Client(session)
        client.create_table(windows(name))
        fill(client, name)
        assert not session._talk.link.laned
        check(client.sample(300, name))
        check(client.sample(1500, name, out=client.sample(1500, name)))
        proxy.cut()
        check(client.sample(300, name, timeout=20.0))
    assert session._talk.link.reconnects > 0
    said = [record.getMessage() for record in caplog.records if "lane" in record.getMessage()]
    assert len(said) == 1
    assert "everything goes by ZeroMQ, which is slower" in said[0]
    session.close()
    listener.close()


def test_a_shard_that_must_encrypt_offers_no_lane_to_other_hosts(tmp_path):
    ports = []
    make_keys(tmp_path / "keys")
    for curve_keys in ("", str(tmp_path / "keys")):
        directory = str(tmp_path / f"shard-{len(ports)}")
        told = ShardOptions("x", "127.0.0.1", 0, 1, directory, 1 << 20, "", "warning", True, 1.0, curve_keys=curve_keys)
        shard = Shard(told)
        ports.append(shard._lanes.port)
        shard.close()
    assert ports[0] > 0
    assert ports[1] == 0
    welcome = m.Welcome(bytes(16), "/dev/shm/x", False, 0, 0, bytes(16))
    assert reach.lane_address("tcp://10.0.0.1:7400", welcome) is None
    assert reach.lane_address("ipc:///dev/shm/x/socket", welcome) == "/dev/shm/x/lane"


def test_a_reader_that_takes_nothing_in_holds_up_nobody(server, session, open_session, name):
    with gear.connect(server.address, path="tcp") as idle, gear.connect(server.address, path="tcp") as other:
        idle.create_table(windows(name))
        fill(idle, name)
        mine = idle._session
        opened = mine.open_table(name, 60.0)
        size = (12 << 20) // (STEPS * ROW)
        plan = idle._tables.reader(name, None, None).plan((), size, STEPS)
        with mine._talk.lock:  # asks for three large batches and reads nothing meanwhile
            shape = mine.ahead(plan, size)
            calls = [mine._talk.post(m.Select(opened.layout.index, size, 1, 60.0, 5.0, shape)) for _ in range(3)]
            for _ in range(20):
                check(other.sample(1000, name))
            insert(session, session.create_table(gear.Table(f"{name}-2", COLUMNS[:1], gear.Steps(400)), 60.0), 1)
            assert not any(call.done for call in calls)
            assert mine._talk.until(lambda: all(call.done for call in calls), time.monotonic() + 60)
        for call in calls:
            assert [len(frame) for frame in call.frames[1:]] == [plan.nbytes, 1]
            assert call.frames[-1] == m.CUT


@pytest.mark.faults
def test_a_shard_that_is_killed_in_mid_batch_tears_nothing(start_server, monkeypatch):
    monkeypatch.setattr(link, "_LANE_SECONDS", 60.0)  # however busy the machine is
    server = start_server("--client-timeout", "10")
    with gear.connect(server.address, path="tcp") as client:
        client.create_table(windows("t"))
        fill(client, "t")
        out = client.sample((10 << 20) // (STEPS * ROW), "t")
        ours, pid = client._session._talk.link, client.info()["pid"]
        arriving = ours._channel.lane

        def kill() -> None:
            eventually(lambda: arriving._arriving is not None, "a batch was on its way", 20.0)
            os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        while not ours.reconnects:
            check(client.sample(out.plan.size, "t", timeout=60.0, out=out))
        thread.join()
        assert client.info()["pid"] != pid
        assert ours.laned
        check(client.sample(out.plan.size, "t", timeout=60.0, out=out))


def test_nothing_is_written_to_memory_that_was_given_up():
    near, far = socket.socketpair()
    out = np.zeros(100_000, np.uint8)
    into = [out.data[:50_000], out.data[50_000:]]
    rows = bytes(range(1, 251)) * 400
    sizes = (4, len(rows), 1)
    arriving = Arriving(sizes, b"head" + rows[:10], lambda header, nbytes: into)
    far.setblocking(False)
    near.sendall(rows[10:60_000])
    assert not arriving.receive(far)
    assert bytes(out[:60_000]) == rows[:60_000]
    arriving.forget([out.data])  # another's
    near.sendall(rows[60_000:61_000])
    assert not arriving.receive(far)
    arriving.forget(into)
    near.sendall(rows[61_000:] + b"g")
    assert arriving.receive(far)
    assert bytes(out[:61_000]) == rows[:61_000]
    assert not out[61_000:].any()
    assert arriving.parts == [b"head", PLACED, b"g"]
    near.close()
    far.close()


def test_a_batch_of_fewer_items_than_asked_for_is_whole_though_it_takes_as_many_bytes(server, name):
    """Columns are aligned, so that they could be received into the memory of the batch that was asked for."""
    items = 4999  # of 16 bytes, as many multiples of 64 as one more has
    table = gear.Table(
        name, [gear.Column("x", (4,), "int32")], gear.Steps(2 * items), item=gear.Step(), limiter=gear.Queue(items),
        max_length=items,
    )  # fmt: skip
    with gear.connect(server.address, path="tcp") as client:
        client.create_table(table)
        assert client._session._talk.link.laned
        for first in (1, 2):
            x = np.arange(first, first + 4 * items, dtype=np.int32).reshape(items, 4)
            client.insert({"x": x}, name, timeout=60.0)
            batch = client.sample(items + 1, name, timeout=60.0)
            np.testing.assert_array_equal(np.sort(batch["x"], axis=0), x)


def test_a_batch_that_came_too_late_is_not_written_where_it_was_wanted(proxy, session, name):
    slow = proxy.session(TcpSession)
    client = Client(slow)
    client.create_table(windows(name))
    fill(client, name)
    out = client.sample(1000, name)
    plan, opened = out.plan, slow.open_table(name, 60.0)
    before = out.buffer.copy()
    slow._talk.link._channel.lane.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    proxy.pause()
    with pytest.raises(DeadlineExceeded):
        slow.select(opened, Wanted(1000, ahead=plan, into=out.buffer), 0.05)
    proxy.go_on()
    check(client.sample(1000, name, timeout=20.0))  # what was given up has come before
    np.testing.assert_array_equal(out.buffer, before)
    eventually(lambda: slow.info(5.0) and figures(session, name)["pins"] == 0, "the pin of the late one ended")
    slow.close()

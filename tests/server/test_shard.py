"""What must not disturb a shard: junk, half messages, other versions, strangers, floods."""

from __future__ import annotations

import logging
import os
import random
import socket

import msgspec
import numpy as np
import pytest
import zmq

from gear.schema import Steps, to_bytes
from gear.server import warm
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.base import Wanted
from gear.transport.channel import context
from gear.transport.discovery import discover
from gear.transport.negotiation import connect
from tests.transport.helpers import eventually, figures, insert, table


@pytest.fixture
def endpoints(server) -> list[str]:
    shard = discover(server.address, "", 60.0).shards[0]
    return [f"tcp://{server.address}", f"tcp://127.0.0.1:{shard.port}", f"ipc://{shard.socket}"]


@pytest.fixture
def stranger():
    """A function that opens a raw socket."""
    sockets = []

    def open_one(endpoint: str) -> zmq.Socket:
        one = context().socket(zmq.DEALER)
        one.linger = 0
        one.connect(endpoint)
        sockets.append(one)
        return one

    yield open_one
    for one in sockets:
        one.close(0)


def still_works(server, name: str) -> None:
    session = connect(server.address, timeout=60.0)
    insert(session, session.create_table(table(name), 60.0), 1)
    session.close()


def test_raw_bytes_on_the_ports_change_nothing(server, endpoints, name):
    chance = random.Random(1)
    for endpoint in endpoints[:2]:
        host, port = endpoint.removeprefix("tcp://").split(":")
        for size in (1, 9, 64, 5000):
            with socket.create_connection((host, int(port))) as one:
                one.sendall(chance.randbytes(size))
        with socket.create_connection((host, int(port))) as one:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")
    still_works(server, name)


@pytest.mark.faults
def test_a_connection_that_stops_in_mid_message_changes_nothing(server, endpoints, session, name):
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    host, port = endpoints[1].removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as one:
        one.sendall(greeting + ready + b"\x01\x05hello" + b"\x00\x50half")
        still_works(server, name)


def test_thousands_of_junk_messages_are_counted_and_change_nothing(server, endpoints, session, stranger, name):
    before = session.info(60.0)["messages"]["dropped"]
    chance = random.Random(2)
    for endpoint in endpoints:
        one = stranger(endpoint)
        for _ in range(2000):
            one.send_multipart([chance.randbytes(chance.randrange(40)) for _ in range(chance.randrange(1, 4))])
    eventually(lambda: session.info(60.0)["messages"]["dropped"] > before + 3000, "the junk was counted")
    still_works(server, name)


def test_a_stranger_is_told_to_greet_first(endpoints, stranger):
    one = stranger(endpoints[2])
    one.send(wire.encode(m.Envelope(m.PROTOCOL, 5, 0, [], m.Info())))
    assert one.poll(60_000)
    answer = wire.decode_answer(one.recv_multipart())
    assert answer == m.Answer(m.PROTOCOL, 5, m.Failed("ProtocolError", "expected Hello first on a connection"))


def test_another_version_is_answered_naming_both(endpoints, stranger):
    for endpoint in endpoints:
        one = stranger(endpoint)
        one.send(msgspec.msgpack.encode([99, 3, "anything"]))
        assert one.poll(60_000)
        answer = wire.decode_answer(one.recv_multipart())
        assert answer.request == 3
        assert f"version 99, this end speaks {m.PROTOCOL}" in answer.body.message


def greeted(stranger, endpoint: str) -> zmq.Socket:
    one = stranger(endpoint)
    one.send(wire.encode(m.Envelope(m.PROTOCOL, 0, 0, [], m.Hello(os.urandom(16), "", 1))))
    assert one.poll(60_000)
    assert isinstance(wire.decode_answer(one.recv_multipart()).body, m.Welcome)
    return one


def ask(one: zmq.Socket, number: int, body: m.Message, *frames: bytes):
    one.send_multipart([wire.encode(m.Envelope(m.PROTOCOL, number, number, [], body)), *frames])
    assert one.poll(60_000)
    return wire.decode_answer(one.recv_multipart()).body


def test_who_did_not_prove_shared_memory_touches_no_table(endpoints, stranger, session, name):
    opened = session.create_table(table(name), 60.0)
    one = greeted(stranger, endpoints[1])
    answer = ask(one, 1, m.Lease(opened.layout.index, 5, 5))
    assert "came before Attach" in answer.message
    assert "the nonce is not the one" in ask(one, 2, m.Attach(os.urandom(16))).message
    nonce = (session._door.directory / "door").read_bytes()[:16]
    assert "expected a lock file" in ask(one, 3, m.Attach(nonce)).message
    assert figures(session, name)["leased_blocks"] == 0


def test_requests_on_tables_that_are_not_there_are_refused(session):
    for body, frames in (
        (m.Lease(200, 1, 1), ()),
        (m.Commit(200, 0, 0), (b"", b"", b"")),
        (m.Select(200, 1, 1, 1.0, None), ()),
        (m.Update(200), (b"", b"")),
    ):
        with session._talk.lock, pytest.raises(Exception, match="no table number 200"):
            session._talk.ask(body, 1e9, frames)


def test_a_table_that_nobody_finds_yet_takes_no_requests(server, session, endpoints, stranger, name):
    """Origin: who had guessed its number was a client of it; when it was dropped, and he left, the shard died."""
    one, spec = greeted(stranger, endpoints[2]), to_bytes(table(name))
    before = session.info(60.0)["pid"]
    assert ask(one, 1, m.CreateTable(spec, True)) == m.Done()
    for number in range(256):
        ask(one, 2 + number, m.Explain(number))
    assert ask(one, 300, m.DropHidden(spec)) == m.Done()
    one.close(0)
    still_works(server, name)
    assert session.info(60.0)["pid"] == before


def test_damaged_commits_are_refused_and_nothing_changes(session, name):
    opened = session.create_table(table(name), 60.0)
    grant = session.lease(opened, 2, 2, 60.0)
    chance = np.random.default_rng(5)
    before = figures(session, name)
    for _ in range(300):
        entries = chance.integers(-(2**31), 2**31, 8 * chance.integers(0, 4), dtype=np.int64).astype(np.int32)
        blocks = np.concatenate([grant.blocks, chance.integers(-5, 500, chance.integers(0, 3)).astype(np.int32)])
        frames = (entries.tobytes(), blocks.tobytes(), chance.random(chance.integers(0, 3)).tobytes())
        with session._talk.lock, pytest.raises(Exception, match="entry|entries|nothing"):
            session._talk.ask(m.Commit(opened.layout.index, 0, 0), 1e9, frames)
    assert figures(session, name) == before


def test_a_message_sent_twice_is_done_once(session, name):
    opened = session.create_table(table(name), 60.0)
    insert(session, opened, 1)
    with session._talk.lock:
        call = session._talk.ask(m.Select(opened.layout.index, 1, 1, 60.0, 1.0), 1e9)
        session._talk.link.send(call.parts)
        session._talk.link.send(call.parts)
    after = figures(session, name)
    assert (after["pins"], after["draws"]) == (1, 1)


def test_others_are_served_while_a_large_table_is_created(start_server):
    server = start_server("--memory", "4GiB")
    first, second = connect(server.address, timeout=60.0), connect(server.address, timeout=60.0)
    opened = first.create_table(table("small"), 60.0)
    with second._talk.lock:
        call = second._talk.post(m.CreateTable(to_bytes(table("large", capacity=Steps(20_000_000)))))
        others = 0
        while not second._talk.until(lambda: call.done, 0.0):
            insert(first, opened, others)
            others += 1
    assert isinstance(call.answer, m.Opened)
    assert others > 4  # one or two where the large one kept them waiting
    first.close()
    second.close()


def test_no_kernel_is_compiled_after_the_ready_line(server, session, name):
    cache = next(iter(__import__("gear.storage.commit").storage.commit.check.stats.cache_path.split("\n")))
    before = sorted(os.listdir(cache))
    opened = session.create_table(table(name), 60.0)
    for number in range(5):
        insert(session, opened, number)
    session.release(opened, session.select(opened, Wanted(3), 60.0), True)
    assert sorted(os.listdir(cache)) == before


@pytest.mark.parametrize("cached", [True, False])
def test_a_start_that_has_to_compile_says_so(cached, monkeypatch, caplog):
    """Origin: a first start was silent for a minute."""
    monkeypatch.setattr(warm.COMMIT, "is_cached", lambda: cached)
    monkeypatch.setattr(warm, "works", lambda: False)  # no second process
    with caplog.at_level(logging.INFO), warm._second_compiler():
        pass
    assert ("compiling the kernels, once" in caplog.text) is not cached

"""Lanes: messages arrive whole whatever the kernel takes at a time; junk, strangers and breaks harm nobody."""

from __future__ import annotations

import os
import random
import signal
import socket

import pytest

from gear.transport import lane as lanes
from gear.transport import messages as m
from gear.transport.base import Wanted
from gear.transport.lane import GREETING, LANE, Lane
from gear.transport.negotiation import connect
from gear.transport.tcp import TcpSession
from tests.transport.helpers import eventually, figures, insert, put, table


@pytest.fixture
def pair():
    """Both ends of a lane."""
    ends = [Lane(one) for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)]
    yield ends
    for end in ends:
        end.close()


def pump(sender: Lane, receiver: Lane, count: int) -> list[list[bytes]]:
    """Send what is kept and receive, in turns, until so many messages have come."""
    came: list[list[bytes]] = []
    for _ in range(100_000):
        if len(came) == count:
            break
        sender.flush()
        while (parts := receiver.receive()) is not None:
            came.append([bytes(part) for part in parts])
    return came


def test_messages_of_any_size_arrive_whole_and_in_order(pair):
    one, other = pair
    chance = random.Random(1)
    sizes = [0, 1, 11, 4000, lanes._JOINED, lanes._ROOM, 300_000, 3_000_000]
    messages = [[chance.randbytes(chance.choice(sizes)) for _ in range(chance.randrange(1, 5))] for _ in range(60)]
    kept = 0
    for message in messages:
        one.send([memoryview(part) if len(part) > 4000 else part for part in message])
        kept = max(kept, one.unsent)
    assert kept > 0, "nothing was ever more than the kernel takes: this tests nothing"
    assert pump(one, other, len(messages)) == messages
    assert (one.unsent, one.broken, other.broken) == (0, False, False)
    assert other.receive() is None


def test_bytes_that_come_one_by_one_make_the_same_messages():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sink, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    writer, reader = Lane(source), Lane(far)
    messages = [[b"a"], [b"", b"bc"], [b"d", b"", b"efg"], [b"x" * 40]]
    for message in messages:
        writer.send(message)
    came = []
    for byte in sink.recv(1 << 16):
        near.send(bytes([byte]))
        while (parts := reader.receive()) is not None:
            came.append(parts)
    assert came == messages
    for one in (near, sink, writer, reader):
        one.close()


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        lanes._ONE.pack(5, 0, 5) + b"12345",
        lanes._ONE.pack(5, 1, 4) + b"12345",
        lanes._TWO.pack(5, 2, 4, 4) + b"12345678",
        lanes._ONE.pack(1 << 62, 1, 0) + b"1",
    ],
)
def test_what_is_no_message_breaks_the_lane(pair, junk):
    one, other = pair
    one.send_bytes(junk)
    assert other.receive() is None
    assert other.broken


def test_an_end_that_is_gone_breaks_the_lane(pair):
    one, other = pair
    one.send([b"last words"])
    one.close()
    assert other.receive() == [b"last words"]
    other.receive()
    assert other.receive() is None
    assert other.broken
    other.send([b"anybody?"])  # no error: whoever owns the lane looks whether it is broken


def test_clients_of_this_host_and_of_others_speak_over_a_lane(server, session):
    assert session._talk.link.laned
    assert session._talk.link._channel.lane.socket.family == socket.AF_UNIX
    far = connect(server.address, timeout=60.0, path="tcp")
    assert isinstance(far, TcpSession)
    assert far._talk.link.laned
    assert far._talk.link._channel.lane.socket.family == socket.AF_INET
    far.close()


def test_a_client_whose_lane_breaks_goes_on_and_every_insert_happens_once(session, name):
    opened = session.create_table(table(name), 60.0)
    for number in range(40):
        last = put(session, opened, number)
        if number % 8 == 3:
            session._talk.link._channel.lane.socket.shutdown(socket.SHUT_RDWR)
    session.wait(opened, last, 10.0)
    assert figures(session, name)["inserted_trajectories"] == 40
    assert session._talk.link.reconnects > 0
    assert session._talk.link.laned
    assert len(session.select(opened, Wanted(3), 60.0)) == 3


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_strangers_on_the_socket_are_shown_the_door(server, session, name, family):
    link = session._talk.link
    address = f"{link.welcome.directory}/{LANE}" if family == socket.AF_UNIX else ("127.0.0.1", link.welcome.port)
    opened = session.create_table(table(name), 60.0)
    identity, attempt, key = link._identity, link.attempts, link.welcome.key
    for greeting in (
        os.urandom(7),
        GREETING.pack(os.urandom(16), 1, key),
        GREETING.pack(identity, attempt + 1, key),
        GREETING.pack(identity, attempt, os.urandom(16)),
        GREETING.pack(identity, attempt, bytes(16)),
        GREETING.pack(identity, attempt, key),  # it opened the lane that there is, and opens no other
    ):
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.connect(address)
            one.settimeout(5.0)
            one.sendall(greeting)
            assert one.recv(100) == b""
    insert(session, opened, 1)
    assert session._talk.link.reconnects == 0


def test_a_message_that_the_kernel_does_not_take_at_once_is_sent_by_the_thread_in_the_background(session, name):
    opened = session.create_table(table(name), 60.0)
    lane, shard = session._talk.link._channel.lane, session.info(60.0)["pid"]
    os.kill(shard, signal.SIGSTOP)  # nobody reads meanwhile
    try:
        with session._talk.lock:
            call = session._talk.post(m.Update(opened.layout.index), (bytes(8 << 20), b""))
            assert lane.unsent > 0
    finally:
        os.kill(shard, signal.SIGCONT)
    eventually(lambda: lane.unsent == 0, "the rest was sent though nobody waited")
    assert session.await_answer(call, 1e18)
    assert "keeps no priorities" in call.answer.message


def test_requests_behind_a_clients_goodbye_leave_no_pin(open_session, name):
    session, other = open_session(), open_session()
    opened = session.create_table(table(name), 60.0)
    insert(other, other.open_table(name, 60.0), 1)
    talk, lane, packed = session._talk, session._talk.link._channel.lane, []
    with talk.lock:
        lane.push = lambda data: packed.append(data) or len(data)
        talk.post(m.Goodbye())
        talk.post(m.Select(opened.layout.index, 1, 1, 100.0, 5.0))
        lane.socket.send(b"".join(packed))  # so that the shard reads both at once
    assert figures(other, name)["pins"] == 0

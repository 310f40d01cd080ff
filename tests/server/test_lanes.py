"""The lanes of a shard: who says nothing, reads nothing or has said goodbye costs the others nothing."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket

import pytest

from gear.server import lanes as module
from gear.server.clients import Client
from gear.server.lanes import Lanes
from gear.transport import lane as lanes
from gear.transport import reach
from gear.transport.lane import Lane
from tests.transport.helpers import eventually

IDENTITY = bytes(range(16))


KEY = bytes(reversed(IDENTITY))


class Known:
    """One client, on its first connection."""

    def __init__(self) -> None:
        self.client = Client(IDENTITY, descriptor=1, attempt=1)

    def of_lane(self, *greeting: object) -> Client | None:
        return self.client if greeting == (IDENTITY, 1, KEY) else None


class Shard:
    """A shard's loop, as far as it is about lanes."""

    def __init__(self, path) -> None:
        self.path, self.heard, self.known, self.poll = path, [], Known(), select.epoll()
        self.lanes = Lanes(path, None, self.known, lambda client: None, self.hear, self.poll, lambda: None)

    def hear(self, client: Client, parts: list) -> None:
        self.heard.append(bytes(parts[0]))
        if parts[0] == b"goodbye":
            self.lanes.leave(client)

    def turn(self) -> int:
        """Do what is signalled; of how many descriptors."""
        signalled = self.poll.poll(0)
        for descriptor, events in signalled:
            self.lanes.hear(descriptor, events)
        return len(signalled)

    def connect(self) -> Lane:
        lane = reach.open_lane(str(self.path), lanes.GREETING.pack(IDENTITY, 1, KEY))
        assert lane is not None
        self.turn()
        return lane


@pytest.fixture
def shard(tmp_path):
    shard = Shard(tmp_path / "lane")
    yield shard
    shard.lanes.close()
    shard.poll.close()


def test_more_silent_strangers_than_there_may_be_keep_nobody_out_and_cost_nothing(shard, monkeypatch):
    monkeypatch.setattr(module, "_STRANGERS", 3)
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(7)]
    for stranger in strangers:
        stranger.connect(str(shard.path))
    lane = shard.connect()
    lane.send([b"hello"])
    shard.turn()
    assert shard.heard == [b"hello"]
    assert shard.turn() == 0, "the loop would be woken again and again"
    for stranger in strangers:
        stranger.settimeout(5.0)
    assert [stranger.recv(1) for stranger in strangers[:4]] == [b""] * 4  # the oldest gave way
    for stranger in strangers:
        stranger.close()
    lane.close()


def test_nothing_behind_a_goodbye_is_heard(shard):
    lane = shard.connect()
    lane.send_bytes(b"".join(lanes._ONE.pack(len(text), 1, len(text)) + text for text in (b"goodbye", b"one thing")))
    shard.turn()
    assert shard.heard == [b"goodbye"]
    assert shard.known.client.lane is None
    lane.close()


def test_who_reads_nothing_is_hung_up_on_and_told_nothing_by_another_way(shard, monkeypatch):
    monkeypatch.setattr(module, "MOST_KEPT", 100)
    lane, client = shard.connect(), shard.known.client
    assert not client.cut_off
    sent = 0
    while client.lane is not None:
        shard.lanes.send(client, client.lane, [bytes(3000)])
        sent += 1
        assert sent < 10_000, "no bound to what is kept for one that does not read"
    assert client.cut_off
    came = 0
    while not lane.broken:
        came += lane.receive() is not None
    assert sent - 102 <= came < sent
    lane.close()


def test_a_process_without_descriptors_left_does_not_turn_in_a_circle(shard):
    """Whoever calls meanwhile is taken in when there are some again."""
    waiting = socket.socket(socket.AF_UNIX)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting.connect(str(shard.path))
    free = os.dup(waiting.fileno())
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        assert shard.turn() == 1
        assert [shard.turn() for _ in range(3)] == [0, 0, 0], "the loop would be woken again and again"
        assert not shard.lanes.busy
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    waiting.sendall(lanes.GREETING.pack(IDENTITY, 1, KEY) + lanes._ONE.pack(5, 1, 5) + b"hello")
    eventually(lambda: shard.lanes.busy, "it is tried again")
    shard.lanes.resume()
    shard.turn()
    assert shard.heard == [b"hello"]
    assert not shard.lanes.busy
    waiting.close()


def test_one_that_cannot_be_taken_in_does_not_hide_those_behind_it(shard, monkeypatch):
    real, failed = lanes.Lane, []

    def gone(connected: socket.socket) -> Lane:
        if not failed:
            failed.append(connected.close())
            raise OSError(errno.EINVAL, "it has hung up already")
        return real(connected)

    monkeypatch.setattr(module, "Lane", gone)
    calls = [reach.open_lane(str(shard.path), lanes.GREETING.pack(IDENTITY, 1, KEY)) for _ in range(2)]
    shard.turn()
    assert failed
    assert shard.known.client.lane is not None, "nobody was told of the second one"
    for call in calls:
        call.close()

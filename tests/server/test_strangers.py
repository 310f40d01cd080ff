"""Connections on which nobody says who he is keep nobody out and exhaust nothing."""

from __future__ import annotations

import os
import socket

import pytest
import zmq

from gear.errors import InsufficientMemory
from gear.server.clients import MOST_CLIENTS, Clients, limits
from gear.server.router import Router
from gear.server.strangers import Strangers, cut_off
from gear.transport.messages import Hello


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 4096, 65536, 1 << 20])
def test_all_clients_and_strangers_together_leave_descriptors(descriptors):
    clients, strangers = limits(descriptors)
    assert 1 <= clients <= MOST_CLIENTS
    assert 3 * clients + strangers < descriptors


def test_the_oldest_of_too_many_strangers_gives_way(tmp_path):
    router = Router(str(tmp_path / "socket"), "127.0.0.1", 5.0)
    strangers = Strangers(3)
    try:
        calls = [socket.create_connection(("127.0.0.1", router.port)) for _ in range(5)]
        came = 0
        poller = zmq.Poller()
        poller.register(router.monitor_descriptor, zmq.POLLIN)
        while came < 5:
            for accepted, descriptor in router.events():
                came += accepted
                strangers.came(descriptor) if accepted else strangers.left(descriptor)
            assert came == 5 or poller.poll(60_000)
        ended = []
        for call in calls:
            call.settimeout(5.0 if len(ended) < 2 else 0.05)
            try:
                while call.recv(100):
                    pass
                ended.append(call)
            except TimeoutError:
                break
        assert ended == calls[:2]
        assert len(strangers) == 3
        for call in calls:
            call.close()
    finally:
        router.close()
        router.end()


def test_what_is_no_connection_is_left_alone(tmp_path):
    reader, writer = os.pipe()
    cut_off(reader)
    cut_off(9999)
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)


def test_more_clients_than_there_may_be_are_refused_and_told_what_to_do(tmp_path):
    clients = Clients(tmp_path, bytes(16), 1.0, most=2)
    for number in range(2):
        assert clients.hello(Hello(bytes([number]) * 16, "", 1), bytes([number]), number) is not None
    with pytest.raises(InsufficientMemory, match=r"has 2 clients, the most it can have; .*\(ulimit -n\)"):
        clients.hello(Hello(bytes([2]) * 16, "", 1), b"2", 2)
    assert len(clients) == 2

"""Servers of one name that start at the same instant: one of them serves, the others say who does."""

from __future__ import annotations

import select

import pytest

import gear

pytestmark = pytest.mark.faults


def test_of_servers_that_start_at_once_under_one_name_one_serves(start_server, long_only):
    for number in range(2):
        name = f"test-names-{long_only.seed}-{number}"
        servers = [start_server("--name", name, ready=False) for _ in range(3)]
        poll = select.poll()
        for server in servers:
            poll.register(server.process.stdout, select.POLLIN)
        ended = {}
        while len(ended) < 2:  # they end without a word, the third one says that it is ready
            for descriptor, event in poll.poll(60_000):
                server = next(one for one in servers if one.process.stdout.fileno() == descriptor)
                if event & select.POLLHUP:
                    poll.unregister(descriptor)
                    ended[name + str(descriptor)] = server
                elif server not in ended.values():
                    poll.modify(descriptor, 0)
                    server.wait_ready()
        for server in ended.values():
            assert server.process.wait(20) == 1
            assert f"a server named {name!r} is running" in server.log.read_text()
        (one,) = (server for server in servers if server not in ended.values())
        if not one.address:
            one.wait_ready()
        with gear.connect(one.address) as client:
            assert client.info()["tables"] == {}
        assert one.stop() == 0

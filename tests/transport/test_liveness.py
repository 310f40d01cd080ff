from __future__ import annotations

import os
import signal

import pytest

from gear.schema import Steps
from gear.transport.negotiation import connect
from tests.transport.helpers import Python, eventually, figures, insert, table

CLIENT = """
import sys
from gear.transport.base import Wanted
from gear.transport.negotiation import connect
from tests.transport.helpers import WHOLE, put, rows
session = connect(sys.argv[1], timeout=60.0)
opened = session.open_table(sys.argv[2], 10.0)
grant = session.lease(opened, 2, 2, 60.0)
selection = session.select(opened, Wanted(1, 1, float(sys.argv[3])), 60.0)
print(*grant.blocks, *grant.slots, flush=True)
for line in sys.stdin:
    rows(opened, grant.blocks[0])[:3] = 77
    number = session.submit(opened, int(grant.slots[0]), [int(grant.blocks[0])], 3, WHOLE, None, 60.0)
    session.wait(opened, number, 60.0)
    print("committed", session.revoked(opened, selection), flush=True)
session.close()
"""


def start(server, open_session, name, ttl: float = 60.0) -> tuple[Python, list[int]]:
    with_leases = open_session()
    insert(with_leases, with_leases.create_table(table(name, capacity=Steps(400)), 60.0), 1)
    with_leases.close()
    client = Python(CLIENT, server.address, name, str(ttl))
    return client, [int(number) for number in client.read().split()]


@pytest.mark.faults
def test_what_a_killed_client_held_is_free_at_once(server, session, open_session, name):
    client, _ = start(server, open_session, name)
    before = figures(session, name)
    assert (before["leased_blocks"], before["pins"]) == (2, 1)
    client.process.kill()
    client.process.wait()
    eventually(lambda: figures(session, name)["leased_blocks"] == 0, "its leases ended")
    assert figures(session, name)["pins"] == 0
    client.end()


def test_a_client_that_ends_without_closing_leaves_nothing(server, session, open_session, name):
    client, _ = start(server, open_session, name)
    assert client.end() == 0
    after = figures(session, name)
    assert (after["leased_blocks"], after["pins"]) == (0, 0)


@pytest.mark.faults
def test_a_stopped_client_keeps_what_it_held_and_goes_on_when_continued(server, session, open_session, name):
    client, (first, second, *_) = start(server, open_session, name, ttl=0.2)
    opened = session.open_table(name, 60.0)
    connected = session.info(60.0)["clients"]["connected"]
    os.kill(client.process.pid, signal.SIGSTOP)
    try:
        eventually(lambda: session.info(60.0)["clients"]["connected"] < connected, "its silence was noticed")
        eventually(lambda: figures(session, name)["quarantined_blocks"] == 2, "its leases are in quarantine")
        everything = session.lease(opened, 1000, 1000, 60.0)
        assert not {first, second} & set(everything.blocks.tolist())
        session.give_back(opened, everything)
        for number in range(300):  # the table is overwritten several times meanwhile
            insert(session, opened, number)
        assert figures(session, name)["pins"] == 1
    finally:
        os.kill(client.process.pid, signal.SIGCONT)
    client.say("go")
    assert client.read() == "committed True"
    after = figures(session, name)
    assert (after["inserted_trajectories"], after["quarantined_blocks"]) == (302, 0)
    eventually(lambda: figures(session, name)["pins"] == 0, "it let go of the pin that had expired")
    assert client.end() == 0


@pytest.mark.faults
def test_a_stopped_client_that_is_then_killed_frees_everything(server, session, open_session, name):
    client, _ = start(server, open_session, name)
    connected = session.info(60.0)["clients"]["connected"]
    os.kill(client.process.pid, signal.SIGSTOP)
    eventually(lambda: session.info(60.0)["clients"]["connected"] < connected, "its silence was noticed")
    client.process.kill()
    eventually(lambda: figures(session, name)["leased_blocks"] == 0, "its leases ended")
    client.end()


def test_clients_that_come_and_go_leave_no_entry(server, session):
    for _ in range(20):
        connect(server.address, timeout=60.0).close()
    eventually(lambda: session.info(60.0)["clients"] == {"connected": 1, "silent": 0}, "they were forgotten")


FORK = """
import os, sys
from gear.transport.negotiation import connect
from tests.transport.helpers import put, insert
session = connect(sys.argv[1], timeout=60.0)
opened = session.open_table(sys.argv[2], 10.0)
for number in range(10):
    put(session, opened, number)
mine = session._talk.link.welcome and session._talk
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(read)
    for number in range(100, 110):
        insert(session, opened, number)
    assert session._talk is not mine
    os.write(write, b"inserted")
    if sys.argv[3] == "exit":
        os._exit(0)
    sys.exit(0)
os.close(write)
for number in range(20, 40):
    insert(session, opened, number)
assert os.read(read, 100) == b"inserted"
assert os.waitpid(child, 0)[1] == 0
for number in range(40, 60):
    insert(session, opened, number)
print("done", flush=True)
session.close()
"""


@pytest.mark.faults
def test_a_forked_child_speaks_for_itself_and_its_parent_goes_on(server, session, name):
    session.create_table(table(name), 60.0)
    for ending in ("exit", "normal"):
        client = Python(FORK, server.address, name, ending)
        assert client.read() == "done"
        assert client.end() == 0
    eventually(lambda: figures(session, name)["leased_blocks"] == 0, "leases of the children ended")
    assert figures(session, name)["inserted_trajectories"] == 2 * (10 + 10 + 20 + 20)


ORPHAN = """
import os, sys
from gear.transport.negotiation import connect
session = connect(sys.argv[1], timeout=60.0)
opened = session.open_table(sys.argv[2], 10.0)
grant = session.lease(opened, 2, 2, 60.0)
child = os.fork()
if child == 0:
    sys.stdin.readline()
    os._exit(0)
print("leased", flush=True)
os._exit(0)
"""


@pytest.mark.faults
def test_leases_of_a_dead_parent_wait_for_the_forked_child_that_still_maps_them(server, session, name):
    session.create_table(table(name), 60.0)
    client = Python(ORPHAN, server.address, name)
    assert client.read() == "leased"
    assert client.process.wait(60) == 0
    eventually(lambda: figures(session, name)["quarantined_blocks"] == 2, "the parent's silence was noticed")
    client.say("end")
    eventually(lambda: figures(session, name)["leased_blocks"] == 0, "the child ended")
    client.end()

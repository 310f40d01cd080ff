from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from gear.errors import ConnectionLost, DeadlineExceeded
from gear.schema import Prioritized, Steps
from gear.transport.base import Wanted
from gear.transport.negotiation import connect
from tests.transport.helpers import WHOLE, Proxy, eventually, figures, insert, put, table

pytestmark = pytest.mark.faults


def test_inserts_happen_exactly_once_over_a_connection_that_keeps_breaking(proxy, session, name):
    broken = proxy.session()
    opened = broken.create_table(table(name, capacity=Steps(20_000)), 60.0)
    chance, count = random.Random(7), 1500
    for number in range(count):
        if number % 50 == 10:
            proxy.cut_after(chance.randrange(1, 3000))
        last = put(broken, opened, number, timeout=20.0)
    broken.wait(opened, last, 20.0)
    after = figures(session, name)
    assert proxy.cuts > 10
    assert broken._talk.link.reconnects > 10
    assert after["inserted_trajectories"] == count
    broken.close()
    assert figures(session, name)["leased_blocks"] == 0


def test_selects_and_leases_whose_answer_was_lost_leave_nothing_behind(proxy, session, name):
    broken = proxy.session()
    opened = broken.create_table(table(name, sampler=Prioritized()), 60.0)
    insert(broken, opened, 1)
    chance = random.Random(3)
    for round_ in range(150):
        if round_ % 5 == 0:
            proxy.cut_after(chance.randrange(1, 400))
        selection = broken.select(opened, Wanted(4), 20.0)
        broken.release(opened, selection, True)
        broken.give_back(opened, broken.lease(opened, 3, 3, 20.0))
    broken.info(20.0)
    after = figures(session, name)
    assert proxy.cuts > 10
    assert (after["sampled_items"], after["pins"], after["leased_blocks"]) == (600, 0, 0)
    broken.close()


def test_a_waiting_select_survives_a_cut(proxy, session, name):
    broken = proxy.session()
    opened = broken.create_table(table(name), 60.0)
    got = []
    thread = threading.Thread(target=lambda: got.append(broken.select(opened, Wanted(2), 20.0)))
    thread.start()
    eventually(lambda: broken._talk.led, "the thread waits")
    proxy.cut()
    eventually(lambda: broken._talk.link.reconnects == 1, "it reconnected")
    insert(session, session.open_table(name, 60.0), 1)
    thread.join(60)
    assert len(got[0]) == 2
    broken.close()


def test_what_a_client_holds_survives_a_cut(proxy, session, name):
    broken = proxy.session()
    opened = broken.create_table(table(name), 60.0)
    insert(broken, opened, 1)
    selection = broken.select(opened, Wanted(1), 60.0)
    grant = broken.lease(opened, 1, 1, 60.0)
    proxy.cut()
    broken.wait(opened, broken.submit(opened, int(grant.slots[0]), grant.blocks.tolist(), 3, WHOLE, None, 60.0), 20.0)
    assert not broken.revoked(opened, selection)
    assert figures(session, name)["pins"] == 1
    broken.release(opened, selection, True)
    eventually(lambda: figures(session, name)["pins"] == 0, "the pin ended")
    broken.close()


def test_a_pin_that_expires_while_the_connection_is_cut_is_revoked_afterwards(proxy, session, name):
    broken = proxy.session()
    opened = broken.create_table(table(name), 60.0)
    insert(broken, opened, 1)
    selection = broken.select(opened, Wanted(1, 1, 0.1), 60.0)
    proxy.cut()
    eventually(lambda: broken.revoked(opened, selection), "it was told")
    eventually(lambda: figures(session, name)["pins"] == 0, "it let go")
    broken.close()


@pytest.fixture
def victim(start_server):
    server = start_server("--client-timeout", "0.5", "--max-restarts", "0")
    session = connect(server.address, timeout=60.0)
    yield server, session, session.info(60.0)["pid"]
    session.close()


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_a_server_killed_in_mid_call_is_a_lost_connection_at_once(victim, timeout):
    """origin: reverb#18"""
    server, session, shard = victim
    opened = session.create_table(table(), 60.0)
    errors = []

    def wait() -> None:
        try:
            session.select(opened, Wanted(1), timeout)
        except ConnectionLost as error:
            errors.append((time.monotonic(), str(error)))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: session._talk.led, "a thread waits")
    begin = time.monotonic()
    os.kill(shard, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert len(errors) == 3
    assert all(when - begin < 15.0 and "is gone" in message for when, message in errors)
    with pytest.raises(ConnectionLost):
        put(session, opened, 1)
    assert server.process.wait(60) == 1


def test_a_server_that_stops_cleanly_is_a_lost_connection(victim):
    server, session, _ = victim
    opened = session.create_table(table(), 60.0)
    assert server.stop() == 0
    begin = time.monotonic()
    with pytest.raises(ConnectionLost):
        session.select(opened, Wanted(1), None)
    assert time.monotonic() - begin < 15.0


def test_a_stopped_server_lets_calls_time_out_and_goes_on_when_continued(victim):
    _, session, shard = victim
    opened = session.create_table(table(), 60.0)
    os.kill(shard, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="sample: no answer of the server in time"):
            session.select(opened, Wanted(1), 0.3)
        assert time.monotonic() - begin < 15.0
        eventually(lambda: not session._talk.link.up, "the silence was noticed")
    finally:
        os.kill(shard, signal.SIGCONT)
    insert(session, opened, 1)
    assert figures(session)["inserted_trajectories"] == 1


def test_a_restarted_proxy_port_is_tried_until_the_deadline(server, name):
    proxy = Proxy(server.address)
    broken = proxy.session()
    proxy.close()
    with pytest.raises(DeadlineExceeded, match="the connection is broken and is being made anew"):
        broken.open_table("table", 0.3)
    broken.close()

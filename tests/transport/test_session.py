from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from gear.errors import (
    AuthenticationError,
    Closed,
    ConnectionLost,
    DataError,
    DeadlineExceeded,
    InsufficientMemory,
    PinLost,
    ProtocolError,
    TableMismatch,
    TableNotFound,
)
from gear.schema import MinSize, Prioritized, SampleToInsertRatio, Steps, Uniform
from gear.transport import messages as m
from gear.transport import negotiation, wire
from gear.transport import session as sessions
from gear.transport.base import Wanted
from tests.transport.helpers import eventually, figures, insert, put, table

SILENCE = "10"
"""Of the `server`: nothing here is about silence."""


@pytest.fixture(params=["shm", "tcp"])
def path(request: pytest.FixtureRequest) -> str:
    """What is asked of a shard is the same on every path."""
    return request.param


def test_arrays_of_a_selection_are_writable(session, name):
    opened = session.create_table(table(name), 60.0)
    insert(session, opened, 1)
    selection = session.select(opened, Wanted(3), 60.0)
    for array in (selection.ids, selection.probabilities, selection.starts, selection.lengths):
        assert array.flags.writeable
        assert array.flags.c_contiguous
    session.release(opened, selection, True)


def test_priorities_are_updated_whole_or_not_at_all(session, name):
    opened = session.create_table(table(name, sampler=Prioritized(1.0)), 60.0)
    insert(session, opened, 1)
    ids = session.select(opened, Wanted(1), 60.0).ids
    assert session.update_priorities(opened, np.repeat(ids, 2), np.array([3.0, 5.0]), 60.0) == (2, 0)
    with pytest.raises(DataError, match="index 1"):
        session.update_priorities(opened, np.repeat(ids, 2), np.array([3.0, np.nan]), 5.0)
    session.reset(opened, 60.0)
    assert session.update_priorities(opened, ids, np.array([2.0]), 60.0) == (0, 1)


def test_a_table_is_found_by_name_and_an_unknown_one_shows_how_to_create_it(session, name):
    session.create_table(table(name), 60.0)
    assert session.open_table(name, 60.0).table == table(name)
    with pytest.raises(TableNotFound, match=r"client\.create_table\(gear\.table_like\('nowhere'"):
        session.open_table("nowhere", 5.0)


def test_an_unequal_table_of_the_same_name_is_refused_naming_the_difference(session, name):
    opened = session.create_table(table(name), 60.0)
    assert session.create_table(table(name), 60.0) is opened
    with pytest.raises(TableMismatch, match="capacity: Steps"):
        session.create_table(table(name, capacity=Steps(2000)), 5.0)


def test_a_table_beyond_the_memory_allowed_is_refused_with_both_numbers(session, name):
    """origin: rl#2065"""
    with pytest.raises(InsufficientMemory, match=r"needs .* bytes\), but of the 64.00 MiB allowed by --memory"):
        session.create_table(table(name, capacity=Steps(10**8)), 5.0)
    session.create_table(table(name), 60.0)


def test_a_sample_of_an_empty_table_times_out_saying_why(session, name):
    """origin: reverb#18"""
    opened = session.create_table(table(name), 60.0)
    took = []
    while len(took) < 20 and min(took, default=1.0) >= 0.4:  # a busy machine delays some of them, not each
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="holds 0 items and its limiter wants at least 1"):
            session.select(opened, Wanted(4), 0.2)
        took.append(time.monotonic() - begin)
    assert 0.2 <= min(took) < 0.4


def test_a_waiting_sample_is_woken_by_an_insert_of_another_thread(session, name):
    opened = session.create_table(table(name, limiter=MinSize(5)), 60.0)
    got = []
    thread = threading.Thread(target=lambda: got.append(session.select(opened, Wanted(4), 20.0)))
    thread.start()
    for number in range(5):
        insert(session, opened, number)
    thread.join(60)
    assert len(got[0]) == 4
    session.release(opened, got[0], True)


def test_threads_share_a_session_and_get_each_their_own_answer(session, name):
    opened = session.create_table(table(name, capacity=Steps(1000)), 60.0)
    insert(session, opened, 0)
    wrong = []

    def work(size: int) -> None:
        for number in range(50):
            insert(session, opened, number)
            selection = session.select(opened, Wanted(size), 10.0)
            if len(selection) != size:
                wrong.append((size, len(selection)))
            session.release(opened, selection, True)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert figures(session, name)["inserted_trajectories"] == 201
    assert figures(session, name)["sampled_items"] == 50 * (1 + 2 + 3 + 4)


def test_commits_batch_themselves(session, name):
    opened = session.create_table(table(name), 60.0)
    before = session.info(60.0)
    pool = session.lease(opened, 32, 32, 60.0)
    count = len(pool.blocks)
    os.kill(before["pid"], signal.SIGSTOP)  # else it may acknowledge each before the next one comes
    try:
        for block, slot in zip(pool.blocks.tolist(), pool.slots.tolist(), strict=True):
            last = session.submit(opened, slot, [block], 3, 7 | 48, None, 60.0)
    finally:
        os.kill(before["pid"], signal.SIGCONT)
    session.wait(opened, last, 60.0)
    assert count == 32
    assert figures(session, name)["inserted_trajectories"] == count
    assert session.info(60.0)["messages"]["received"] - before["messages"]["received"] < count / 2


def test_gathered_commits_leave_by_themselves(session, open_session, name):
    opened = session.create_table(table(name), 60.0)
    grant = session.lease(opened, 10, 10, 60.0)
    for block, slot in zip(grant.blocks.tolist(), grant.slots.tolist(), strict=True):
        session.submit(opened, slot, [block], 3, 7 | 48, None, 60.0)
    other = open_session()
    eventually(lambda: figures(other, name)["inserted_trajectories"] == 10, "all ten were committed")


def test_a_release_leaves_by_itself(session, open_session, name):
    opened = session.create_table(table(name), 60.0)
    insert(session, opened, 1)
    selection = session.select(opened, Wanted(1), 60.0)
    other = open_session()
    assert figures(other, name)["pins"] == 1
    session.release(opened, selection, True)
    eventually(lambda: figures(other, name)["pins"] == 0, "the pin ended")


def ratio(name: str):
    """One sample per insert, at most 2 inserts ahead of the samples."""
    return table(name, sampler=Uniform(), limiter=SampleToInsertRatio(1.0, 1, 2.0))


def test_an_insert_that_the_limiter_holds_back_times_out_and_can_be_withdrawn(session, name):
    opened = session.create_table(ratio(name), 60.0)
    sequences = [put(session, opened, number) for number in range(6)]
    with pytest.raises(DeadlineExceeded, match=r"insert timed out: the limiter SampleToInsertRatio.*waits for samples"):
        session.wait(opened, sequences[-1], 0.1)
    committed = figures(session, name)["inserted_trajectories"]
    assert 0 < committed < 6
    assert session.withdraw(opened, sequences[0], sequences[-1]) == 6 - committed
    session.wait(opened, sequences[-1], 60.0)
    assert figures(session, name)["leased_blocks"] <= 1  # one may have come with an acknowledgement
    insert_after = put(session, opened, 7)
    session.release(opened, session.select(opened, Wanted(3), 60.0), True)
    session.wait(opened, insert_after, 60.0)


def test_the_window_of_unacknowledged_inserts_is_bounded(session, name, monkeypatch):
    monkeypatch.setattr(sessions, "WINDOW", 8)
    opened = session.create_table(ratio(name), 60.0)
    grant = session.lease(opened, 30, 30, 60.0)  # before: only a full window is waited for in vain
    leases, sequences = zip(grant.slots.tolist(), grant.blocks.tolist(), strict=True), []
    with pytest.raises(DeadlineExceeded, match="waits for samples"):  # noqa: PT012
        for slot, block in leases:
            sequences.append(session.submit(opened, slot, [block], 3, 7 | 48, None, 0.1))
    assert 8 <= len(sequences) <= 8 + figures(session, name)["inserted_trajectories"]


def test_a_refused_entry_raises_at_its_wait_and_its_leases_return(session, name):
    opened = session.create_table(table(name), 60.0)
    grant = session.lease(opened, 1, 1, 60.0)
    sequence = session.submit(opened, int(grant.slots[0]), grant.blocks.tolist(), 11, 7 | 48, None, 60.0)
    with pytest.raises(DataError, match="longer than the 10 steps"):
        session.wait(opened, sequence, 5.0)
    assert figures(session, name)["leased_blocks"] == 0
    insert(session, opened, 2)


def test_an_expired_pin_is_revoked_and_let_go_of(session, name):
    opened = session.create_table(table(name), 60.0)
    insert(session, opened, 1)
    selection = session.select(opened, Wanted(1, 1, 0.05), 60.0)
    eventually(lambda: session.revoked(opened, selection), "the pin was revoked")
    eventually(lambda: figures(session, name)["pins"] == 0, "the session let go of it")
    with pytest.raises(PinLost):
        session.hold(opened, selection)
    session.release(opened, selection, True)
    assert figures(session, name)["sampled_items"] == 0


def test_a_selection_is_shared_by_parties(session, open_session, name):
    opened = session.create_table(table(name), 60.0)
    insert(session, opened, 1)
    selection = session.select(opened, Wanted(1, 2), 60.0)
    others = [open_session(), open_session()]
    for other in others:
        seen = other.open_table(name, 60.0)
        other.hold(seen, selection)
        other.release(seen, selection, True)
    eventually(lambda: figures(session, name)["pins"] == 0, "both parties were done")


def test_leases_come_with_acknowledgements(session, name):
    opened = session.create_table(table(name), 60.0)
    grant = session.lease(opened, 8, 8, 60.0)
    for block, slot in zip(grant.blocks.tolist(), grant.slots.tolist(), strict=True):
        last = session.submit(opened, slot, [block], 3, 7 | 48, None, 60.0)
    session.wait(opened, last, 60.0)
    before = session.info(60.0)["messages"]["received"]
    again = session.lease(opened, 8, 8, 60.0)
    assert len(again.blocks) == len(again.slots) == 8
    assert session.info(60.0)["messages"]["received"] - before == 1
    session.give_back(opened, again)
    assert figures(session, name)["leased_blocks"] == 0


def test_closing_gives_everything_back_and_sends_what_was_gathered(open_session, name):
    session, other = open_session(), open_session()
    opened = session.create_table(table(name), 60.0)
    insert(session, opened, 0)
    session.lease(opened, 5, 5, 60.0)
    session.select(opened, Wanted(1), 60.0)
    for number in range(5):
        put(session, opened, number)
    session.close()
    session.close()
    after = figures(other, name)
    assert (after["inserted_trajectories"], after["leased_blocks"], after["pins"]) == (6, 0, 0)
    for call in (
        lambda: session.info(1.0),
        lambda: session.open_table(name, 1.0),
        lambda: session.select(opened, Wanted(1), 1.0),
        lambda: put(session, opened, 1),
    ):
        with pytest.raises(Closed):
            call()


def test_closing_ends_the_waits_of_other_threads(session, name):
    opened = session.create_table(table(name), 60.0)
    errors = []

    def wait() -> None:
        try:
            session.select(opened, Wanted(1), None)
        except Closed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: session._talk.led, "the thread waits")
    session.close()
    thread.join(60)
    assert len(errors) == 1


def test_nobody_at_the_address_is_said_within_the_timeout():
    with pytest.raises(ConnectionLost, match=r"no gear-server answered at 127.0.0.1:9 within 0.2 s; start one with"):
        negotiation.connect("127.0.0.1:9", timeout=0.2)


@pytest.mark.parametrize("address", ["", "host:port", "host:0", "a b:1", 7400])
def test_a_bad_address_is_refused_showing_a_good_one(address):
    with pytest.raises(ProtocolError, match="expected an address like 'localhost:7400'"):
        negotiation.connect(address)


def test_a_client_of_another_version_is_told_both(server, monkeypatch):
    ours = m.PROTOCOL
    monkeypatch.setattr(m, "PROTOCOL", ours + 1)
    assert ours == wire.PROTOCOL
    with pytest.raises(ProtocolError, match=f"speaks protocol version {ours + 1}, this end speaks {ours}"):
        negotiation.connect(server.address, timeout=5.0)


def test_a_token_given_to_a_server_without_one_is_refused(server):
    with pytest.raises(AuthenticationError, match="started without --token-file"):
        negotiation.connect(server.address, token="something", timeout=5.0)


def test_somebody_leads_when_the_leader_and_the_next_one_end_together(session):
    talk, over, threads = session._talk, [False] * 3, []

    def wait(which: int) -> None:
        with talk.lock:
            talk.until(lambda: over[which], time.monotonic() + 30.0)

    for which in range(3):
        threads.append(threading.Thread(target=wait, args=(which,)))
        threads[-1].start()
        eventually(lambda: len(talk._waiters) == len(threads), "it waits")
    with talk.lock:
        over[0] = over[1] = True
        last = talk._waiters[2]
        talk.link.ring()  # the first leads: it ends, and leaves the lead to the second, which ends as well
    for thread in threads[:2]:
        thread.join(60)
    with talk.lock:
        assert talk._waiters == [last]
        assert talk._leader is last or last.bell.is_set()
        over[2] = True
        talk._wake()
    threads[2].join(60)
    assert not threads[2].is_alive()

"""What waits for blocks or for the limiter, and what must not be given up for it."""

from __future__ import annotations

import time

import pytest

from gear.errors import DeadlineExceeded, InsufficientMemory, ProtocolError
from gear.schema import Fifo, Queue, SampleToInsertRatio, Step, Trajectories, Whole
from gear.storage.fields import BEGIN, END, FREE_BLOCKS
from gear.storage.queue import CommitDone

from .actors import Actor, Growing, make

LATER = time.monotonic() + 3600


def exhausted(trajectories: int = 20):
    """A full table whose reserve is leased to a client that may be stopped, and a writer that has nothing."""
    stored = make(capacity=Trajectories(trajectories), item=Whole(), remover=Fifo(), mean_length=8, block_steps=4)
    writer, stopped = Actor(stored, b"w" * 16), Actor(stored, b"s" * 16)
    for number in range(trajectories):
        writer.insert(number, 8)
    while stored.counters[FREE_BLOCKS]:
        stored.allocate(stopped.client, 1, 0)
    stored.suspend(stopped.client)
    return stored, writer


def test_an_allocation_that_readers_keep_waiting_evicts_nothing():
    stored, writer = exhausted()
    reader = Actor(stored, b"r" * 16)
    selection = stored.select(reader.client, 1000, 1, 60.0)  # all of it
    assert stored.allocate(writer.client, 2, 1) is None
    assert stored.info()["trajectories"] == 20
    stored.pins.release(reader.client, selection.pin, True)
    assert stored.allocate(writer.client, 2, 1) is not None
    assert (stored.info()["trajectories"], stored.info()["evicted_early"]) == (19, 1)


def test_an_allocation_evicts_what_nobody_reads_though_the_remover_would_choose_another():
    stored, writer = exhausted()
    reader = Actor(stored, b"r" * 16)
    held = stored.select(reader.client, 5, 1, 60.0)
    read = set(held.starts.tolist())
    for _ in range(3):
        assert stored.allocate(writer.client, 2, 0) is not None
    assert stored.info()["held_blocks"] == 0
    left = stored.select(reader.client, 1000, 1, 60.0)
    assert read <= set(left.starts.tolist())


def test_an_allocation_does_not_end_open_trajectories():
    stored = make(capacity=Trajectories(4), item=Step(0), publish="rows", mean_length=8, block_steps=4)
    writer = Actor(stored)
    growing = [Growing(writer, number) for number in range(4)]
    for one in growing:
        one.append(8)
    while stored.allocate(writer.client, 1, 0) is not None:
        pass
    assert stored.info()["trajectories"] == 4


def test_nobody_gets_blocks_for_a_commit_that_the_limiter_will_not_let_pass():
    """Its earlier commits are parked: evicting for the next one would only lose data."""
    limiter = SampleToInsertRatio(1.0, 1, 8.0)
    stored = make(capacity=Trajectories(40), item=Whole(), limiter=limiter, block_steps=4, mean_length=4)
    writer = Actor(stored)
    other = Actor(stored, b"o" * 16, writer.queue)
    for number in range(12):
        grant = writer.stored.lease(writer.client, 1, 1) if number < 2 else writer.stored.allocate(writer.client, 1, 1)
        writer.send(writer.entry(int(grant.slots[0]), grant.blocks, 1, BEGIN | END))
    assert stored.info()["trajectories"] < 12
    grants: list = []
    writer.queue.allocate(writer.client, 1, 1, time.monotonic() - 1, grants.append)
    assert grants == []
    others: list = []
    writer.queue.allocate(other.client, 1, 1, LATER, others.append)  # is not kept waiting by it
    assert len(others) == 1
    writer.queue.expire(time.monotonic())
    assert isinstance(grants[0], DeadlineExceeded)
    assert "SampleToInsertRatio" in str(grants[0])
    grants.clear()
    writer.queue.allocate(writer.client, 1, 1, LATER, grants.append)
    writer.queue.select(other.client, 4, 1, 60.0, LATER, others.append)
    assert stored.info()["trajectories"] == 12
    assert len(grants) == 1


def test_clients_behind_a_limiter_get_through_in_turn():
    limiter = SampleToInsertRatio(1.0, 1, 2.0)
    stored = make(capacity=Trajectories(400), item=Whole(), limiter=limiter, block_steps=4, mean_length=4)
    writers = [Actor(stored, bytes([65 + n]) * 16) for n in range(3)]
    for writer in writers:
        writer.queue = writers[0].queue
    for writer in writers:
        for number in range(5):
            writer.insert(number, 1)
    first = [len(writer.results) for writer in writers]
    reader = Actor(stored, b"r" * 16, writers[0].queue)
    selections: list = []
    for _ in range(6):
        reader.queue.select(reader.client, 1, 1, 60.0, LATER, selections.append)
        stored.pins.release(reader.client, selections[-1].pin, True)
        reader.queue.advance()
    gained = [len(writer.results) - before for writer, before in zip(writers, first, strict=True)]
    assert sum(gained) == 6
    assert max(gained) - min(gained) <= 1


def test_a_trajectory_used_up_while_it_was_open_leaves_when_it_ends():
    for end in ("end", "fence"):
        stored = make(
            capacity=Trajectories(4), item=Step(0), publish="rows", max_times_sampled=1, sampler=Fifo(), block_steps=4
        )
        writer, reader = Actor(stored), Actor(stored, b"r" * 16)
        growing = Growing(writer, 1)
        growing.append(3)
        selection = stored.select(reader.client, 3, 1, 60.0)
        stored.pins.release(reader.client, selection.pin, True)
        assert stored.info()["trajectories"] == 1
        if end == "end":
            writer.send(writer.entry(growing.slot, [], 0, END))
        else:
            stored.fence(writer.client)
        info = stored.info()
        assert (info["trajectories"], info["consumed_trajectories"], info["used_blocks"]) == (0, 1, 0), end


@pytest.mark.parametrize("twice", [False, True])
def test_withdrawn_commits_give_their_leases_back_once_also_if_the_message_was_sent_again(twice):
    limiter = SampleToInsertRatio(1.0, 1, 2.0)
    stored = make(capacity=Trajectories(400), item=Whole(), limiter=limiter, block_steps=4, mean_length=4)
    writer = Actor(stored)
    parts = []
    for _ in range(6):
        grant = stored.lease(writer.client, 1, 1)
        parts.append(writer.entry(int(grant.slots[0]), grant.blocks, 1, BEGIN | END))
    writer.send(*parts)
    if twice:
        writer.send(*parts)
    done = stored.committed(writer.client)
    assert 0 < done < 5
    assert writer.queue.withdraw(writer.client, done + 2, 6) == 6 - done - 1
    info = stored.info()
    assert info["leased_blocks"] == 1
    reader = Actor(stored, b"r" * 16, writer.queue)
    writer.queue.select(reader.client, done, 1, 60.0, LATER, lambda _: None)
    assert stored.committed(writer.client) == done + 1
    assert stored.info()["leased_blocks"] == 0
    assert all(isinstance(result, CommitDone) for result in writer.results)
    assert len(writer.results) == 1 + twice


def test_a_part_of_a_trajectory_is_not_withdrawn():
    limiter = SampleToInsertRatio(1.0, 1, 2.0)
    stored = make(
        capacity=Trajectories(40), item=Step(0), publish="rows", limiter=limiter, block_steps=4, mean_length=4
    )
    writer = Actor(stored)
    growing = Growing(writer, 1)
    for _ in range(6):
        growing.append(1)
    before = stored.info()["leased_blocks"]
    with pytest.raises(ProtocolError, match="whole trajectories"):
        writer.queue.withdraw(writer.client, stored.committed(writer.client) + 1, writer.sequence)
    assert stored.info()["leased_blocks"] == before


def test_the_row_of_a_silent_client_is_given_to_nobody_before_it_is_fenced(monkeypatch):
    stored = make(capacity=Trajectories(40), item=Step(0), publish="rows", mean_length=8, block_steps=4)
    monkeypatch.setattr("gear.storage.fields.MAX_CLIENTS", 3)
    silent, other = Actor(stored, b"s" * 16), Actor(stored, b"o" * 16)
    Growing(silent, 1).append(8)  # open, with nothing leased
    stored.suspend(silent.client)
    with pytest.raises(InsufficientMemory):
        stored.attach(b"n" * 16)
    stored.fence(silent.client)
    assert stored.attach(b"n" * 16) == silent.client
    assert stored.attach(b"o" * 16) == other.client


@pytest.mark.parametrize(("field", "count"), [("blocks", 2**31 - 1), ("blocks", -1), ("blocks", 0), ("priorities", 9)])
def test_entries_that_do_not_add_up_are_refused_though_earlier_ones_wait(field, count):
    """Origin: fuzzing; a withdrawal then cut by what they said, or repeated it two thousand million times."""
    stored = make(capacity=Trajectories(50), item=Whole(), limiter=Queue(2), mean_length=8, block_steps=8)
    actor = Actor(stored)
    for number in range(3):
        actor.insert(number, 3)
    grant = actor.grant(1)
    entries, blocks, priorities = actor.entry(int(grant.slots[0]), grant.blocks, 3, BEGIN | END)
    entries[field] = count
    actor.send((entries, blocks, priorities))
    assert isinstance(actor.results.pop(), ProtocolError)
    assert actor.queue.withdraw(actor.client, 1, 100) == 1
    actor.insert(7, 3)
    assert len(actor.queue._commits[actor.client]) == 1

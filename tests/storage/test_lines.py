"""Queues, stacks and single-use items: who waits for whom, what comes in which order, and what is never lost."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest

from gear.errors import DeadlineExceeded
from gear.schema import (
    Bytes,
    Epochs,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Stack,
    Step,
    Steps,
    Trajectories,
    Uniform,
    Whole,
    Window,
)
from gear.storage.fields import CURSOR, CURSOR_BLOCK, ORDINAL

from .actors import Actor, Growing, make, read

LATER = time.monotonic() + 3600


def select(actor: Actor, size: int, deadline: float = LATER) -> list:
    """What the request was answered with: nothing while it waits, then one selection or error."""
    answers: list = []
    actor.queue.select(actor.client, size, 1, 60.0, deadline, answers.append)
    return answers


def take(actor: Actor, size: int, delivered: bool = True) -> list[tuple[int, int]]:
    """(trajectory, step) of each item of a batch, which is released."""
    (selection,) = select(actor, size)
    rows = [read(actor.stored, int(start), 1) for start in selection.starts]
    actor.stored.pins.release(actor.client, selection.pin, delivered)
    actor.queue.advance()
    return [(int(ks[0, 0]), int(ts[0])) for ks, ts in rows]


def numbers(found: list[tuple[int, int]]) -> list[int]:
    return [number for number, _ in found]


def line(limiter, **fields) -> Actor:
    return Actor(make(capacity=Trajectories(20), item=Whole(), limiter=limiter, mean_length=2, **fields))


def test_a_queue_of_10_blocks_the_11th_insert_and_yields_0_to_10_in_order():
    """Origin: Reverb's Queue."""
    actor = line(Queue(10))
    for number in range(11):
        actor.insert(number, 2)
    assert len(actor.results) == 10
    assert take(actor, 1) == [(0, 0)]
    assert len(actor.results) == 11
    assert numbers(sum((take(actor, 1) for _ in range(10)), [])) == list(range(1, 11))
    info = actor.stored.info()
    assert (info["items"], info["trajectories"], info["consumed_trajectories"]) == (0, 0, 11)
    assert select(actor, 1) == []


def test_a_stack_of_3_blocks_the_4th_insert_and_yields_the_newest_first():
    """Origin: Reverb's Stack. The 4th comes in when the first sample has been promised, and is the next one out."""
    actor = line(Stack(3))
    for number in range(4):
        actor.insert(number, 2)
    assert len(actor.results) == 3
    assert numbers(sum((take(actor, 1) for _ in range(4)), [])) == [2, 3, 1, 0]


def test_a_queue_of_one_passes_items_through_one_by_one():
    actor = line(Queue(1))
    for number in range(3):
        actor.insert(number, 2)
    assert len(actor.results) == 1
    assert [numbers(take(actor, 1)) for _ in range(3)] == [[0], [1], [2]]


def test_a_request_for_more_than_a_queue_holds_gets_what_it_holds():
    actor = line(Queue(4))
    answers = select(actor, 100)
    for number in range(6):
        assert answers == [] or number >= 4
        actor.insert(number, 2)
    assert [int(read(actor.stored, int(s), 1)[0][0, 0]) for s in answers[0].starts] == [0, 1, 2, 3]
    assert len(actor.results) == 6


def test_a_full_batch_is_waited_for_and_the_timeout_says_so_without_side_effects():
    actor = line(Queue(4))
    actor.insert(0, 2)
    answers = select(actor, 2, deadline=0.0)
    before = actor.stored.info()["items"]
    actor.queue.expire(time.monotonic())
    assert isinstance(answers[0], DeadlineExceeded)
    assert "sample of 2 timed out: the limiter Queue(size=4)" in str(answers[0])
    assert "1 items inserted, 0 sampled or promised" in str(answers[0])
    assert (actor.stored.info()["reserved_items"], actor.stored.info()["items"]) == (0, before)
    assert numbers(take(actor, 1)) == [0]


def test_a_blocked_insert_says_what_it_waits_for():
    actor = line(Queue(2))
    for number in range(3):
        actor.insert(number, 2)
    assert "the limiter Queue(size=2) of table 'table' waits for samples" in actor.queue.insert_obstacle()


@pytest.mark.parametrize("limiter", [Queue(10), Stack(10)])
def test_what_was_not_delivered_is_drawn_again_in_its_place(limiter):
    actor = line(limiter)
    for number in range(6):
        actor.insert(number, 2)
    first = take(actor, 4, delivered=False)
    assert take(actor, 4) == first
    assert len(take(actor, 2)) == 2


@pytest.mark.parametrize("capacity", [Steps(10), Bytes(16 * 28)])
def test_a_queue_evicts_nothing_that_was_not_delivered(capacity):
    """Origin: prime-rl#2796. Its capacity is full before its size: inserts wait for room, batches come short."""
    actor = Actor(make(capacity=capacity, item=Whole(), limiter=Queue(10), block_steps=2, mean_length=2))
    inserted, found = 0, []
    for _ in range(12):
        while len(actor.results) == inserted:  # until one waits
            actor.insert(inserted, 4)
            inserted += 1
        assert 1 <= actor.stored.info()["items"] < 10
        found += numbers(take(actor, 2))
    assert found == list(range(len(found)))
    assert len(found) > 12
    assert actor.stored.info()["evicted_trajectories"] == 0


def test_a_waiting_batch_comes_short_when_an_insert_waits_for_room():
    actor = Actor(make(capacity=Steps(8), item=Whole(), limiter=Queue(8), block_steps=2, mean_length=2))
    answers = select(actor, 6)
    actor.insert(0, 4)
    actor.insert(1, 4)
    assert answers == []
    actor.insert(2, 4)
    assert len(answers[0]) == 2
    assert len(actor.results) == 2
    actor.stored.pins.release(actor.client, answers[0].pin, True)
    actor.queue.advance()
    assert len(actor.results) == 3


def test_a_queue_of_steps_flows_while_its_trajectories_grow():
    """Rows that were delivered give way to new ones, though their trajectory has not ended."""
    actor = Actor(make(capacity=Steps(12), item=Step(0), limiter=Queue(4), block_steps=2, mean_length=4, max_length=12))
    growing = [Growing(actor, number) for number in range(2)]
    found: list[tuple[int, int]] = []
    for step in range(6):
        for one in growing:
            one.append(1)
        found += take(actor, 2)
        assert sorted(found[-2:]) == [(0, step), (1, step)]
    late = Growing(actor, 2)
    late.append(2)
    assert take(actor, 2) == [(2, 0), (2, 1)]


def test_a_request_for_2_with_one_single_use_item_gives_1():
    """Origin: Reverb, SampleFlexibleBatch."""
    actor = line(MinSize(1), max_times_sampled=1)
    actor.insert(7, 2)
    assert take(actor, 2) == [(7, 0)]
    assert select(actor, 2) == []


def test_deletions_below_the_minimum_block_samples_again():
    """Origin: Reverb's MinSize: by use, and by eviction."""
    actor = line(MinSize(3), max_times_sampled=1)
    for number in range(4):
        actor.insert(number, 2)
    assert len(take(actor, 2)) == 2
    answers = select(actor, 1)
    assert answers == []
    actor.insert(4, 2)
    assert len(answers) == 1

    actor = Actor(make(capacity=Steps(12), item=Whole(), limiter=MinSize(3), mean_length=4))
    for number in range(3):
        actor.insert(number, 4)
    assert len(take(actor, 2)) == 2
    actor.insert(3, 12)
    answers = select(actor, 1)
    assert answers == []
    actor.insert(4, 4)
    assert answers == []
    for number in (5, 6):
        actor.insert(number, 4)
    assert len(answers) == 1


EVERY = [Uniform(), Uniform("trajectories"), Prioritized(1.0, 0.5), Fifo(), Lifo(), MaxHeap(), MinHeap(), Epochs()]


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("sampler", EVERY, ids=str)
@pytest.mark.parametrize("item", [Whole(), Step(0), Window(3, 2, "head")], ids=str)
def test_no_sampler_gives_an_item_more_often_than_allowed_nor_less(sampler, item, distinct):
    stored = make(
        capacity=Steps(100), item=item, sampler=sampler, max_times_sampled=2, block_steps=4, publish="end",
        distinct=distinct,
    )  # fmt: skip
    actor, found = Actor(stored), []
    for number in range(3):
        actor.insert(number, 7)
    items = stored.info()["items"]
    for size in (items, 1, items // 2 + 1):
        take(actor, size, delivered=False)
    while stored.info()["items"]:
        (selection,) = select(actor, 1 if distinct else 5)
        stored.pins.release(actor.client, selection.pin, True)
        found += selection.ids.tolist()
    assert len(set(found)) == items
    assert set(Counter(found).values()) == {2}
    assert (stored.info()["trajectories"], stored.info()["held_blocks"]) == (0, 0)


@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        (Fifo(), [0, 1, 2, 3, 4]),
        (Lifo(), [4, 3, 2, 1, 0]),
        (MaxHeap(), [3, 0, 4, 2, 1]),
        (MinHeap(), [1, 2, 4, 0, 3]),
    ],
)
def test_an_ordered_sampler_goes_on_in_its_order_as_items_are_used_up(sampler, order):
    actor = line(MinSize(1), sampler=sampler, max_times_sampled=2)
    for number, priority in enumerate([5.0, 1.0, 2.0, 9.0, 4.0]):
        actor.insert(number, 2, [priority])
    assert numbers(take(actor, 100)) == [number for number in order for _ in range(2)]


def test_a_heap_follows_updates_and_breaks_ties_by_the_oldest_update():
    """Origin: Reverb's heap selector: of equal priorities the least recently inserted or updated one."""
    actor = line(MinSize(1), sampler=MaxHeap(), distinct=True)
    for number in range(3):
        actor.insert(number, 2, [1.0])
    (selection,) = select(actor, 3)
    ids = selection.ids
    assert numbers(take(actor, 3)) == [0, 1, 2]
    actor.stored.update(ids[:1], np.array([1.0]))
    assert numbers(take(actor, 3)) == [1, 2, 0]
    actor.stored.update(ids[2:], np.array([7.0]))
    assert numbers(take(actor, 3)) == [2, 1, 0]


def test_a_heap_puts_what_was_not_delivered_back_before_its_equals():
    actor = line(MinSize(1), sampler=MaxHeap(), max_times_sampled=1)
    for number in range(3):
        actor.insert(number, 2, [1.0])
    assert numbers(take(actor, 2, delivered=False)) == [0, 1]
    assert numbers(take(actor, 3)) == [0, 1, 2]


def test_a_min_heap_draws_priority_zero_first():
    actor = line(MinSize(1), sampler=MinHeap())
    actor.insert(0, 2, [0.5])
    actor.insert(1, 2, [0.0])
    assert numbers(take(actor, 2)) == [1, 1]


@pytest.mark.parametrize(
    ("remover", "left"),
    [(Lifo(), [0, 1, 5]), (MaxHeap(), [1, 2, 5]), (MinHeap(), [0, 3, 5]), (Fifo(), [3, 4, 5])],
)
def test_removers_take_trajectories_in_their_order(remover, left):
    """The item priorities of a trajectory count by their largest; the one being inserted is no candidate."""
    stored = make(capacity=Trajectories(3), item=Step(0), sampler=Uniform(), remover=remover, publish="end")
    actor = Actor(stored)
    for number, priority in enumerate([5.0, 1.0, 2.0, 9.0, 4.0, 3.0]):
        actor.insert(number, 2, [0.1, priority])
    (selection,) = select(actor, 200)
    assert sorted({int(read(stored, int(s), 1)[0][0, 0]) for s in selection.starts}) == left


def test_a_room_for_a_lease_is_taken_from_the_first_in_the_removers_order_that_nobody_reads():
    for remover, gone in ((Lifo(), 18), (MaxHeap(), 18), (MinHeap(), 0), (Fifo(), 0)):
        stored = make(
            capacity=Trajectories(20), item=Whole(), sampler=Lifo(), remover=remover, mean_length=8, block_steps=4
        )
        writer, other = Actor(stored), Actor(stored, b"s" * 16)
        for number in range(20):
            writer.insert(number, 8, [float(number)])
        while stored.counters[7]:  # FREE_BLOCKS
            stored.allocate(other.client, 1, 0)
        stored.select(other.client, 1, 1, 60.0)  # the newest, which has the largest priority, is read
        assert stored.allocate(writer.client, 2, 0) is not None
        slots = stored.layout.view(stored.segment, "slots")
        left = {int(slots[s, 8]) - 1 for s in range(stored.layout.slots) if slots[s, 0] == 3}
        assert set(range(20)) - left == {gone}, remover


@pytest.mark.parametrize("limiter", [Queue(64), Stack(64)])
def test_the_cursor_follows_what_is_used_up_so_that_the_next_draw_begins_there(limiter):
    stored = make(capacity=Steps(200), item=Step(0), limiter=limiter, block_steps=4, publish="end", max_length=60)
    actor = Actor(stored)
    slot = actor.insert(0, 60)
    record = stored.layout.view(stored.segment, "slots")[slot]
    ordinals = stored.layout.view(stored.segment, "blocks")[:, ORDINAL]
    (selection,) = select(actor, 30)
    select(actor, 1)
    assert record[CURSOR] == 30
    assert abs(ordinals[record[CURSOR_BLOCK]] - 30 // 4) <= 1
    stored.pins.release(actor.client, selection.pin, False)
    assert record[CURSOR] == (0 if isinstance(limiter, Queue) else 60)
    assert abs(ordinals[record[CURSOR_BLOCK]] - record[CURSOR] // 4) <= 1


def test_two_samples_admit_the_insert_that_waited_and_no_other():
    """Origin: Reverb: samples per insert 1.5, minimum 2, differences in [0, 5]."""
    actor = line(SampleToInsertRatio(1.5, 2, (0.0, 5.0)))
    actor.insert(0, 2)
    assert select(actor, 1, deadline=0.0) == []
    actor.queue.expire(time.monotonic())
    for number in range(1, 5):
        actor.insert(number, 2)
    assert len(actor.results) == 3  # 4.5 after three, 6 after four
    take(actor, 2)
    assert len(actor.results) == 4  # 4 after four and two samples, 5.5 with a fifth
    take(actor, 1)
    assert len(actor.results) == 5

"""A stored table against a plain model of it, under random inserts, evictions, draws, pins and deaths."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gear.errors import DataError, DeadlineExceeded, PinLost, ProtocolError
from gear.schema import (
    Bytes,
    Epochs,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    SampleToInsertRatio,
    Step,
    Steps,
    Trajectories,
    Uniform,
    Whole,
    Window,
)
from gear.storage import obstacles
from gear.storage.fields import BEGIN, END, EVICTED_EARLY, HAS_FINAL, ID_SHARD_SHIFT, STATE
from gear.storage.queue import CommitDone

from .actors import Actor, Growing, make, read

ITEMS = [
    Whole(), Step(1), Step(0), Step(3), Window(4), Window(4, 3), Window(5, 2, "tail"), Window(3, 1, "head"),
    Window(7, 9, "head"), Window(2, edge="tail"),
]  # fmt: skip
SAMPLERS = [
    Uniform(), Uniform("trajectories"), Prioritized(0.5), Prioritized(1.0, 0.1), Prioritized(0.0), Fifo(), Lifo(),
    MaxHeap(), MinHeap(), Epochs(),
]  # fmt: skip
HEAPS = (MaxHeap, MinHeap)


def positions(item, length: int, ended: bool) -> list[int]:
    """Positions of the drawable items of a trajectory, straight from the definitions."""
    if isinstance(item, Whole):
        return [0] if ended else []
    if isinstance(item, Step):
        return [t for t in range(length) if ended or t + item.n < length]
    if item.edge == "head" or item.edge == "tail" and ended:
        starts = list(range(length))
    else:
        starts = [t for t in range(length) if t + item.length <= length]
        if not starts and ended:
            starts = [0]
    return [t for t in starts if t % item.stride == 0]


def rows_of(item, position: int, length: int) -> range:
    """Stored rows of the item at a position."""
    if isinstance(item, Whole):
        return range(length)
    if isinstance(item, Step):
        return range(position, position + 1)
    if item.edge == "head":
        return range(max(0, position - item.length + 1), position + 1)
    return range(position, min(length, position + item.length))


class Model(RuleBasedStateMachine):
    """Trajectories are numbered; the model keeps length, state, order and priorities of each."""

    @initialize(
        item=st.sampled_from(ITEMS),
        capacity=st.sampled_from([Steps(60), Trajectories(6), Bytes(2000)]),
        sampler=st.sampled_from(SAMPLERS),
        remover=st.sampled_from([Fifo(), Uniform(), Prioritized(1.0), Lifo(), MaxHeap(), MinHeap()]),
        distinct=st.booleans(),
        block_steps=st.sampled_from([1, 2, 4, 5]),
        publish=st.sampled_from(["end", "rows"]),
    )
    def start(self, item, capacity, sampler, remover, distinct, block_steps, publish):
        if isinstance(item, Whole):
            publish = "end"
        self.stored = make(
            capacity=capacity, item=item, sampler=sampler, remover=remover, block_steps=block_steps, publish=publish,
            max_length=30, seed=5, distinct=distinct,
        )  # fmt: skip
        self.distinct, self.epoch = distinct, set()
        self.item, self.sampler, self.remover, self.capacity = item, sampler, remover, capacity
        self.by_rows = publish == "rows"
        self.actor = Actor(self.stored)
        self.actor.out_of_blocks = self.release_all
        self.other = Actor(self.stored, b"b" * 16, self.actor.queue)
        self.numbers = 0
        self.live: dict[int, dict] = {}  # number -> {"length", "ended", "priorities"}
        self.growing: list[Growing] = []
        self.pinned: list = []
        self.read: set[int] = set()
        self.early = 0
        self.seen: dict[int, tuple[int, int]] = {}
        self.largest = 1.0
        self.clock = 0
        self.closed: set[int] = set()

    def model_items(self):
        return [(n, p) for n, k in self.live.items() for p in positions(self.item, k["length"], k["ended"])]

    def sync(self) -> None:
        """Forget what was evicted; a remover with an order must have taken the first closed ones in it."""
        slots = self.stored.layout.view(self.stored.segment, "slots")
        alive = set()
        for slot in np.flatnonzero((slots[:, STATE] == 2) | (slots[:, STATE] == 3)):
            first = int(slots[slot, 1]) * self.stored.layout.block_steps
            alive.add(int(read(self.stored, first, 1)[0][0, 0]))
        gone = [n for n in self.live if n not in alive]
        assert alive <= set(self.live)
        rank = self.leaving_rank()
        if rank is not None:
            early = int(self.stored.counters[EVICTED_EARLY])
            read_by = set() if early == self.early else self.read  # making room for a lease spares what is read
            self.early = early
            closed_left = [rank(n) for n in alive if n in self.closed and n not in read_by]
            closed_gone = [rank(n) for n in gone if n in self.closed]
            assert not closed_gone or not closed_left or max(closed_gone) <= min(closed_left)
        for number in gone:
            del self.live[number]
        self.closed = {n for n in self.live if self.live[n]["ended"]}
        self.read = {int(ks[0, 0]) for _, contents in self.pinned for ks, _ in contents}
        for growing in [g for g in self.growing if g.number not in self.live]:
            growing.abandon()
            self.growing.remove(growing)

    def leaving_rank(self):
        """Smaller leaves earlier; None where the remover draws."""
        largest = lambda n: max(self.live[n]["priorities"], default=0.0)
        return {
            Fifo: lambda n: n, Lifo: lambda n: -n, MaxHeap: lambda n: -largest(n), MinHeap: largest,
        }.get(type(self.remover))  # fmt: skip

    def items_now(self, number: int) -> int:
        k = self.live[number]
        return len(positions(self.item, k["length"], k["ended"]))

    def fill_default(self, number: int) -> None:
        """Items that have come get the largest priority so far; the clock says which was weighed before which."""
        k = self.live[number]
        missing = self.items_now(number) - len(k["priorities"])
        k["priorities"] += [self.largest] * missing
        missing = self.items_now(number) - len(k["weighed"])
        k["weighed"] += range(self.clock + 1, self.clock + 1 + missing)
        self.clock += missing

    @rule(length=st.integers(1, 30), data=st.data())
    def insert(self, length, data):
        number = self.numbers = self.numbers + 1
        count = len(positions(self.item, length, True))
        given = data.draw(
            st.one_of(st.just([]), st.lists(st.sampled_from([0.0, 0.5, 2.0, 9.0]), min_size=count, max_size=count))
        )
        if count == 1 and given:
            given = given[:1]
        self.actor.insert(number, length, given)
        self.live[number] = {"length": length, "ended": True, "priorities": list(given), "weighed": []}
        if given and self.keeps:
            self.largest = max(self.largest, *given)
        self.fill_default(number)
        self.sync()
        assert number in self.live

    @property
    def keeps(self):
        return self.stored.keeps_priorities

    @rule(rows=st.integers(1, 9), which=st.integers(0, 3), end=st.booleans())
    def grow(self, rows, which, end):
        if not self.by_rows:
            return
        if which >= len(self.growing):
            self.numbers += 1
            growing = Growing(self.actor, self.numbers)
            self.growing.append(growing)
        else:
            growing = self.growing[which]
        rows = min(rows, 30 - growing.length)
        if rows == 0:
            return
        growing.append(rows, end)
        known = self.live.setdefault(growing.number, {"length": 0, "ended": False, "priorities": [], "weighed": []})
        known["length"] += rows
        known["ended"] = end
        self.fill_default(growing.number)
        if end:
            self.growing.remove(growing)
        self.sync()

    @rule(size=st.integers(1, 20))
    def select(self, size):
        results: list = []
        self.actor.queue.select(self.other.client, size, 1, 60.0, time.monotonic() + 60, results.append)
        masses = self.masses()
        total = sum(masses.values())
        if total == 0 or (self.distinct and sum(m > 0 for m in masses.values()) < size):
            assert not results
            self.actor.queue.expire(float("inf"))
            assert isinstance(results[0], DeadlineExceeded)
            return
        (selection,) = results
        assert len(selection) == size
        contents, found = [], []
        for k in range(size):
            ks, ts = read(self.stored, int(selection.starts[k]), int(selection.lengths[k]))
            number = int(ks[0, 0])
            assert (ks == number).all()
            length = self.live[number]["length"]
            matching = [
                p
                for p in positions(self.item, length, self.live[number]["ended"])
                if list(rows_of(self.item, p, length)) == list(ts)
            ]
            assert matching, (number, ts)
            position = self.position_of(selection.ids[k], number, matching)
            found.append((number, position))
            where = self.seen.setdefault(int(selection.ids[k]), (number, position))
            assert where == (number, position), "an id was issued twice"
            contents.append((ks, ts))
        assert not self.distinct or len(set(found)) == size, "a batch holds an item twice"
        if isinstance(self.sampler, Epochs):
            self.check_epoch(found, selection.probabilities, set(masses))
        elif isinstance(self.sampler, (Fifo, Lifo, *HEAPS)):
            assert (
                found == self.in_order(list(masses))[:size] if self.distinct else size * self.in_order(list(masses))[:1]
            )
            assert (selection.probabilities == 1).all()
        else:
            assert min(masses[which] for which in found) > 0
            expected = [masses[which] / total for which in found]
            assert selection.probabilities == pytest.approx(expected, rel=1e-9)
            smallest = min(m for m in masses.values() if m > 0) / total
            if self.sampler == Uniform("trajectories"):
                assert selection.smallest <= smallest * (1 + 1e-9)  # a bound
            else:
                assert selection.smallest == pytest.approx(smallest, rel=1e-9)
        self.pinned.append((selection, contents))
        self.read |= {int(ks[0, 0]) for ks, _ in contents}

    def masses(self):
        """Item -> its share of the draws, from the definitions."""
        masses = {}
        for number, position in self.model_items():
            k = self.live[number]
            at = positions(self.item, k["length"], k["ended"])
            masses[number, position] = 1.0
            if isinstance(self.sampler, Prioritized):
                base = k["priorities"][at.index(position)] + self.sampler.eps
                masses[number, position] = base**self.sampler.alpha if base > 0 else 0.0
            elif self.sampler == Uniform("trajectories"):
                masses[number, position] = 1.0 / len(at)
        return masses

    def in_order(self, items):
        """The items as an ordered sampler takes them; of equal ones the one weighed least recently."""
        if not isinstance(self.sampler, HEAPS):
            return sorted(items, reverse=isinstance(self.sampler, Lifo))
        sign = -1 if isinstance(self.sampler, MaxHeap) else 1

        def rank(which):
            number, position = which
            k = self.live[number]
            at = positions(self.item, k["length"], k["ended"]).index(position)
            return sign * k["priorities"][at], k["weighed"][at]

        return sorted(items, key=rank)

    def check_epoch(self, found, probabilities, items):
        """Each item once before any comes again; what was drawn in the running epoch is in `self.epoch`."""
        self.epoch &= items
        for which, probability in zip(found, probabilities, strict=True):
            if self.epoch == items:
                self.epoch.clear()
            assert which not in self.epoch, "an item came twice in an epoch"
            assert probability == pytest.approx(1 / (len(items) - len(self.epoch)))
            self.epoch.add(which)

    def position_of(self, item_id, number, matching):
        """The position that the id names: the row of the id is the item's addressing row."""
        layout = self.stored.layout
        assert int(item_id) >> ID_SHARD_SHIFT == 0
        row = int(item_id) & ((1 << layout.row_bits) - 1)
        _, t = read(self.stored, row, 1)
        position = 0 if isinstance(self.item, Whole) else int(t[0])
        assert position in matching
        return position

    @rule(delivered=st.booleans(), which=st.integers(0, 5))
    def release(self, delivered, which):
        if which < len(self.pinned):
            selection, _ = self.pinned.pop(which)
            self.stored.pins.release(self.other.client, selection.pin, delivered)
            if not delivered:
                self.drawn_again(selection)
            self.actor.queue.advance()

    def release_all(self):
        while self.pinned:
            self.release(True, 0)

    @rule(data=st.data())
    def update(self, data):
        if not self.keeps or not self.seen:
            return
        ids = data.draw(st.lists(st.sampled_from(sorted(self.seen)), min_size=1, max_size=6))
        priorities = data.draw(
            st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0, 20.0]), min_size=len(ids), max_size=len(ids))
        )
        update = self.stored.update(np.array(ids), np.array(priorities))
        expected = 0
        for item_id, priority in zip(ids, priorities, strict=True):
            number, position = self.seen[item_id]
            if number in self.live:
                expected += 1
                k = self.live[number]
                at = positions(self.item, k["length"], k["ended"]).index(position)
                self.clock += 1
                k["priorities"][at], k["weighed"][at] = priority, self.clock
                self.largest = max(self.largest, priority)
        assert update == (expected, len(ids) - expected)

    def drawn_again(self, selection):
        self.epoch -= {self.seen[int(item_id)] for item_id in selection.ids}

    @rule()
    def reader_dies(self):
        self.stored.fence(self.other.client)
        for selection, _ in self.pinned:
            self.drawn_again(selection)
        self.pinned.clear()
        self.stored.resume(self.other.client)

    @rule()
    def writer_dies(self):
        self.stored.fence(self.actor.client)
        self.stored.resume(self.actor.client)
        for growing in self.growing:
            if growing.number in self.live:
                self.live[growing.number]["ended"] = True
                self.fill_default(growing.number)
        self.growing.clear()
        self.closed = set(self.live)

    @invariant()
    def adds_up(self):
        if not hasattr(self, "stored"):
            return
        info = self.stored.info()
        layout = self.stored.layout
        blocks = sum(info[n] for n in ("used_blocks", "leased_blocks", "held_blocks", "free_blocks", "retired_blocks"))
        assert blocks == layout.blocks
        assert info["trajectories"] == len(self.live)
        assert info["steps"] == sum(k["length"] for k in self.live.values())
        assert info["items"] == len(self.model_items())
        assert info["inserted_items"] - info["deleted_items"] == info["items"]
        if isinstance(self.capacity, Steps):
            assert info["steps"] <= self.capacity.n
        elif isinstance(self.capacity, Trajectories):
            assert info["trajectories"] <= self.capacity.n
        else:
            assert info["used_bytes"] <= self.capacity.n
        if not self.pinned and not self.growing:
            assert info["held_blocks"] == 0

    @invariant()
    def pinned_rows_stay(self):
        for selection, contents in getattr(self, "pinned", []):
            for k, (ks, ts) in enumerate(contents):
                now = read(self.stored, int(selection.starts[k]), int(selection.lengths[k]))
                np.testing.assert_array_equal(now[0], ks)
                np.testing.assert_array_equal(now[1], ts)


Model.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestModel = Model.TestCase


def test_an_id_is_never_issued_twice_in_200000_reuses():
    stored = make(
        capacity=Trajectories(50),
        item=Whole(),
        sampler=Prioritized(1.0),
        remover=Uniform(),
        mean_length=1,
        block_steps=1,
    )
    actor = Actor(stored)
    issued: set[int] = set()
    stale_ids = []
    draws = 0
    while draws < 200_000:
        number = 100
        grants = [actor.grant(1) for _ in range(min(20, stored.layout.reserve_blocks // 2))]
        actor.send(*(actor.entry(int(g.slots[0]), g.blocks, 1, BEGIN | END) for g in grants))
        draws += len(grants)
        blocks = stored.layout.view(stored.segment, "blocks")
        for g in grants:
            name = (int(g.blocks[0]), int(blocks[g.blocks[0], 0]))
            assert name not in issued
            issued.add(name)
        number += 1
    selections: list = []
    actor.queue.select(actor.client, 64, 1, 60, time.monotonic() + 1, selections.append)
    stale_ids = selections[0].ids
    stored.pins.release(actor.client, selections[0].pin, True)
    for n in range(600):
        actor.insert(n, 1)
    before = stored.layout.view(stored.segment, "tree").copy()
    assert stored.update(stale_ids, np.full(64, 1e6)) == (0, 64)
    np.testing.assert_array_equal(before, stored.layout.view(stored.segment, "tree"))


def test_a_block_without_generations_left_is_retired():
    stored = make(capacity=Trajectories(4), item=Whole(), mean_length=1, block_steps=1)
    stored.params[9] = 3
    actor = Actor(stored)
    for n in range(3 * stored.layout.blocks):
        if stored.info()["free_blocks"] == 0:
            break
        actor.insert(n, 1)
    assert stored.info()["retired_blocks"] > 0


def fault_entries(actor: Actor):
    grant = actor.grant(3)
    slot = int(grant.slots[0])
    other = Actor(actor.stored, b"z" * 16, actor.queue)
    foreign = other.grant(1)
    b = grant.blocks
    return {
        "sequence": (actor.entry(slot, b[:3], 10, BEGIN | END, sequence=0), ProtocolError),
        "slot": (actor.entry(int(foreign.slots[0]), b[:3], 10, BEGIN | END), ProtocolError),
        "slot number": (actor.entry(10**6, b[:3], 10, BEGIN | END), ProtocolError),
        "negative slot": (actor.entry(-1, b[:3], 10, BEGIN | END), ProtocolError),
        "foreign block": (actor.entry(slot, [b[0], b[1], foreign.blocks[0]], 10, BEGIN | END), ProtocolError),
        "block twice": (actor.entry(slot, [b[0], b[1], b[1]], 10, BEGIN | END), ProtocolError),
        "block number": (actor.entry(slot, [b[0], b[1], 10**6], 10, BEGIN | END), ProtocolError),
        "zero length": (actor.entry(slot, [], 0, BEGIN | END), ProtocolError),
        "negative length": (actor.entry(slot, [], -4, BEGIN | END), ProtocolError),
        "too few blocks": (actor.entry(slot, b[:2], 10, BEGIN | END), ProtocolError),
        "too many blocks": (actor.entry(slot, b[:3], 5, BEGIN | END), ProtocolError),
        "unknown flag": (actor.entry(slot, b[:3], 10, BEGIN | END | 1 << 20), ProtocolError),
        "open in an end table": (actor.entry(slot, b[:3], 10, BEGIN), ProtocolError),
        "nan": (actor.entry(slot, b[:3], 10, BEGIN | END, [np.nan]), DataError),
        "negative priority": (actor.entry(slot, b[:3], 10, BEGIN | END, [-1.0]), DataError),
        "infinite priority": (actor.entry(slot, b[:3], 10, BEGIN | END, [np.inf]), DataError),
        "number of priorities": (actor.entry(slot, b[:3], 10, BEGIN | END, [1.0] * 3), ProtocolError),
        "too long": (actor.entry(slot, b[:3], 10**6, BEGIN | END), DataError),
        "final without room": (actor.entry(slot, b[:3], 12, BEGIN | END | HAS_FINAL), ProtocolError),
    }


def test_a_commit_message_with_one_bad_entry_changes_nothing():
    """Origin: Reverb 0.14, one insert with a negative priority took the whole table down."""
    stored = make(capacity=Steps(100), item=Window(4), sampler=Prioritized(1.0), block_steps=4)
    actor = Actor(stored)
    actor.insert(1, 10)
    good = actor.grant(1)
    for name, (bad, kind) in fault_entries(actor).items():
        actor.sequence += 1
        before = stored.segment.copy()
        actor.results.clear()
        actor.send(actor.entry(int(good.slots[0]), good.blocks, 3, BEGIN | END, sequence=2), bad)
        assert isinstance(actor.results[0], kind), name
        np.testing.assert_array_equal(before, stored.segment, err_msg=name)
    actor.send(actor.entry(int(good.slots[0]), good.blocks, 3, BEGIN | END, sequence=10**6))
    assert isinstance(actor.results[-1], CommitDone)


def test_a_resent_entry_is_committed_once():
    stored = make(capacity=Steps(100), item=Whole(), block_steps=4)
    actor = Actor(stored)
    grant = actor.grant(1)
    entry = actor.entry(int(grant.slots[0]), grant.blocks, 4, BEGIN | END)
    actor.send(entry)
    actor.send(entry)
    assert actor.results == [CommitDone(1, []), CommitDone(1, [])]
    assert stored.info()["trajectories"] == 1


def test_reverb_limiter_semantics():
    """Origin: Reverb: samples per insert 1.5, minimum 2, differences in [0, 5]."""
    stored = make(capacity=Steps(100), item=Whole(), limiter=SampleToInsertRatio(1.5, 2, (0.0, 5.0)), block_steps=4)
    actor = Actor(stored)
    for n in range(4):
        actor.insert(n, 1)
    assert len(actor.results) == 3
    selections: list = []
    actor.queue.select(actor.client, 1, 1, 60, time.monotonic() + 60, selections.append)
    assert (len(selections), len(actor.results)) == (1, 4)  # 1.5 * 4 - 1 = 5
    actor.insert(5, 1)
    assert len(actor.results) == 4
    stored.pins.release(actor.client, selections[0].pin, delivered=False)
    actor.queue.advance()
    assert stored.info()["sampled_items"] == 0
    actor.queue.select(actor.client, 3, 1, 60, time.monotonic() + 60, selections.append)
    assert (len(selections), len(actor.results)) == (2, 5)


def test_a_batch_larger_than_the_limiters_span_gathers_credit():
    """Origin: acme#233, reverb#27: reserved credit never blocks inserts, so nothing deadlocks."""
    stored = make(
        capacity=Trajectories(500), item=Whole(), limiter=SampleToInsertRatio(1.0, 1, 2.0), mean_length=1, block_steps=1
    )
    actor = Actor(stored)
    selections: list = []
    actor.queue.select(actor.client, 64, 1, 60, time.monotonic() + 60, selections.append)
    for n in range(100):
        if not selections:
            actor.insert(n, 1)
    assert len(selections) == 1
    assert len(selections[0]) == 64


def test_a_select_that_times_out_returns_its_credit_and_says_why():
    stored = make(capacity=Trajectories(50), item=Whole(), limiter=MinSize(3))
    actor = Actor(stored)
    actor.insert(1, 4)
    results: list = []
    actor.queue.select(actor.client, 8, 1, 60, 0.0, results.append)
    actor.queue.expire(time.monotonic())
    assert isinstance(results[0], DeadlineExceeded)
    assert "holds 1 items and its limiter wants at least 3" in str(results[0])
    assert stored.info()["reserved_items"] == 0


@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(1.0, 0.5), Fifo()])
@pytest.mark.parametrize("item", [Whole(), Step(0), Window(3, 2, "head")])
def test_items_are_used_up_after_max_times_sampled(sampler, item):
    stored = make(capacity=Steps(100), item=item, sampler=sampler, max_times_sampled=2, block_steps=4, publish="end")
    actor = Actor(stored)
    for n in range(3):
        actor.insert(n, 7)
    items = stored.info()["items"]
    results: list = []
    actor.queue.select(actor.client, 5, 1, 60, time.monotonic() + 60, results.append)
    returned = results.pop()
    stored.pins.release(actor.client, returned.pin, delivered=False)
    actor.queue.select(actor.client, 1000, 1, 60, time.monotonic() + 60, results.append)
    ids, times = np.unique(results[0].ids, return_counts=True)
    assert (len(ids), set(times)) == (items, {2})
    if isinstance(sampler, Fifo) and isinstance(item, Whole):
        assert [read(stored, int(s), 1)[0][0, 0] for s in results[0].starts] == [0, 0, 1, 1, 2, 2]
    assert stored.info()["trajectories"] == 3
    stored.pins.release(actor.client, results[0].pin, delivered=True)
    info = stored.info()
    assert (info["items"], info["trajectories"], info["consumed_trajectories"], info["held_blocks"]) == (0, 0, 3, 0)


def test_an_open_trajectory_gives_way_only_when_nothing_else_is_left():
    stored = make(capacity=Steps(20), item=Step(0), block_steps=2, max_length=20)
    actor = Actor(stored)
    growing = Growing(actor, 1)
    growing.append(10)
    actor.insert(2, 8)
    actor.insert(3, 8)
    assert stored.info()["steps"] == 18
    actor.insert(4, 20)
    assert stored.info()["trajectories"] == 1
    growing.append(4)
    assert actor.results[-1].lost == [growing.slot]
    assert stored.info()["steps"] == 20
    growing.append(1, end=True)
    assert stored.info()["held_blocks"] == 0


def test_eviction_and_capacity():
    """Origin: ray#24393 (never above 100 stored) and ray#54284 (a trajectory longer than the capacity)."""
    stored = make(capacity=Steps(100), item=Whole(), block_steps=4, mean_length=10)
    actor = Actor(stored)
    for n in range(10):
        actor.insert(n, 10)
    for n in range(10):
        actor.insert(10 + n, 50)
        assert stored.info()["steps"] <= 100
    actor.insert(30, 9)
    actor.insert(31, 100)
    assert stored.info()["steps"] == 100
    before = stored.info()
    with pytest.raises(DataError, match="at most 26 blocks"):
        stored.allocate(actor.client, stored.layout.blocks_for(110), 1)
    assert stored.info() == before


def test_shorter_trajectories_than_declared_are_evicted_early_and_counted():
    stored = make(capacity=Steps(1000), item=Window(4), mean_length=100, block_steps=10)
    actor = Actor(stored)
    for n in range(400):
        actor.insert(n, 3)
    info = stored.info()
    assert info["evicted_early"] == info["evicted_trajectories"] > 0
    assert info["steps"] < 1000


def test_a_pin_past_its_deadline_returns_its_credit_and_keeps_its_rows():
    stored = make(capacity=Trajectories(2), item=Whole())
    actor, reader = Actor(stored), None
    reader = Actor(stored, b"r" * 16, actor.queue)
    actor.insert(1, 5)
    selections: list = []
    actor.queue.select(reader.client, 1, 1, 0.0, time.monotonic() + 1, selections.append)
    told = stored.pins.expire(time.time() + 1)
    assert told == [(reader.client, selections[0].pin)]
    assert stored.info()["reserved_items"] == 0
    for n in range(2, 12):
        actor.insert(n, 5)
    assert (read(stored, int(selections[0].starts[0]), 5)[0] == 1).all()
    assert stored.info()["held_blocks"] > 0
    with pytest.raises(PinLost):
        stored.pins.hold(actor.client, selections[0].pin)
    stored.pins.release(reader.client, selections[0].pin, delivered=True)
    assert stored.info()["held_blocks"] == 0


def test_leases_are_shared_equally_and_a_dead_clients_come_back():
    stored = make(capacity=Trajectories(100), item=Whole(), mean_length=16, block_steps=4)
    first = Actor(stored, b"1" * 16)
    alone = len(stored.lease(first.client, 10**6, 0).blocks)
    assert alone == stored.layout.reserve_blocks // 2
    second = Actor(stored, b"2" * 16)
    assert stored.recall_leases() == [(first.client, alone - alone // 2)]
    stored.suspend(first.client)
    assert stored.info()["quarantined_blocks"] == alone
    free = stored.info()["free_blocks"]
    stored.fence(first.client)
    assert stored.info()["free_blocks"] == free + alone
    assert len(stored.lease(second.client, 10**6, 0).blocks) == alone


def test_revoking_pins_when_blocks_run_out():
    stored = make(capacity=Trajectories(4), item=Whole(), mean_length=16, block_steps=4)
    actor = Actor(stored)
    reader = Actor(stored, b"r" * 16, actor.queue)
    selections: list = []
    refused = False
    for n in range(100):
        grants: list = []
        actor.queue.allocate(actor.client, 4, 1, time.monotonic() + 60, grants.append)
        if not grants:
            refused = True
            break
        actor.write(grants[0].blocks, 0, 16, n, 0)
        actor.send(actor.entry(int(grants[0].slots[0]), grants[0].blocks, 16, BEGIN | END))
        actor.queue.select(reader.client, 8, 1, 60.0, time.monotonic() + 60, selections.append)
    assert refused
    assert actor.queue.starved
    told = stored.reclaim()
    assert told
    assert "client 72727272" in obstacles.of_memory(actor.stored)
    for client, pin in told:
        assert client == reader.client
        stored.pins.release(client, pin, False)
    actor.queue.advance()
    assert grants


def test_same_seed_same_draws():
    draws = []
    for _ in range(2):
        stored = make(capacity=Steps(500), item=Window(4, edge="tail"), sampler=Prioritized(0.7), seed=11)
        actor = Actor(stored)
        selections: list = []
        for n in range(80):
            actor.insert(n, 1 + n % 13, [0.1 + n % 7])
            actor.queue.select(actor.client, 16, 1, 60.0, time.monotonic() + 60, selections.append)
        draws.append(np.concatenate([s.ids for s in selections]))
    np.testing.assert_array_equal(*draws)


def lost_trajectory():
    """A writer whose open trajectory was evicted, half a block before its end, and the others of the table."""
    stored = make(capacity=Steps(8), item=Step(0), block_steps=4, max_length=8, mean_length=4)
    actor = Actor(stored)
    growing = Growing(actor, 1)
    growing.append(4)
    other = Actor(stored, b"o" * 16, actor.queue)
    other.insert(2, 8)
    growing.append(2)
    assert actor.results[-1].lost == [growing.slot]
    return stored, actor, other, growing


def test_blocks_of_a_lost_trajectory_are_given_to_nobody_while_its_writer_may_write():
    """The writer still fills the block it named; only its own end lets go of it."""
    stored, _, other, growing = lost_trajectory()
    named = growing.blocks[-1]
    for number in range(3, 60):
        other.insert(number, 8)
        assert stored.layout.view(stored.segment, "blocks")[named, 1] == growing.slot
    growing.abandon()
    assert stored.info()["held_blocks"] == 0


@pytest.mark.parametrize("again", ["fence", "second end"])
def test_the_pin_of_a_lost_writer_is_let_go_of_once(again):
    """A second unpin would be the reader's: its rows would be freed and overwritten under it."""
    stored = make(capacity=Steps(8), item=Step(0), block_steps=4, max_length=8, mean_length=4)
    actor = Actor(stored)
    growing = Growing(actor, 1)
    growing.append(4)
    other = Actor(stored, b"o" * 16, actor.queue)
    selections: list = []
    actor.queue.select(other.client, 1, 1, 60.0, time.monotonic() + 60, selections.append)
    other.insert(2, 8)
    growing.append(1)
    growing.abandon()
    if again == "fence":
        stored.fence(actor.client)
    else:
        growing.abandon()
        assert isinstance(actor.results[-1], ProtocolError)
    for number in range(3, 30):
        other.insert(number, 8)
        assert (read(stored, int(selections[0].starts[0]), 1)[0] == 1).all()
    stored.pins.release(other.client, selections[0].pin, True)
    assert stored.info()["held_blocks"] == 0


def test_a_message_that_is_committed_in_part_wakes_the_select_that_waited():
    stored = make(capacity=Trajectories(50), item=Whole(), limiter=SampleToInsertRatio(1.0, 1, 2.0), block_steps=4)
    actor = Actor(stored)
    selections: list = []
    actor.queue.select(actor.client, 1, 1, 60.0, time.monotonic() + 60, selections.append)
    grants = [actor.grant(1) for _ in range(8)]
    actor.send(*(actor.entry(int(g.slots[0]), g.blocks, 1, BEGIN | END) for g in grants))
    assert len(selections) == 1


def test_a_select_that_takes_only_part_of_its_credit_wakes_the_inserts_it_makes_room_for():
    limiter = SampleToInsertRatio(1.0, 1, 4.0)
    stored = make(capacity=Trajectories(400), item=Whole(), sampler=Prioritized(1.0), limiter=limiter, block_steps=4)
    actor = Actor(stored)
    for number in range(20):
        actor.insert(number, 1, [0.0])  # nothing can be drawn: the limiter stops the inserts
    assert len(actor.results) == 5
    actor.queue.select(actor.client, 64, 1, 60.0, time.monotonic() + 60, lambda _: None)
    blocks, slots = (stored.layout.view(stored.segment, name) for name in ("blocks", "slots"))
    block = int(slots[np.flatnonzero(slots[:, STATE] == 3)[0], 1])
    item = int(blocks[block, 0]) << stored.layout.row_bits | block * stored.layout.block_steps
    assert stored.update(np.array([item]), np.array([1.0])).applied == 1
    actor.queue.advance()
    assert len(actor.results) == 20

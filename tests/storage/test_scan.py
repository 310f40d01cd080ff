"""Listing a table page by page, while it changes between the pages."""

from __future__ import annotations

from contextlib import suppress

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, note, settings

import gear
from gear.page import Page
from gear.storage import scan as scans
from gear.storage.listing import scan

from .actors import Actor, Growing, make, read
from .recount import Recount
from .test_recount import WEIGHTS, Drive
from .test_table import positions, rows_of

Item = tuple[int, int, int]
"""Trajectory, first step, length."""


def stored_items(drive: Drive) -> dict[int, Item]:
    """Every item that is stored now by its id, from the definition of an item."""
    recount, layout, item = Recount(drive), drive.layout, drive.table.item
    found = {}
    for slot, indices in recount.items.items():
        if slot in recount.owned:  # the table's own, not listed while they grow
            continue
        length, closed = int(recount.slots[slot, scans.f.LENGTH]), slot in recount.state[scans.f.CLOSED]
        for t, index in zip(positions(item, length, closed), indices, strict=True):
            if recount.limit and recount.times[2 * index + 1] >= recount.limit:
                continue
            if recount.table.lines and recount.table.leaves and index not in recount.live:
                continue
            block = recount.chains[slot][t // layout.block_steps]
            generation = int(recount.blocks[block, scans.f.GENERATION])
            row = block * layout.block_steps + t % layout.block_steps
            rows = rows_of(item, t, length)
            order = int(recount.slots[slot, scans.f.ORDER])
            found[generation << layout.row_bits | row] = (order, rows.start, len(rows))
    return found


def listed(page: Page) -> dict[int, Item]:
    items = zip(page.trajectories.tolist(), page.positions.tolist(), page.lengths.tolist(), strict=True)
    found = dict(zip(page.ids.tolist(), items, strict=True))
    assert len(found) == len(page), "an item is listed twice on a page"
    return found


def operate(drive: Drive) -> None:
    (operation,) = drive.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
    with suppress(gear.DeadlineExceeded):
        getattr(drive, operation)(drive.random.choice(drive.clients))


@settings(max_examples=150, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # a smaller seed is no simpler
@given(seed=st.integers(0, 2**32 - 1), most=st.sampled_from([1, 2, 3, 7, 1000]), busy=st.integers(0, 6))
def test_what_is_stored_all_the_time_is_listed_exactly_once(seed, most, busy):
    drive = Drive(seed)
    note(f"seed {seed}: {drive.table}")
    for _ in range(40):
        operate(drive)
    always, seen, cursor = set(stored_items(drive)), set(), b""
    while True:
        now = stored_items(drive)
        page, cursor = scan(drive.stored, cursor, most)
        found = listed(page)
        assert len(page) <= most
        assert {i: now.get(i) for i in found} == found, "what is listed is not what is stored"
        assert not found.keys() & seen, "an item is listed twice"
        seen |= found.keys()
        if not cursor:
            break
        for _ in range(busy):
            operate(drive)
            always &= stored_items(drive).keys()
    assert always <= seen, "an item that was stored all the time is not listed"
    if not busy:
        assert len(seen) == drive.stored.info()["items"]


def test_the_listed_rows_are_the_ones_of_the_trajectory():
    stored = make(capacity=gear.Steps(200), item=gear.Window(4, 2, "head"), block_steps=3)
    actor = Actor(stored)
    for number, length in enumerate((7, 1, 30, 12), 1):
        actor.insert(number, length)
    page, cursor = scan(stored, b"", 1000)
    assert cursor == b""
    mask = (1 << stored.layout.row_bits) - 1
    for trajectory, position, length, last in zip(
        page.trajectories, page.positions, page.lengths, page.ids & mask, strict=True
    ):
        k, t = read(stored, int(last), 1)  # a head window is addressed by its last row
        assert (k == trajectory).all()
        assert t[0] == position + length - 1


@pytest.mark.parametrize(
    ("sampler", "fields"),
    [
        (gear.Prioritized(1.0), {}),
        (gear.Prioritized(0.6, eps=0.25), {}),
        (gear.Prioritized(0.0), {}),
        (gear.Prioritized(0.5), {"max_times_sampled": 9}),
        (gear.Uniform(), {"remover": gear.Prioritized(0.5)}),
        (gear.MaxHeap(), {}),
        (gear.Epochs(), {"remover": gear.MinHeap()}),
    ],
)
def test_priorities_are_the_raw_ones(sampler, fields):
    stored = make(capacity=gear.Steps(100), item=gear.Step(0), sampler=sampler, **fields)
    actor = Actor(stored)
    given = np.array([0.0, 0.5, 1.0, 7.25, 3e38])
    actor.insert(1, 5, given)
    page, _ = scan(stored, b"", 1000)
    assert np.allclose(page.priorities[np.argsort(page.positions)], given, rtol=1e-6, atol=1e-12)
    stored.update(page.ids, np.arange(5.0))
    assert np.allclose(scan(stored, b"", 1000)[0].priorities, np.arange(5.0), atol=1e-12)


def test_a_table_without_priorities_lists_none():
    stored = make(capacity=gear.Steps(100), item=gear.Whole())
    Actor(stored).insert(1, 5)
    assert scan(stored, b"", 10)[0].priorities is None


def test_an_item_that_is_drawn_for_the_last_time_is_listed_until_it_is_delivered():
    stored = make(capacity=gear.Steps(100), item=gear.Step(0), max_times_sampled=1)
    actor = Actor(stored)
    actor.insert(1, 3)
    drawn = stored.select(actor.client, 1, 1, 60.0)
    assert len(scan(stored, b"", 10)[0]) == 3
    stored.pins.release(actor.client, drawn.pin, True)
    left = scan(stored, b"", 10)[0].ids.tolist()
    assert len(left) == 2
    assert drawn.ids[0] not in left


def test_a_trajectory_that_grows_between_pages_goes_on_where_the_page_ended():
    stored = make(capacity=gear.Steps(100), item=gear.Step(0), publish="rows", block_steps=2)
    growing = Growing(Actor(stored), 1)
    growing.append(5)
    first, cursor = scan(stored, b"", 3)
    growing.append(4)
    second, cursor = scan(stored, cursor, 100)
    assert cursor == b""
    assert np.concatenate([first.positions, second.positions]).tolist() == list(range(9))


def test_a_trajectory_in_the_place_of_another_is_not_taken_for_it():
    stored = make(capacity=gear.Trajectories(1), item=gear.Step(0), mean_length=10, max_length=10)
    actor = Actor(stored)
    slot = actor.insert(1, 10)
    _, cursor = scan(stored, b"", 6)
    while actor.insert(2, 10) != slot:
        pass
    page, cursor = scan(stored, cursor, 100)
    assert page.positions.tolist() == list(range(10))
    assert len(set(page.trajectories.tolist())) == 1


def test_a_call_looks_at_a_bounded_part_of_the_table():
    """A page of an almost empty table is empty rather than long in coming."""
    slots = 3 * scans.MOST_LOOKS
    stored = make(capacity=gear.Trajectories(slots), item=gear.Whole(), mean_length=1, max_length=1, block_steps=1)
    pages, cursor = 0, b""
    while True:
        page, cursor = scan(stored, cursor, 1000)
        pages += 1
        assert len(page) == 0
        if not cursor:
            break
    assert pages == -(-stored.layout.slots // scans.MOST_LOOKS)


@pytest.mark.parametrize("cursor", [b"x", bytes(23), bytes(25), b"\xff" * 24, bytes(16) + b"\xff" * 8, b"\x7f" * 24])
def test_what_is_no_cursor_is_refused(cursor):
    stored = make(capacity=gear.Trajectories(4), item=gear.Whole())
    with pytest.raises(gear.ProtocolError, match="expected a cursor"):
        scan(stored, cursor, 10)

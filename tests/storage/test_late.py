"""Late columns in the table itself: what readers see of rows that change under them, and what a crash may leave."""

from __future__ import annotations

import numpy as np
import pytest

import gear
from gear.errors import DataError
from gear.schema import Column
from gear.storage import fields as f
from gear.storage import late
from gear.storage.fields import BEGIN, END
from gear.storage.presence import Presence

from .actors import COLUMNS, Actor, column, make

LATE = (*COLUMNS, Column("a", (), "int64", late=True))


@pytest.fixture
def stored():
    stored = make(columns=LATE, capacity=gear.Steps(100), item=gear.Whole(), block_steps=2, requirements=(("a",),))
    actor = Actor(stored)
    for number in range(3):
        actor.insert(number, 5)
    return stored


def fill(stored, ids, value: int) -> None:
    stored.fill(ids, np.full(len(ids), 5), {"a": np.full(5 * len(ids), value).tobytes()})


def drawn(stored, which: int = 0) -> gear.Selection:
    selection = stored.select(0, 4, 1, 60.0, which=which)
    assert isinstance(selection, gear.Selection)
    return selection


def test_rows_that_are_overwritten_while_they_are_read_are_read_again(stored):
    selection = drawn(stored)
    fill(stored, selection.ids, 1)
    presence = Presence(stored.layout, stored.segment, ["a"], selection.starts)
    assert presence.unchanged
    fill(stored, selection.ids[:1], 2)
    assert not presence.unchanged
    assert presence.unchanged  # they were read again


def test_rows_that_are_being_written_are_not_taken(stored):
    selection = drawn(stored)
    fill(stored, selection.ids, 1)
    presence = Presence(stored.layout, stored.segment, ["a"], selection.starts)
    found = np.empty(len(selection), np.int64)
    late.find(stored.segment, stored.params, selection.ids, np.full(len(selection), -1), found)
    late.begin(stored.segment, stored.params, found)
    assert not presence.unchanged
    assert not presence.unchanged  # as long as it goes on
    late.complete(stored.segment, stored.params, found, 1)
    assert not presence.unchanged
    assert presence.unchanged


def test_a_column_of_an_evicted_trajectory_that_is_read_stays_as_it_was(stored):
    selection = drawn(stored)
    fill(stored, selection.ids, 1)
    stored.reset()
    assert stored.fill(selection.ids, np.full(4, 5), {"a": np.zeros(20, np.int64).tobytes()}) == gear.Update(0, 4)
    assert Presence(stored.layout, stored.segment, ["a"], selection.starts).unchanged


def test_a_new_trajectory_in_an_old_slot_lacks_what_the_old_one_had(stored):
    fill(stored, drawn(stored).ids, 1)
    stored.pins.drop(0)
    stored.reset()
    actor = Actor(stored)
    for number in range(80):  # through all slots and blocks
        actor.insert(number, 5)
    selection = drawn(stored)
    with pytest.raises(DataError, match="late column 'a' of 4 of 4 items"):
        Presence(stored.layout, stored.segment, ["a"], selection.starts)
    assert not stored.drawable(1)


def test_nothing_is_published_before_its_rows_are_there(stored):
    """A crash between the rows and their bit leaves the column missing, not wrong."""
    ids = drawn(stored).ids
    found = np.empty(len(ids), np.int64)
    late.find(stored.segment, stored.params, ids, np.full(len(ids), -1), found)
    late.begin(stored.segment, stored.params, found)
    assert not stored.drawable(1)
    record = stored.layout.view(stored.segment, "late")[found[0]]
    assert (int(record[f.LATE_BITS]), int(record[f.LATE_CHANGES]) % 2) == (0, 1)


def test_a_final_row_is_zero_in_a_late_column(stored):
    """Origin: TorchRL, observed: what was not given is never uninitialised memory."""
    column_a = column(stored, "a")
    column_a[:] = 99  # what blocks may hold
    actor = Actor(stored)
    for length in (4, 5):  # the final row in a block of its own, and in that of the last row
        grant = actor.grant(stored.layout.blocks_for(length + 1))
        actor.write(grant.blocks, 0, length, 7, 0)
        actor.send(actor.entry(int(grant.slots[0]), grant.blocks, length, BEGIN | END | f.HAS_FINAL))
        first = int(grant.blocks[0])
        generation = int(stored.layout.view(stored.segment, "blocks")[first, f.GENERATION])
        name = generation << stored.layout.row_bits | first * stored.layout.block_steps
        update = stored.fill(np.array([name]), np.array([length]), {"a": np.arange(length).tobytes()})
        assert update == gear.Update(1, 0)
        rows = np.concatenate([column_a[block] for block in grant.blocks])
        assert rows[: length + 1].tolist() == [*range(length), 0]


def test_a_neighbouring_piece_without_the_column_is_not_read(stored):
    selection = drawn(stored)
    fill(stored, selection.ids[:1], 1)
    slots = np.unique(stored.layout.view(stored.segment, "blocks")[selection.starts // 2, f.SLOT])
    presence = Presence(stored.layout, stored.segment, ["a"], selection.starts[:1])
    filled = [int(s) for s in slots if stored.layout.view(stored.segment, "late")[s, f.LATE_BITS]]
    assert presence.near(slots.astype(np.int32)).tolist() == filled

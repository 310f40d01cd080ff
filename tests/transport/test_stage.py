"""The numbers a client lends itself for rows that travel."""

from __future__ import annotations

import numpy as np
import pytest

from gear.schema import Column, Steps, Table, Whole
from gear.storage import memory
from gear.storage.layout import Layout
from gear.transport import stage
from gear.transport.stage import Stage


@pytest.fixture
def layout() -> Layout:
    columns = [Column("x"), Column("y", (3,), "uint8", per="trajectory"), Column("z", (), "int64", per="trajectory")]
    return Layout(Table("t", columns, Steps(400), item=Whole(), mean_length=10, max_length=40, block_steps=10))


def make(layout: Layout) -> Stage:
    return Stage(layout, memory.sparse(layout.nbytes))


def test_low_numbers_go_first_and_come_back(layout):
    one = make(layout)
    assert one.lease(3, 2).blocks.tolist() == [0, 1, 2]
    one.put([1], [0])
    grant = one.lease(2, 2)
    assert (grant.blocks.tolist(), grant.slots.tolist()) == ([1, 3], [0, 2])


def test_what_is_free_already_stays_free_once(layout):
    one = make(layout)
    one.lease(2, 1)
    one.put([0, 0], [0])
    one.put([0], [0])
    assert one.lease(3, 2).blocks.tolist() == [0, 2, 3]


def test_leases_in_advance_leave_room_for_the_longest_commit(layout, monkeypatch):
    monkeypatch.setattr(stage, "AHEAD", 4 * layout.block_bytes)
    one = make(layout)
    assert len(one.lease(100, 100).blocks) == 4
    longest = layout.blocks_for(layout.max_length + 1)
    assert one.has(longest, 1, 0)
    assert not one.has(longest + 1, 1, 0)
    assert one.has(longest + 1, 1, 1)
    assert len(one.take(longest, 1).blocks) == longest
    assert not one.has(1, 1, 0)


def test_per_trajectory_rows_lie_one_slot_after_the_other(layout):
    segment = memory.sparse(layout.nbytes)
    one = Stage(layout, segment)
    one._values[0][:4] = np.arange(12, dtype=np.uint8).reshape(4, 3)
    one._values[1][:4] = 255
    assert one.values(np.array([2, 0], np.int32)) == bytes([6, 7, 8, *[255] * 8, 0, 1, 2, *[255] * 8])

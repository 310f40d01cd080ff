"""How tables are divided over shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gear
from gear.errors import SchemaError
from gear.parts import holders, is_limited, is_spread, part

COLUMNS = [gear.Column("x")]


def table(**fields) -> gear.Table:
    return gear.Table("t", COLUMNS, **{"capacity": gear.Steps(1000), "item": gear.Whole(), **fields})


@given(
    n=st.integers(1, 10_000),
    shards=st.integers(1, 256),
    capacity=st.sampled_from([gear.Steps, gear.Trajectories]),
)
def test_the_capacities_of_the_parts_add_up_to_the_declared_one(n, shards, capacity):
    declared = table(capacity=capacity(n))
    there = holders(declared, shards)
    parts = [part(declared, k, len(there)) for k in range(len(there))]
    assert sum(p.capacity.n for p in parts) == n
    assert max(p.capacity.n for p in parts) - min(p.capacity.n for p in parts) <= 1
    assert len({p.max_length for p in parts}) == len({p.block_steps for p in parts}) == 1
    assert len(set(there)) == len(there) == min(n, shards)


def test_a_piece_is_no_longer_than_the_smallest_part():
    assert [part(table(capacity=gear.Steps(1001)), k, 3).max_length for k in range(3)] == [333] * 3
    assert part(table(max_length=7), 0, 3).max_length == 7


def test_a_table_on_one_shard_is_its_own_part():
    declared = table(limiter=gear.Queue(10), capacity=gear.Trajectories(20))
    assert holders(declared, 4) == holders(declared, 4)[:1]
    assert part(declared, 0, 1) is declared


def test_parts_draw_from_seeds_of_their_own():
    assert len({part(table(seed=3), k, 4).seed for k in range(4)}) == 4


@pytest.mark.parametrize("ordered", [gear.Fifo(), gear.Lifo(), gear.MaxHeap(), gear.MinHeap()])
def test_what_has_an_order_lies_on_one_shard_unless_asked_otherwise(ordered):
    assert len(holders(table(sampler=ordered), 4)) == 1
    assert len(holders(table(sampler=ordered, shards=3), 4)) == 3
    assert len(holders(table(sampler=ordered, shards=9), 4)) == 4


@pytest.mark.parametrize("line", [gear.Queue, gear.Stack])
def test_a_queue_over_several_shards_is_several_queues_that_hold_as_much(line):
    declared = table(limiter=line(10), capacity=gear.Trajectories(20), shards=3)
    parts = [part(declared, k, 3) for k in range(3)]
    assert [p.limiter for p in parts] == [line(4), line(3), line(3)]
    assert not is_spread(declared, 3)
    assert len(holders(table(limiter=line(2), capacity=gear.Trajectories(20), shards=3), 3)) == 2


def test_homes_differ_from_table_to_table():
    names = [gear.Table(f"t{k}", COLUMNS, gear.Steps(100)) for k in range(64)]
    assert {holders(one, 4)[0] for one in names} == {0, 1, 2, 3}


def test_only_a_limiter_that_counts_beyond_one_item_has_to_be_asked():
    assert not is_limited(table())
    assert is_limited(table(limiter=gear.MinSize(2)))
    assert is_limited(table(limiter=gear.SampleToInsertRatio(1.0, 1, 10.0)))


@pytest.mark.parametrize("shards", [-1, 257, 1.5])
def test_a_number_of_shards_that_cannot_be_is_refused(shards):
    with pytest.raises(SchemaError, match="shards"):
        table(shards=shards)

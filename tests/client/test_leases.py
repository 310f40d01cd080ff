"""The pool of leases: neighbours together, in bulk, nothing twice, everything given back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gear.client.leases import LeasePool
from gear.storage.layout import Grant


class Lender:
    """A session that lends blocks and slots in order, up to a limit."""

    def __init__(self, blocks: list[int], slots: int = 1000) -> None:
        self.blocks, self.slots, self.asked = list(blocks), list(range(slots)), 0

    def lease(self, table, blocks, slots, timeout):
        self.asked += 1
        grant = Grant(np.array(self.blocks[:blocks], np.int32), np.array(self.slots[:slots], np.int32))
        del self.blocks[:blocks], self.slots[:slots]
        return grant


def pool_of(blocks, slots=1000):
    lender = Lender(blocks, slots)
    return LeasePool(lender, None), lender


def test_neighbouring_blocks_come_as_a_range():
    pool, _ = pool_of(range(100))
    for first in range(0, 40, 4):
        _, blocks = pool.take(4, None)
        assert blocks == range(first, first + 4)


def test_a_busy_pool_asks_seldom():
    pool, lender = pool_of(range(10_000), 5000)
    for _ in range(1000):
        assert pool.take(4, None) is not None
    assert lender.asked < 20


def test_scattered_blocks_are_joined_into_one_chain():
    pool, _ = pool_of([9, 1, 5, 3])
    slot, blocks = pool.take(4, None)
    assert slot == 0
    assert sorted(blocks) == [1, 3, 5, 9]


def test_a_refusal_takes_nothing():
    pool, _ = pool_of(range(3))
    assert pool.take(4, None) is None
    assert (pool.blocks, pool.slots) == (3, 1)
    assert pool.take(3, None) is not None


def test_no_slot_no_lease():
    pool, _ = pool_of(range(10), slots=0)
    assert pool.take(1, None) is None
    assert list(pool.take_blocks(1, None)) == [0]


def test_what_is_put_back_is_handed_out_again():
    pool, _ = pool_of(range(2), 1)
    slot, blocks = pool.take(2, None)
    assert pool.take(1, None) is None
    pool.put([slot], blocks)
    assert pool.take(2, None) == (slot, range(2))


def test_drain_gives_what_there_is_without_asking():
    pool, lender = pool_of(range(10))
    slot, blocks = pool.take(1, None)
    pool.put([slot], blocks)
    asked = lender.asked
    assert pool.drain(3, True) == (slot, [0])
    assert pool.drain(3, True) == (None, [])
    assert lender.asked == asked


def test_surrender_empties_the_pool_and_a_part_of_it_keeps_slots_for_the_blocks_left():
    pool, _ = pool_of(range(10))
    pool.put([7, 8], range(20, 30))
    part = pool.surrender(4)
    assert len(part.blocks) == 4
    assert len(part.slots) == 0
    rest = pool.surrender()
    assert sorted([*part.blocks.tolist(), *rest.blocks.tolist()]) == list(range(20, 30))
    assert sorted(rest.slots.tolist()) == [7, 8]
    assert (pool.blocks, pool.slots) == (0, 0)


def test_forget_drops_without_giving_back():
    pool, _ = pool_of([])
    pool.put([1], range(4))
    pool.forget()
    assert (pool.blocks, pool.slots) == (0, 0)


@given(
    st.permutations(range(40)),
    st.lists(st.tuples(st.sampled_from(["take", "blocks", "put"]), st.integers(1, 6)), max_size=40),
)
def test_no_block_is_ever_out_twice(blocks, actions):
    pool, lender = pool_of(blocks, 40)
    out: list[tuple[int | None, list[int]]] = []
    for action, count in actions:
        if action == "put":
            if out:
                slot, held = out.pop(0)
                pool.put([] if slot is None else [slot], held)
            continue
        if action == "take":
            got = pool.take(count, None)
            taken = None if got is None else (got[0], list(got[1]))
        else:
            more = pool.take_blocks(count, None)
            taken = None if more is None else (None, list(more))
        if taken is not None:
            assert len(taken[1]) == count
            out.append(taken)
        names = [b for _, held in out for b in held]
        assert len(set(names)) == len(names)
        assert len(names) + pool.blocks + len(lender.blocks) == 40


def test_leases_for_many_come_as_one_array_and_as_far_as_they_go():
    pool, lender = pool_of(range(10), 3)
    slots, blocks = pool.take_many(np.array([3, 2, 4, 2]), None)
    assert (len(slots), blocks.tolist()) == (3, list(range(9)))
    assert (lender.asked, pool.blocks, pool.slots) == (1, 1, 0)
    assert len(pool.take_many(np.array([1]), None)[0]) == 0  # there is no slot
    pool.put(slots.tolist(), blocks)
    assert sorted(pool.take(10, None)[1]) == list(range(10))  # what many left is handed out one by one


@given(st.lists(st.tuples(st.sampled_from(["one", "many", "put", "surrender"]), st.integers(1, 5)), max_size=30))
def test_no_block_is_out_twice_when_some_take_one_and_some_many(actions):
    pool, lender = pool_of(range(60), 60)
    out: list[tuple[list[int], list[int]]] = []
    for action, count in actions:
        if action == "put":
            if out:
                pool.put(*out.pop(0))
        elif action == "surrender":
            grant = pool.surrender(count)
            lender.blocks += grant.blocks.tolist()
            lender.slots += grant.slots.tolist()
        elif action == "one":
            got = pool.take(count, None)
            out += [] if got is None else [([got[0]], list(got[1]))]
        else:
            needs = np.arange(1, count + 1)
            slots, blocks = pool.take_many(needs, None)
            assert len(blocks) == needs[: len(slots)].sum()
            out += [(slots.tolist(), blocks.tolist())] if len(slots) else []
        for k, (held, left) in enumerate(((pool.slots, lender.slots), (pool.blocks, lender.blocks))):
            names = [name for one in out for name in one[k]]
            assert len(set(names)) == len(names)
            assert len(names) + held + len(left) == 60

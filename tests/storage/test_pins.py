"""Selections held by several clients: who counts as a party, what a death ends, whom evicted blocks count against."""

from __future__ import annotations

import time

import pytest

from gear.errors import PinLost
from gear.schema import SampleToInsertRatio, Trajectories, Whole
from gear.storage.fields import RESERVED_ITEMS, SAMPLED_ITEMS
from gear.storage.pins import ABANDONED
from gear.storage.table import StoredTable

from .actors import Actor, make


class Shared:
    """A table of four trajectories, a selection of three items for two parties, and the clients around it."""

    def __init__(self, parties: int = 2) -> None:
        self.stored: StoredTable = make(capacity=Trajectories(4), item=Whole(), mean_length=8, block_steps=4)
        self.writer, self.selector, self.first, self.second, self.third = (
            Actor(self.stored, bytes([number]) * 16) for number in range(5)
        )
        self.writer.insert(1, 8)
        self.selection = self.stored.select(self.selector.client, 3, parties, 60.0)
        self.pins, self.pin = self.stored.pins, self.selection.pin

    @property
    def credit(self) -> tuple[int, int]:
        return int(self.stored.counters[SAMPLED_ITEMS]), int(self.stored.counters[RESERVED_ITEMS])

    def evict(self) -> None:
        for number in range(2, 8):
            self.writer.insert(number, 8)


def test_a_selection_ends_when_both_parties_let_go():
    shared = Shared()
    for party in (shared.first, shared.second):
        shared.pins.hold(party.client, shared.pin)
    shared.pins.release(shared.first.client, shared.pin, delivered=True)
    assert len(shared.pins) == 1
    shared.pins.release(shared.second.client, shared.pin, delivered=False)
    assert (len(shared.pins), shared.credit) == (0, (3, 0))


def test_only_a_party_that_holds_lets_go_and_only_once():
    shared = Shared()
    shared.pins.hold(shared.first.client, shared.pin)
    for client in (shared.selector, shared.selector, shared.third, shared.first, shared.first):
        shared.pins.release(client.client, shared.pin, delivered=False)
    assert len(shared.pins) == 1
    shared.pins.hold(shared.second.client, shared.pin)


def test_a_client_that_collects_again_after_letting_go_is_the_next_party():
    shared = Shared()
    for delivered in (True, False):
        shared.pins.hold(shared.first.client, shared.pin)
        shared.pins.release(shared.first.client, shared.pin, delivered)
    assert (len(shared.pins), shared.credit) == (0, (3, 0))


def test_a_party_too_many_is_refused():
    shared = Shared()
    for party in (shared.first, shared.second, shared.second):
        shared.pins.hold(party.client, shared.pin)
    with pytest.raises(PinLost, match="all parties"):
        shared.pins.hold(shared.third.client, shared.pin)


def test_the_selector_may_be_a_party_itself():
    shared = Shared()
    for party in (shared.selector, shared.first):
        shared.pins.hold(party.client, shared.pin)
        shared.pins.release(party.client, shared.pin, delivered=True)
    assert (len(shared.pins), shared.credit) == (0, (3, 0))


def test_the_selectors_death_leaves_the_selection_to_its_parties():
    shared = Shared()
    shared.pins.hold(shared.first.client, shared.pin)
    shared.stored.fence(shared.selector.client)
    shared.pins.release(shared.first.client, shared.pin, delivered=True)
    shared.pins.hold(shared.second.client, shared.pin)
    assert shared.credit == (0, 3)
    shared.pins.release(shared.second.client, shared.pin, delivered=False)
    assert (len(shared.pins), shared.credit) == (0, (3, 0))


def test_a_dead_party_has_let_go_undelivered():
    shared = Shared()
    shared.pins.hold(shared.first.client, shared.pin)
    shared.stored.fence(shared.first.client)
    shared.pins.hold(shared.second.client, shared.pin)
    shared.pins.release(shared.second.client, shared.pin, delivered=True)
    assert (len(shared.pins), shared.credit) == (0, (3, 0))


def test_the_only_party_of_a_selection_is_its_selector_whose_death_returns_the_credit():
    shared = Shared(parties=1)
    shared.stored.fence(shared.selector.client)
    assert (len(shared.pins), shared.credit) == (0, (0, 0))


def test_what_nobody_has_joined_ends_at_its_deadline():
    shared = Shared()
    assert shared.pins.expire(time.time() + 100) == []
    assert (len(shared.pins), shared.credit) == (0, (0, 0))
    with pytest.raises(PinLost, match="has ended"):
        shared.pins.hold(shared.first.client, shared.pin)


def test_a_pin_past_its_deadline_is_not_joined_before_anybody_looked():
    shared = Shared()
    late = shared.stored.select(shared.selector.client, 1, 2, -1.0)
    with pytest.raises(PinLost, match="has ended"):
        shared.pins.hold(shared.first.client, late.pin)


@pytest.mark.parametrize("joined", [False, True])
def test_what_a_dead_selector_left_to_nobody_ends_though_it_was_to_last_for_years(joined):
    shared = Shared()
    left = shared.stored.select(shared.selector.client, 3, 2, 1e9).pin
    shared.pins.release(shared.selector.client, shared.pin, delivered=False)
    if joined:
        shared.pins.hold(shared.first.client, left)
    shared.stored.fence(shared.selector.client)
    assert shared.pins.expire(time.time() + 2 * ABANDONED) == []
    if joined:  # who is there has all the time it was given, and so does who comes after it
        assert shared.pins.holds(shared.first.client, left)
        shared.pins.release(shared.first.client, left, delivered=True)
        shared.pins.hold(shared.second.client, left)
        shared.pins.release(shared.second.client, left, delivered=True)
    assert left not in shared.pins._pins


def test_evicted_blocks_of_what_nobody_joined_count_against_the_selector_and_are_free_when_revoked():
    shared = Shared()
    shared.evict()
    assert shared.pins.blocking() == [shared.selector.client]
    assert shared.pins.revoke_beyond(2) == []
    assert shared.pins.revoke_beyond(1) == []  # nobody to be told: nobody reads
    assert (len(shared.pins), shared.stored.info()["held_blocks"]) == (0, 0)


def test_what_a_dead_selector_left_to_nobody_is_the_first_to_be_revoked():
    shared = Shared()
    shared.evict()
    shared.stored.fence(shared.selector.client)
    assert shared.pins.blocking() == []
    assert shared.stored.info()["held_blocks"] == 2
    shared.pins.revoke_beyond(1000)
    assert shared.stored.info()["held_blocks"] == 0


def test_several_pins_of_one_trajectory_count_once():
    shared = Shared(parties=1)
    for _ in range(5):
        shared.stored.select(shared.selector.client, 3, 1, 60.0)
    shared.evict()
    assert shared.pins.revoke_beyond(2) == []
    assert len(shared.pins) == 6


def test_what_was_drawn_before_a_reset_is_charged_to_nobody():
    limiter = SampleToInsertRatio(1.0, 1, 8.0)
    stored = make(capacity=Trajectories(20), item=Whole(), limiter=limiter)
    actor = Actor(stored)
    for number in range(4):
        actor.insert(number, 5)
    before = stored.select(actor.client, 4, 1, 60.0)
    stored.reset()
    stored.pins.release(actor.client, before.pin, delivered=True)
    assert (stored.counters[SAMPLED_ITEMS], stored.counters[RESERVED_ITEMS]) == (0, 0)
    assert stored.info()["held_blocks"] == 0

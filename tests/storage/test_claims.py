"""Claims over a stored table: silence, return, the death of the shard, and lines recounted."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gear.errors import DataError, PartExpired, PinLost
from gear.schema import Queue, Steps, Whole, Window
from gear.storage import fields as f
from gear.storage.acknowledge import AGAIN, APPLIED, REPEATED, STALE
from gear.storage.claims import Claims
from gear.storage.ranks_asks import Ask, Share, Wanted

from .actors import Actor, make, read

LATER = time.monotonic() + 3600


def served(actor, consumer, size, client=None):
    """The selection of the next `size` items, and their numbers."""
    got = []
    actor.queue.select(actor.client if client is None else client, size, 1, 60.0, LATER, got.append, consumer=consumer)
    selection = got[0]
    starts = zip(selection.starts.tolist(), selection.lengths.tolist(), strict=True)
    return selection, [int(read(actor.stored, *item)[0][0, 0]) for item in starts]


def filled(count=6, **fields):
    stored = make(**{"capacity": Steps(1000), "item": Whole(), "consumers": ("a", "b"), **fields})
    actor = Actor(stored)
    for number in range(count):
        actor.insert(number, 4)
    return stored, actor


def test_a_silent_clients_claims_stand_first_and_are_its_again_when_it_is_back():
    stored, actor = filled()
    other = stored.attach(b"o" * 16)
    mine, _ = served(actor, 0, 3)
    stored.suspend(actor.client)
    taken, numbers = served(actor, 0, 1, other)
    assert numbers == [0]
    stored.resume(actor.client)
    assert served(actor, 0, 2, other)[1] == [3, 4]
    assert stored.acknowledge(actor.client, 0, mine.ids).tolist() == [AGAIN, APPLIED, APPLIED]
    assert stored.acknowledge(other, 0, taken.ids).tolist() == [APPLIED]
    assert stored.acknowledge(actor.client, 0, mine.ids).tolist() == [REPEATED] * 3


def test_a_part_of_a_draw_is_its_clients_when_that_is_back_and_its_ranks_when_it_is_gone():
    stored, actor = filled()
    parts = []

    def ask(client):
        share, wanted = Share(2, 0), Wanted(2, 0, None)
        actor.queue.ranks.ask(Ask(client, wanted, (0, 0), 0, share, 1, 60.0, LATER, parts.append))

    ask(actor.client)
    stored.suspend(actor.client)
    assert served(actor, 0, 1, stored.attach(b"o" * 16))[1] == [4]  # the parts of both ranks are not served again
    stored.resume(actor.client)
    assert stored.acknowledge(actor.client, 0, parts[0].ids[:1]).tolist() == [APPLIED]
    stored.suspend(actor.client)
    stored.fence(actor.client)
    heir = stored.attach(b"h" * 16)
    ask(heir)
    assert isinstance(parts[1], PartExpired)  # some of it was acknowledged: it is not the part that it was
    stored.pins.expire(time.time() + 61)
    assert served(actor, 0, 2, heir)[1] == [1, 2]


def test_a_draw_that_no_rank_waits_for_any_more_is_not_made():
    stored, actor = filled(4)
    parts = []

    def ask():
        wanted = Wanted(2, 0, None)
        actor.queue.ranks.ask(Ask(actor.client, wanted, (0, 0), 0, Share(2, 0), 1, 60.0, LATER, parts.append))

    ask()
    ask()  # waits for the next draw, and is then given what the first lets go of
    stored.pins.release(actor.client, parts[0].pin, False)
    actor.queue.advance()
    assert [part.draw for part in parts] == [0, 0]
    for number in range(4):
        actor.insert(number, 4)
    assert len(stored.pins) == 2


def test_a_part_that_expires_while_it_is_handed_out_is_told_as_lost(monkeypatch):
    stored, actor = filled()
    parts = []
    late = lambda *given: (_ for _ in ()).throw(PinLost("late"))
    monkeypatch.setattr(stored.pins, "hand", late)
    actor.queue.ranks.ask(Ask(actor.client, Wanted(2, 0, None), (0, 0), 0, Share(2, 0), 1, 60.0, LATER, parts.append))
    assert isinstance(parts[0], PartExpired)
    assert served(actor, 0, 2)[1] == [0, 1]


def test_a_client_that_is_gone_leaves_its_claims_in_their_order():
    stored, actor = filled()
    other = stored.attach(b"o" * 16)
    for _ in range(2):
        served(actor, 1, 2)
    stored.fence(actor.client)
    assert served(actor, 1, 6, other)[1] == [0, 1, 2, 3, 4, 5]


def test_acknowledgements_survive_the_shard_and_claims_do_not():
    stored, actor = filled()
    selection, _ = served(actor, 0, 4)
    stored.acknowledge(actor.client, 0, selection.ids[1:3])
    born_again = stored.claims = Claims(stored.segment, stored.layout)
    slots = stored.layout.view(stored.segment, "slots")
    closed = np.flatnonzero(slots[:, f.STATE] == f.CLOSED)
    born_again.restart(closed[np.argsort(slots[closed, f.ORDER])])
    assert served(actor, 0, 4)[1] == [0, 3, 4, 5]
    assert served(actor, 1, 6)[1] == [0, 1, 2, 3, 4, 5]


def test_items_within_a_trajectory_are_consumed_one_by_one():
    stored, actor = filled(2, item=Window(2), limiter=Queue(10))
    selection, _ = served(actor, 0, 4)
    for consumer in (0, 1):
        assert set(stored.acknowledge(actor.client, consumer, selection.ids[:3])) == {APPLIED}
    assert stored.counters[f.STORED] == 1
    assert stored.counters[f.ITEM_COUNT] == 3
    assert stored.acknowledge(actor.client, 0, selection.ids).tolist() == [STALE] * 3 + [APPLIED]
    assert stored.acknowledge(actor.client, 0, np.array([-5, 1, 2**62])).tolist() == [STALE] * 3


def test_a_claim_of_which_nothing_is_left_is_forgotten():
    stored, actor = filled(200)
    for _ in range(200):
        selection, _ = served(actor, 0, 1)
        stored.pins.release(actor.client, selection.pin, True)
        stored.acknowledge(actor.client, 0, selection.ids)
    assert sum(map(len, stored.claims._of.values())) <= 64


def test_a_waiting_consumer_is_woken_by_what_comes_back():
    stored, actor = filled(2)
    other, got = stored.attach(b"o" * 16), []
    served(actor, 0, 2)
    actor.queue.select(other, 2, 1, 60.0, LATER, got.append, consumer=0)
    assert got == []
    stored.suspend(actor.client)
    actor.queue.advance()
    assert len(got[0]) == 2


def test_a_silent_client_is_served_when_it_is_back_and_holds_up_nobody_meanwhile():
    stored, actor = filled(2)
    other, mine, others = stored.attach(b"o" * 16), [], []
    stored.suspend(actor.client)
    actor.queue.select(actor.client, 1, 1, 60.0, LATER, mine.append, consumer=0)
    actor.queue.select(other, 1, 1, 60.0, LATER, others.append, consumer=0)
    assert (len(mine), len(others)) == (0, 1)
    stored.resume(actor.client)
    actor.queue.advance()
    assert [len(s) for s in mine] == [1]


def test_an_unnamed_consumer_is_refused():
    with pytest.raises(DataError, match="expected one of a, b, got None"):
        filled()[0].table.consumer("")

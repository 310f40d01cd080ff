"""Groups over a stored table: rebuilt after the shard's death, whole groups driven out, late columns, deadlines."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gear.grouping import Groups, decode_key, encode_key
from gear.schema import Column, Steps, Table, Trajectories, Whole
from gear.storage import fields as f
from gear.storage.claims import Claims
from gear.storage.groups import GroupBook
from gear.storage.table import StoredTable

from .actors import COLUMNS, Actor, read

LATER = time.monotonic() + 3600


class Prompts(Actor):
    """Inserts trajectories with keys."""

    def member(self, number: int, key, length: int = 4) -> int:
        layout = self.stored.layout
        grant = self.grant(layout.blocks_for(length))
        self.write(grant.blocks, 0, length, number, 0)
        at = layout.regions["trajectories"].offset + layout.keys.offset + 32 * int(grant.slots[0])
        self.stored.segment[at : at + 32] = encode_key(key)
        self.send(self.entry(int(grant.slots[0]), grant.blocks, length, f.BEGIN | f.END))
        return int(grant.slots[0])

    def served(self, groups: int) -> list[int]:
        got = []
        self.queue.select(self.client, groups, 1, 60.0, LATER, got.append, consumer=0)
        starts = zip(got[0].starts.tolist(), got[0].lengths.tolist(), strict=True)
        return [int(read(self.stored, *item)[0][0, 0]) for item in starts]


def prompts(size=2, capacity=None, rule=None, **fields) -> Prompts:
    declared = {"item": Whole(), "mean_length": 10, "sampler": Groups(size, **(rule or {})), **fields}
    return Prompts(StoredTable(Table("table", COLUMNS, capacity or Steps(1000), **declared)))


@pytest.mark.parametrize("key", [0, -1, 2**63 - 1, -(2**63), "", "prompt", "\u00e9\u4e2d", b"", b"\0\1", "x" * 30])
def test_a_key_comes_back_as_it_was(key):
    assert decode_key(encode_key(key).tobytes()) == key


def test_distinct_keys_are_stored_distinctly():
    keys = [0, 1, "", "\0", b"", b"\0", "a", b"a", "a\0"]
    assert len({encode_key(key).tobytes() for key in keys}) == len(keys)


def test_groups_are_made_anew_from_the_segment_after_the_shards_death():
    actor = prompts(consumers=("a",))
    stored = actor.stored
    for number in range(7):  # three groups, one of them waits for its second member
        actor.member(number, number % 4)
    assert actor.served(1) == [0, 4]
    stored.claims = Claims(stored.segment, stored.layout)
    stored.pins._claims = stored.claims
    stored.groups = GroupBook(stored.segment, stored.layout, stored.claims)
    stored.groups.restart()
    assert stored.groups.info()["gathering_groups"] == 1
    actor.member(7, 3)
    assert actor.served(4) == [0, 4, 1, 5, 2, 6, 3, 7]


def test_one_message_whose_entries_drive_out_a_group_takes_all_of_it():
    actor = prompts(3, Trajectories(4))
    stored, layout = actor.stored, actor.stored.layout
    parts = []
    for number, key in enumerate(["a", "a", "b", "b", "b", "c"]):
        grant = actor.grant(layout.blocks_for(4))
        at = layout.regions["trajectories"].offset + layout.keys.offset + 32 * int(grant.slots[0])
        stored.segment[at : at + 32] = encode_key(key)
        actor.write(grant.blocks, 0, 4, number, 0)
        parts.append(actor.entry(int(grant.slots[0]), grant.blocks, 4, f.BEGIN | f.END))
    actor.send(*parts)
    assert stored.info()["trajectories"] == 4
    assert actor.served(1) == [2, 3, 4]
    assert stored.info()["gathering_groups"] == 1


def test_a_group_waits_for_a_column_that_comes_later():
    actor = prompts(2)
    book, judged = actor.stored.groups, []
    book._known = lambda group: len(judged) > 0
    slots = [actor.member(number, "a") for number in range(2)]
    assert actor.stored.claims.units(0) == 0
    book.filled(slots[:1])
    judged.append(True)
    book.filled(slots)
    assert actor.served(1) == [0, 1]


def test_a_group_that_was_driven_out_takes_no_other_from_the_wait_for_its_column():
    """Origin: one half of its slots was another group's by then, which was forgotten and never delivered."""
    actor = prompts(2, Trajectories(4))
    book, known, numbers = actor.stored.groups, [], iter(range(1000))
    book._known = lambda group: group.key in known
    mine = gone = set()
    while len(mine & gone) != 1:  # until a group lies across what two others have left
        if len(mine) and next(numbers) % 5 == 0:
            actor.member(next(numbers), next(numbers))  # so that not all lie as those before
        left, number = dict(book._unjudged), next(numbers)
        mine = {actor.member(number, number) for _ in range(2)}
        gone = next((set(left[slot].slots) for slot in mine if slot in left), set())
    (shared,), (other,) = mine & gone, gone - mine
    assert actor.member(next(numbers), "next") == other
    book.filled([other])
    known.append(book._unjudged[shared].key)
    book.filled([shared])
    assert actor.stored.claims.units(0) == 1


def test_a_late_group_is_an_event_of_the_timer():
    actor, got = prompts(3, rule={"deadline": 5.0, "short": "deliver"}), []
    before = time.monotonic()
    for number in range(2):
        actor.member(number, "a")
    due = actor.queue.next_deadline()
    assert before + 5 <= due <= time.monotonic() + 5
    actor.queue.select(actor.client, 1, 1, 60.0, LATER, got.append, consumer=0)
    actor.queue.expire(due - 0.001)
    assert got == []
    actor.queue.expire(due)
    assert len(got[0]) == 2
    assert actor.queue.next_deadline() is None


def test_what_was_gathered_is_bounded_by_what_is_stored():
    actor = prompts(2, Trajectories(3))
    for number in range(3000):
        actor.member(number, number)
    assert len(actor.stored.groups._gathering) <= 65 + 2 * actor.stored.layout.slots
    assert actor.stored.groups.info()["gathering_groups"] == 3


def test_a_filter_reads_bfloat16():
    columns = (*COLUMNS, Column("reward", (), "bfloat16", per="trajectory"))
    from gear.grouping import NonzeroVariance

    rule = Groups(2, filter=NonzeroVariance("reward"))
    stored = StoredTable(Table("table", columns, Steps(1000), item=Whole(), mean_length=10, sampler=rule))
    values = stored.groups._values
    assert values.dtype.name == "bfloat16"
    assert not rule.filter.keeps(np.ones_like(values[:2]))

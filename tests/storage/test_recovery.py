"""A table taken up from the segment of a shard that died: at rest, in mid-operation, damaged, of another release."""

from __future__ import annotations

import mmap
import os
import signal
import time
from copy import copy
from pathlib import Path
from random import Random
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, note, settings

import gear
from gear.storage import fields as f
from gear.storage import format
from gear.storage.table import StoredTable
from tests.transport.helpers import eventually

from .actors import COLUMNS, Actor, column
from .recount import Recount
from .test_recount import Drive


class Aftermath(Recount):
    """Recounts a table that was just taken up: nobody leases, nobody reads, nothing is claimed."""

    def leases(self) -> None:
        found = np.bincount(self.blocks[:, f.OWNER][self.blocks[:, f.OWNER] >= 0], minlength=f.MAX_CLIENTS)
        assert (self.view("clients")[:, f.LEASED_BLOCKS] == found).all(), "leases were miscounted"

    def pins(self) -> None:
        assert len(self.stored.pins) == 0

    def uses(self) -> None:
        super().uses()
        for items in self.items.values() if self.limit else ():
            assert (self.times[0::2][items] == self.times[1::2][items]).all(), "something is handed out to nobody"

    def credit(self) -> None:
        """Items that left a queue on their way to a reader count as sampled: who died with them had them."""
        if not self.stored.params[f.P_MOST] or self.table.lines:
            super().credit()
            return
        left = self.counters[f.DELETED_ITEMS] - self.counters[f.RETURNED_ITEMS]
        assert self.counters[f.SAMPLED_ITEMS] == left, "what left a queue is miscounted"
        assert self.counters[f.RESERVED_ITEMS] == 0, "credit is reserved for nobody"


def contents(stored: StoredTable) -> dict[int, tuple]:
    """By its number in the order of insertion, what a stored trajectory is: rows, length, flags, first id."""
    slots, blocks = (stored.layout.view(stored.segment, name) for name in ("slots", "blocks"))
    k, t = column(stored, "k"), column(stored, "t")
    found = {}
    for slot in np.flatnonzero((slots[:, f.STATE] == f.OPEN) | (slots[:, f.STATE] == f.CLOSED)).tolist():
        chain, block = [], int(slots[slot, f.FIRST])
        while block >= 0:
            chain.append(block)
            block = int(blocks[block, f.NEXT])
        length = int(slots[slot, f.LENGTH])
        rows = [column[chain].reshape(-1, *column.shape[2:])[:length].tobytes() for column in (k, t)]
        flags = int(slots[slot, f.FLAGS])
        found[int(slots[slot, f.ORDER])] = (*rows, length, flags, int(blocks[chain[0], f.GENERATION]), chain[0])
    return found


def taken_up(stored: StoredTable, folder: Path) -> StoredTable:
    """The table as another process finds it after the first one's death."""
    path = folder / "table-0"
    path.write_bytes(stored.segment.tobytes())
    header = format.read(path)
    assert header.table == stored.table
    return StoredTable(header.table, header.index, header.shard, path, header.spread, kept=True, era=1)


@settings(max_examples=30, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_taken_up_is_what_was_there_and_recounts(seed, tmp_path_factory):
    drive, tmp_path = Drive(seed), tmp_path_factory.mktemp("kept")
    note(f"seed {seed}: {drive.table}")
    for number in range(Random(seed).randint(10, 80)):
        drive.step(number)
    drive.settle_claims()
    before, kept = contents(drive.stored), drive.stored.counters.copy()
    again = taken_up(drive.stored, tmp_path)
    assert again.found.damaged == 0
    stale = {order for order, what in before.items() if order not in contents(again)}
    assert not stale
    assert contents(again) == before
    for counter in (
        f.INSERTED,
        f.INSERTED_ITEMS,
        f.DELETED_ITEMS,
        f.EVICTED_COUNT,
        f.CONSUMED,
        f.DRAWS,
    ):
        assert again.counters[counter] == kept[counter]
    if not again.params[f.P_MOST] or again.table.lines:
        assert again.counters[f.SAMPLED_ITEMS] == kept[f.SAMPLED_ITEMS]
    after = copy(drive)
    after.stored, after.queue = again, SimpleNamespace(_selects=())
    after.draws = [d for d in drive.draws if d.settled]
    for draw in after.draws:
        draw.holders = set()
    after.clients, after.claimed = [], {}
    after.slots = again.layout.view(again.segment, "slots")
    if drive.layout.keys is not None:
        at = again.layout.regions["trajectories"].offset + again.layout.keys.offset
        after.keys = again.segment[at:][: 32 * again.layout.slots].reshape(-1, 32)
    Aftermath(after).check()


class Stub:
    """What a `Recount` asks of a drive, when nobody has any memory of what was done."""

    def __init__(self, stored: StoredTable) -> None:
        self.stored, self.layout, self.table, self.queue = stored, stored.layout, stored.table, SimpleNamespace()
        self.draws, self.clients, self.filled, self.opened, self.claimed = [], [], {}, {}, {}


class Structure(Aftermath):
    """The directory alone, against itself."""

    def credit(self) -> None:
        assert self.counters[f.RESERVED_ITEMS] == 0, "credit is reserved for nobody"

    def totals(self) -> None:
        super().totals()
        if self.table.max_times_sampled == 1 and not self.table.lines:
            assert self.counters[f.SAMPLED_ITEMS] <= self.counters[f.INSERTED_ITEMS]


class Writer:
    """Commits numbered trajectories in batches for as long as it lives; draws, settles and updates beside it.

    said : int64[2]
        The last number that was acknowledged, and how many rounds there were.
    """

    BATCH = 16

    def __init__(self, stored: StoredTable, said: np.ndarray) -> None:
        self.stored, self.said, self.actor = stored, said, Actor(stored)
        self.pending: list[gear.Selection] = []
        self.k, self.t = column(stored, "k"), column(stored, "t")

    def run(self, random: Random) -> None:
        while True:
            self.insert([entry for _ in range(self.BATCH) if (entry := self.entry(random)) is not None])
            self.sample(random)
            self.said[1] += 1

    def entry(self, random: Random):
        stored, layout, client = self.stored, self.stored.layout, self.actor.client
        length, number = random.randint(1, 12), self.actor.sequence + 1
        need = layout.blocks_for(length)
        grant = stored.lease(client, need, 1, request=7)
        if len(grant.blocks) < need or not len(grant.slots):
            stored.give_back(client, grant.blocks, grant.slots)
            grant = stored.allocate(client, need, 1)
            if grant is None:
                return None
        for at, block in enumerate(grant.blocks.tolist()):
            self.k[block] = number
            self.t[block] = np.arange(at * layout.block_steps, (at + 1) * layout.block_steps)
        return self.actor.entry(int(grant.slots[0]), grant.blocks, length, f.BEGIN | f.END, [1.0 + number % 5])

    def insert(self, parts) -> None:
        if not parts:
            return
        stored, client = self.stored, self.actor.client
        entries, blocks, priorities = (np.concatenate([p[i] for p in parts]) for i in range(3))
        while len(entries):
            stored.check(client, entries, blocks, priorities)
            done, n_blocks, n_priorities, _ = stored.commit(client, entries, blocks, priorities)
            self.said[0] = stored.committed(client)
            entries, blocks, priorities = entries[done:], blocks[n_blocks:], priorities[n_priorities:]
            if len(entries):  # the limiter waits for samples
                self.sample(Random(0))

    def sample(self, random: Random) -> None:
        stored, client = self.stored, self.actor.client
        drawn = stored.select(client, random.choice([1, 8, 20]), 1, 60.0, hurry=True)
        if isinstance(drawn, int):
            stored.unreserve(drawn)
        else:
            self.pending.append(drawn)
            if stored.keeps_priorities:
                stored.update(drawn.ids, np.array([random.random() * 9 for _ in range(len(drawn))]))
        while self.pending and (len(self.pending) > 2 or isinstance(drawn, int)):
            stored.pins.release(client, self.pending.pop(0).pin, random.random() < 0.8)


KINDS = {
    "uniform": {},
    "prioritized": {"sampler": gear.Prioritized(0.7), "remover": gear.Prioritized(1.0)},
    "distinct": {"sampler": gear.Prioritized(0.7), "distinct": True},
    "used up": {"sampler": gear.Fifo(), "max_times_sampled": 2, "item": gear.Step(0)},
    "queue": {"limiter": gear.Queue(30)},
    "ratio": {"limiter": gear.SampleToInsertRatio(1.0, 5, 40.0), "sampler": gear.Lifo()},
    "heaps": {"sampler": gear.MaxHeap(), "remover": gear.MinHeap(), "max_times_sampled": 3},
    "epochs": {"sampler": gear.Epochs(), "remover": gear.Uniform()},
    "windows": {"item": gear.Window(3, edge="tail"), "sampler": gear.Uniform("trajectories")},
}


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
def test_killed_in_mid_work_nothing_is_torn_twice_or_lost(kind, tmp_path):
    """SIGKILL at a random instant, again and again (`GEAR_KILLS`): the table goes on from where it was."""
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)  # noqa: T201 - for whoever looks into a failure
    random, path = Random(seed), tmp_path / "table-0"
    fields = {"capacity": gear.Steps(300), "item": gear.Whole(), "mean_length": 6, "block_steps": 3, **KINDS[kind]}
    table = gear.Table("t", COLUMNS, **fields)
    stored = StoredTable(table, path=path)
    said = np.frombuffer(mmap.mmap(-1, 4096), np.int64)
    for era in range(1, 1 + int(os.environ.get("GEAR_KILLS", "3"))):
        rounds, child = said[1], os.fork()
        if child == 0:
            try:
                Writer(stored, said).run(Random(seed + era))
            finally:
                os._exit(1)
        eventually(lambda before=rounds: said[1] > before + 2, "it works")
        time.sleep(random.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        stored = StoredTable(table, path=path, kept=True, era=era)
        assert stored.found.damaged == 0
        Structure(Stub(stored)).check()
        actor = Actor(stored)
        committed, counters = stored.committed(actor.client), stored.counters
        assert said[0] <= committed <= said[0] + Writer.BATCH
        assert counters[f.INSERTED] == committed, "an insert was counted twice or not at all"
        numbers = []
        for rows, steps, length, *_ in contents(stored).values():
            k, t = np.frombuffer(rows, np.int64), np.frombuffer(steps, np.int32)
            assert (k == k[0]).all(), "an entry is torn"
            assert t.tolist() == list(range(length)), "an entry is torn"
            numbers.append(int(k[0]))
        assert len(set(numbers)) == len(numbers), "a trajectory is stored twice"
        assert set(numbers) <= set(range(1, committed + 1))
        assert len(numbers) == committed - counters[f.EVICTED_COUNT] - counters[f.CONSUMED], "acknowledged and lost"
        stored.retract(actor.client, 7)
        slots, blocks = (stored.layout.view(stored.segment, name) for name in ("slots", "blocks"))
        mine = np.flatnonzero(blocks[:, f.OWNER] == actor.client), np.flatnonzero(slots[:, f.STATE] == f.LEASED)
        assert (blocks[mine[0], f.ORDINAL] == f.GRANTED).all(), "what the client never heard of is leased to it"
        stored.end_leases(actor.client, *(numbers.astype(np.int32) for numbers in mine))
        assert counters[f.LEASED_BLOCK_COUNT] == 0
        stored.pins.haunt(stored.found.haunted, set())
        Structure(Stub(stored)).check()
        assert counters[f.FREE_BLOCKS] + counters[f.USED_BLOCKS] == stored.layout.blocks


@pytest.mark.faults
@pytest.mark.parametrize("field", [f.LENGTH, f.FIRST, f.FLAGS, f.ORDER, f.CHAIN, f.SEQUENCE, f.CHECK, f.STATE])
def test_a_damaged_entry_is_left_out_and_counted(field, tmp_path):
    stored = StoredTable(gear.Table("t", COLUMNS, gear.Steps(200), mean_length=8, item=gear.Whole(), block_steps=4))
    actor = Actor(stored)
    slots = [actor.insert(number, 8) for number in range(5)]
    before = contents(stored)
    record = stored.layout.view(stored.segment, "slots")[slots[2]]
    order = int(record[f.ORDER])
    blocks = np.flatnonzero(stored.layout.view(stored.segment, "blocks")[:, f.SLOT] == slots[2])
    record[field] ^= 1 << 3
    again = taken_up(stored, tmp_path)
    assert again.found.damaged == 1
    del before[order]
    assert contents(again) == before
    Actor(again).insert(9, 8)
    drawn = again.select(0, 50, 1, 60.0)
    assert len(drawn) == 50
    free = again.layout.view(again.segment, "free_blocks")[: again.counters[f.FREE_BLOCKS]]
    assert not np.isin(blocks, free).any(), "blocks of a damaged entry are used again"


@pytest.mark.faults
def test_a_damaged_chain_is_left_out(tmp_path):
    stored = StoredTable(gear.Table("t", COLUMNS, gear.Steps(200), mean_length=8, item=gear.Whole(), block_steps=4))
    actor = Actor(stored)
    slots = [actor.insert(number, 12) for number in range(3)]
    blocks = stored.layout.view(stored.segment, "blocks")
    first, last = (int(stored.layout.view(stored.segment, "slots")[slots[1], at]) for at in (f.FIRST, f.LAST))
    for block, at, value in ((first, f.NEXT, first), (last, f.GENERATION, 9), (last, f.NEXT, first), (last, f.SLOT, 0)):
        kept = int(blocks[block, at])
        blocks[block, at] = value
        assert taken_up(stored, tmp_path).found.damaged == 1
        blocks[block, at] = kept
    assert taken_up(stored, tmp_path).found.damaged == 0

"""Trajectories that were growing when the shard died: each entry is there whole or not at all, and counted once."""

from __future__ import annotations

import mmap
import os
import signal
import time
from random import Random

import numpy as np
import pytest

import gear
from gear.storage import fields as f
from gear.storage.table import StoredTable
from tests.transport.helpers import eventually

from .actors import COLUMNS, Actor, column
from .test_recovery import Structure, Stub, contents

LENGTHS = 16
"""Where the lengths of entries stand in what the writer says, by sequence modulo the room."""
ROOM = 1 << 12


class Grower:
    """Appends to several trajectories in turn, entry by entry, for as long as it lives.

    said : int64[LENGTHS + ROOM]
        Rounds, the last acknowledged entry, and the rows of each entry before it is sent.
    """

    def __init__(self, stored: StoredTable, said: np.ndarray) -> None:
        self.stored, self.said, self.actor = stored, said, Actor(stored)
        self.growing: list[list] = []  # [number, slot, blocks, length]

    def run(self, random: Random) -> None:
        while True:
            self.step(random)
            self.said[0] += 1

    def step(self, random: Random) -> None:
        stored, actor, steps = self.stored, self.actor, self.stored.layout.block_steps
        if len(self.growing) < 3:
            self.growing.append([actor.sequence + 1, -1, [], 0])
        one = random.choice(self.growing)
        number, slot, blocks, length = one
        rows = random.randint(1, 5)
        end = length + rows > 24
        need = stored.layout.blocks_for(length + rows) - len(blocks)
        grant = stored.allocate(actor.client, need, int(slot < 0))
        assert grant is not None
        begin = slot < 0
        slot = int(grant.slots[0]) if begin else slot
        blocks += grant.blocks.tolist()
        k, t = column(stored, "k"), column(stored, "t")
        for step in range(length, length + rows):
            k[blocks[step // steps], step % steps], t[blocks[step // steps], step % steps] = number, step
        self.said[LENGTHS + (actor.sequence + 1) % ROOM] = rows
        flags = (f.BEGIN if begin else 0) | (f.END if end else 0)
        entry, named, given = actor.entry(slot, grant.blocks, rows, flags)
        stored.check(actor.client, entry, named, given)
        done, _, _, lost = stored.commit(actor.client, entry, named, given)
        assert done == 1
        self.said[1] = actor.sequence
        one[1:] = slot, blocks, length + rows
        if end or lost:
            self.growing.remove(one)
        if lost and not end:
            actor.sequence = stored.committed(actor.client)
            self.said[LENGTHS + (actor.sequence + 1) % ROOM] = 0
            stored.commit(actor.client, *actor.entry(slot, [], 0, f.END))
            self.said[1] = actor.sequence


@pytest.mark.faults
@pytest.mark.parametrize("sampler", [gear.Uniform(), gear.Prioritized(0.6), gear.Fifo()])
def test_killed_while_trajectories_grow(sampler, tmp_path):
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)  # noqa: T201 - for whoever looks into a failure
    random, path = Random(seed), tmp_path / "table-0"
    table = gear.Table(
        "t", COLUMNS, gear.Steps(400), item=gear.Window(3), sampler=sampler, mean_length=20, max_length=40,
        block_steps=4, publish="rows",
    )  # fmt: skip
    stored = StoredTable(table, path=path)
    said = np.frombuffer(mmap.mmap(-1, 8 * (LENGTHS + ROOM)), np.int64)
    rows = 0  # of the entries committed up to `counted`
    counted = 0
    for era in range(1, 1 + int(os.environ.get("GEAR_KILLS", "3"))):
        rounds, child = said[0], os.fork()
        if child == 0:
            try:
                Grower(stored, said).run(Random(seed + era))
            finally:
                os._exit(1)
        eventually(lambda before=rounds: said[0] > before + 50, "it works")
        time.sleep(random.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        stored = StoredTable(table, path=path, kept=True, era=era)
        assert stored.found.damaged == 0
        Structure(Stub(stored)).check()
        actor, counters = Actor(stored), stored.counters
        committed = stored.committed(actor.client)
        assert said[1] <= committed <= said[1] + 1
        assert committed - counted < ROOM
        rows += sum(int(said[LENGTHS + sequence % ROOM]) for sequence in range(counted + 1, committed + 1))
        counted = committed
        assert counters[f.INSERTED_STEPS] == rows, "an entry was counted twice, in part or not at all"
        for ks, ts, length, *_ in contents(stored).values():
            k, t = np.frombuffer(ks, np.int64), np.frombuffer(ts, np.int32)
            assert (k == k[0]).all(), "an entry is torn"
            assert t.tolist() == list(range(length)), "an entry is torn"
        stored.pins.haunt(stored.found.haunted, set())
        stored.fence(actor.client)  # closes what was growing where it stands
        Structure(Stub(stored)).check()
        assert counters[f.FREE_BLOCKS] + counters[f.USED_BLOCKS] == stored.layout.blocks

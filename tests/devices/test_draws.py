"""Draws on a device are those of the host, whatever happened to the leaves between them."""

from __future__ import annotations

import numpy as np
import pytest

import gear
from gear.selection.prioritized import LARGEST
from gear.storage import draws_there
from gear.storage import fields as f
from gear.storage.layout import COMMIT_ENTRY
from gear.storage.memory import SHARED
from gear.storage.table import StoredTable

BEGUN = f.BEGIN | f.END


def made(tmp_name: str, gpu: str, sampler: gear.Prioritized, **fields) -> StoredTable:
    columns = [gear.Column("x")]
    table = gear.Table(
        "t", columns, gear.Steps(60), item=gear.Step(0), sampler=sampler, seed=9, block_steps=2, **fields
    )
    return StoredTable(table, path=SHARED / tmp_name, gpu=gpu)


def insert(stored: StoredTable, client: int, number: int, steps: int, priorities: np.ndarray) -> None:
    blocks = stored.layout.blocks_for(steps)
    grant = stored.allocate(client, blocks, 1)
    assert grant is not None
    entry = np.zeros(1, COMMIT_ENTRY)
    entry[["sequence", "slot", "length", "blocks"]] = number, grant.slots[0], steps, blocks
    entry[["flags", "priorities"]] = BEGUN, len(priorities)
    stored.check(client, entry, grant.blocks, priorities)
    assert stored.commit(client, entry, grant.blocks, priorities)[0] == 1


@pytest.fixture
def pair(request, tmp_path):
    """The same table, drawn from by the host and by the device."""
    sampler, fields = getattr(request, "param", (gear.Prioritized(alpha=0.7), {}))
    name = f"gear-{tmp_path.name[-40:]}"
    tables = [made(f"{name}-{n}", gpu, sampler, **fields) for n, gpu in enumerate(("", "GPU-simulated-0"))]
    yield tables
    for stored in tables:
        stored.close()


def both(pair: list[StoredTable], size: int = 5) -> None:
    """Draw from both; they are alike in everything."""
    host, device = (stored.select(0, size, 1, 60.0) for stored in pair)
    np.testing.assert_array_equal(host.ids, device.ids)
    np.testing.assert_array_equal(host.probabilities, device.probabilities)
    np.testing.assert_array_equal(host.starts, device.starts)
    assert host.smallest == device.smallest
    for stored, selection in zip(pair, (host, device), strict=True):
        stored.pins.release(0, selection.pin, True)
    assert pair[0].mass() == pair[1].mass()


def test_inserts_updates_and_evictions_lead_to_the_same_draws(pair):
    rng = np.random.default_rng(0)
    assert [stored.attach(bytes(16)) for stored in pair] == [0, 0]
    assert [stored.drawable() for stored in pair] == [False, False]
    assert [stored.select(0, 3, 1, 60.0) for stored in pair] == [0, 0]
    for number in range(1, 16):
        steps = int(rng.integers(1, 9))
        priorities = rng.random(steps) * 4
        for stored in pair:
            insert(stored, 0, number, steps, priorities.copy())
        if number % 3 == 0:
            both(pair)
            ids = np.concatenate([pair[0].select(0, 6, 1, 60.0).ids] * 2)
            pair[1].select(0, 6, 1, 60.0)
            values = rng.random(12) * rng.choice([0.0, 1.0, LARGEST], 12, p=[0.2, 0.7, 0.1])
            assert pair[0].update(ids.copy(), values.copy()) == pair[1].update(ids.copy(), values.copy())
            both(pair)
    assert pair[0].counters[f.EVICTED_COUNT] > 0
    for stored in pair:
        stored.reset()
    assert [stored.drawable() for stored in pair] == [False, False]


def test_more_changes_than_are_noted_bring_all_leaves_anew(pair, monkeypatch):
    built = []
    build = draws_there.tree_build
    monkeypatch.setattr(draws_there, "tree_build", lambda *given: (built.append(1), build(*given)))
    for stored in pair:
        stored.attach(bytes(16))
    noted = len(pair[1].layout.view(pair[1].segment, "changed"))
    for number in range(1, 6):
        for stored in pair:
            insert(stored, 0, number, noted // 2, np.full(noted // 2, float(number)))
        if number in (1, 2):
            both(pair)
    both(pair)
    assert len(built) == 2  # the first time, and after three inserts


def test_a_limiter_that_holds_back_leaves_draws_for_later(pair):
    for stored in pair:
        stored.attach(bytes(16))
        insert(stored, 0, 1, 4, np.arange(1.0, 5.0))
    before = pair[1].counters[f.DRAWS]
    pair[1].on_device.draws.draw(3)
    assert pair[1].counters[f.DRAWS] == before
    both(pair, 4)
    assert pair[1].counters[f.DRAWS] == before + 4


@pytest.mark.parametrize(
    "pair",
    [(gear.Prioritized(), {"max_times_sampled": 2}), (gear.Prioritized(), {"distinct": True})],
    indirect=True,
)  # fmt: skip
def test_items_that_are_drawn_one_by_one_are_drawn_by_the_host(pair):
    for stored in pair:
        stored.attach(bytes(16))
        insert(stored, 0, 1, 6, np.arange(1.0, 7.0))
    assert pair[1].on_device.draws is None
    both(pair, 3)


def test_a_table_taken_up_without_a_device_is_drawn_from_by_the_host(pair):
    stored = pair[1]
    stored.attach(bytes(16))
    insert(stored, 0, 1, 6, np.arange(1.0, 7.0))
    drawn = stored.select(0, 6, 1, 60.0)
    stored.pins.release(0, drawn.pin, True)
    again = StoredTable(stored.table, path=stored.path, kept=True, era=1)
    assert again.counters[f.SUMMED_THERE] == 0
    assert again.mass()[0] == pytest.approx(sum(float(p) ** 0.7 for p in range(1, 7)))

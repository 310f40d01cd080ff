"""The audit of the soak notices what is wrong: a blind check is worse than none."""

from __future__ import annotations

import pytest

import gear
from benchmarks import soak_actors
from benchmarks.soak_audit import Stored, kept

SEED = 3


@pytest.fixture
def soaked():
    """A client with three trajectories of one writer in each table of the soak, and that writer's account."""
    with gear.embedded(soak_actors.TABLES) as client:
        for kind, name in enumerate(soak_actors.NAMES):
            for place in range(3):
                number = soak_actors.PER_WRITER + place * len(soak_actors.NAMES) + kind
                client.insert(soak_actors.trajectory(number, SEED), name)
        yield client, {1: dict.fromkeys(soak_actors.NAMES, 3)}


@pytest.mark.parametrize("table", soak_actors.NAMES)
def test_the_audit_accepts_what_is_right(soaked, table):
    client, accounts = soaked
    stored = Stored(client, table, client.info()["tables"][table]["items"], SEED)
    assert not any(stored.faults(3, accounts).values())


@pytest.mark.parametrize("table", soak_actors.NAMES)
def test_the_audit_sees_a_second_copy_and_what_nobody_acknowledged(soaked, table):
    client, accounts = soaked
    accounts[1][table] = 2
    number = soak_actors.PER_WRITER + soak_actors.NAMES.index(table)
    client.insert(soak_actors.trajectory(number, SEED), table)
    stored = Stored(client, table, client.info()["tables"][table]["items"], SEED)
    faults = stored.faults(4, accounts)
    assert faults["no row is stored twice"] > 0
    assert faults["as many trajectories as the table counts"] == 3
    assert faults["all that is stored was acknowledged"] == [number + 2 * len(soak_actors.NAMES)]


@pytest.mark.parametrize("table", ["windows", "rows"])
def test_the_audit_sees_a_trajectory_that_misses_its_end(soaked, table):
    client, accounts = soaked
    number = soak_actors.PER_WRITER + 9 + soak_actors.NAMES.index(table)
    short = {name: column[:-1] for name, column in soak_actors.trajectory(number, SEED).items()}
    client.insert(short, table)
    accounts[1][table] = 4
    stored = Stored(client, table, client.info()["tables"][table]["items"], SEED)
    assert stored.faults(4, accounts)["every trajectory is there from its first step to its last"] == [number]


@pytest.mark.parametrize("column", ["number", "step", "checksum", "payload"])
@pytest.mark.parametrize("table", soak_actors.NAMES)
def test_the_soak_sees_one_wrong_value_in_any_column(soaked, table, column):
    client, _ = soaked
    batch = client.sample(16, table)
    soak_actors.check(batch, table, SEED)
    batch[column].reshape(-1)[0] += 1
    with pytest.raises(AssertionError):
        soak_actors.check(batch, table, SEED)


def test_leases_are_kept_only_if_the_same_blocks_were_handed_out_no_further():
    before = {("t", 1): frozenset({(4, 1), (5, 1)}), ("t", 2): frozenset({(6, 1)})}
    assert kept(before, before, {"t": 2})
    assert kept(before, before | {("t", 2): frozenset({(7, 3)})}, {"t": 2})
    again = before | {("t", 1): frozenset({(4, 1), (5, 2)})}  # block 5 went out once more and came back
    assert not kept(before, again, {"t": 2})
    assert not kept(before, {("t", 2): frozenset({(6, 1)})}, {"t": 2})
    assert not kept(before, before, {"t": 3})

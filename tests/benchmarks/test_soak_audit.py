"""The audit of the soak notices what is wrong: a blind check is worse than none."""

from __future__ import annotations

from collections import Counter

import pytest

import gear
from benchmarks import soak_rows
from benchmarks.soak_account import Consumed, Written
from benchmarks.soak_audit import Stored, kept, queue_faults

SEED = 3

SOAKED = [table.name for table in soak_rows.TABLES]


@pytest.fixture
def soaked(tmp_path):
    """A client with three trajectories of one writer in each table of the soak, and that writer's account."""
    account = Written(tmp_path / "account")
    with gear.embedded(soak_rows.TABLES) as client:
        for name in SOAKED:
            with account.batch(name, 3) as places:
                for place in places:
                    client.insert(soak_rows.trajectory(soak_rows.number_of(1, name, place), SEED), name)
        yield client, {1: account}


@pytest.mark.parametrize("table", SOAKED)
def test_the_audit_accepts_what_is_right(soaked, table):
    client, accounts = soaked
    stored = Stored(client, table, client.info()["tables"][table]["items"], SEED)
    assert not any(stored.faults(3, accounts).values())


@pytest.mark.parametrize("table", SOAKED)
def test_the_audit_sees_a_second_copy_and_what_nobody_acknowledged(soaked, table):
    client, accounts = soaked
    accounts[1].begun[table] = 2
    client.insert(soak_rows.trajectory(soak_rows.number_of(1, table, 0), SEED), table)
    stored = Stored(client, table, client.info()["tables"][table]["items"], SEED)
    faults = stored.faults(4, accounts)
    assert faults["no row is stored twice"] > 0
    assert faults["as many trajectories as the table counts"] == 3
    assert faults["all that is stored was acknowledged"] == [soak_rows.number_of(1, table, 2)]


@pytest.mark.parametrize("table", ["windows", "rows"])
def test_the_audit_sees_a_trajectory_that_misses_its_end(soaked, table):
    client, accounts = soaked
    number = soak_rows.number_of(1, table, 3)
    short = {name: column[:-1] for name, column in soak_rows.trajectory(number, SEED).items()}
    with accounts[1].batch(table, 1):
        client.insert(short, table)
    stored = Stored(client, table, client.info()["tables"][table]["items"], SEED)
    assert stored.faults(4, accounts)["every trajectory is there from its first step to its last"] == [number]


def test_the_audit_sees_what_was_acknowledged_and_is_missing(soaked):
    client, accounts = soaked
    with accounts[1].batch("whole", 2):
        client.insert(soak_rows.trajectory(soak_rows.number_of(1, "whole", 4), SEED), "whole")  # and not place 3
    stored = Stored(client, "whole", 4, SEED)
    assert stored.faults(4, accounts)["nothing acknowledged is missing"] == [soak_rows.number_of(1, "whole", 3)]


def test_what_a_writer_was_doing_when_it_was_killed_is_unknown_and_neither_missing_nor_strange(soaked, tmp_path):
    client, _ = soaked
    killed = Written(tmp_path / "account").batch("rows", 2)
    killed.__enter__()
    first = {name: column[:2] for name, column in soak_rows.trajectory(soak_rows.number_of(1, "rows", 3), SEED).items()}
    client.insert(first, "rows")
    with (tmp_path / "account").open("ab") as file:
        file.write(b'["rows", 5')  # a line that was cut off
    accounts = {1: Written(tmp_path / "account")}
    assert accounts[1].acknowledged("rows").tolist() == [True, True, True, False, False]
    stored = Stored(client, "rows", client.info()["tables"]["rows"]["items"], SEED)
    assert not any(stored.faults(4, accounts).values())


def test_what_a_consumer_asked_and_was_not_answered_is_not_certain(tmp_path):
    first = Consumed(tmp_path / "account")
    for asked, answer in (([1, 2], (2, 0, 0, [])), ([3, 4, 5], (1, 1, 0, [5])), ([6], None)):
        first.ask(asked)
        if answer:
            first.answer(*answer)
    again = Consumed(tmp_path / "account")
    again.ask([1, 6])
    again.answer(2, 0, 0, [])
    certain, open_ = Consumed(tmp_path / "account").tally()
    assert certain == {1: 2, 2: 1, 6: 1}
    assert open_ == {3, 4, 6}


def test_the_audit_of_a_queue_sees_what_was_acknowledged_twice_and_what_was_skipped(tmp_path):
    account = Written(tmp_path / "account")
    with account.batch("queue", 3):
        pass
    one, two, three = (soak_rows.number_of(1, "queue", place) for place in range(3))
    figures = {"inserted_trajectories": 3, "consumers": {"trainer": {"acknowledged": 3, "dropped": 0}}}

    def found(*tallies) -> dict:
        faults = queue_faults("queue", "trainer", figures, list(tallies), {1: account})
        return {what: how_many for what, how_many in faults.items() if how_many}

    assert found((Counter([one, two]), set()), (Counter(), {two, three})) == {}
    assert found((Counter([one, two, three]), set()), (Counter([two]), set())) == {"acknowledged twice": [two]}
    assert found((Counter([one, two]), set())) == {"skipped": 1, "seen beyond what was inserted": -1}
    strange = soak_rows.number_of(1, "queue", 3)
    assert found((Counter([one, two, three, strange]), set()))["written by nobody"] == 1


@pytest.mark.parametrize("column", ["number", "step", "checksum", "payload"])
@pytest.mark.parametrize("table", SOAKED)
def test_the_soak_sees_one_wrong_value_in_any_column(soaked, table, column):
    client, _ = soaked
    batch = client.sample(16, table)
    soak_rows.check(batch, table, SEED)
    batch[column].reshape(-1)[0] += 1
    with pytest.raises(AssertionError):
        soak_rows.check(batch, table, SEED)


def test_leases_are_kept_only_if_the_same_blocks_were_handed_out_no_further():
    before = {("t", 1): frozenset({(4, 1), (5, 1)}), ("t", 2): frozenset({(6, 1)})}
    assert kept(before, before, {"t": 2})
    assert kept(before, before | {("t", 2): frozenset({(7, 3)})}, {"t": 2})
    again = before | {("t", 1): frozenset({(4, 1), (5, 2)})}  # block 5 went out once more and came back
    assert not kept(before, again, {"t": 2})
    assert not kept(before, {("t", 2): frozenset({(6, 1)})}, {"t": 2})
    assert not kept(before, before, {"t": 3})

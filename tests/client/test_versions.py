"""Policy versions: what is too old, in which order the rest comes, and who waits for a newer one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gear

from .paths import make  # noqa: F401 - a fixture

COLUMNS = (gear.Column("x", (), "int64"), gear.Column("version", (), "int64", per="trajectory"))


@pytest.fixture
def table(make):  # noqa: F811
    def one(**fields):
        given = {"capacity": gear.Trajectories(32), "item": gear.Whole(), "mean_length": 2, "max_times_sampled": 1}
        return make(columns=COLUMNS, **(given | fields))

    return one


def insert(client, *versions: int, **more) -> None:
    for version in versions:
        client.insert({"x": [version], "version": version}, version=version, **more)


def drawn(client, count: int) -> list[int]:
    return [int(client.sample(1, timeout=60.0)["version"][0]) for _ in range(count)]


@pytest.mark.parametrize(("sampler", "order"), [(gear.Fresh(), [10, 9, 8]), (gear.Fifo(), [8, 9, 10])])
def test_now_10_and_at_most_2_behind(table, sampler, order):
    """Origin: NeMo-RL#2458, #3582: 7 is never returned, a lag of 2 is accepted, fresh-first gives 10, fifo gives 8."""
    client = table(sampler=sampler, max_staleness=2)
    insert(client, 7, 8, 9, 10)
    assert client.set_version(10) == client.version() == 10
    assert drawn(client, 3) == order
    with pytest.raises(gear.DeadlineExceeded):
        client.sample(1, timeout=0.02)
    info = client.info()["tables"][client.name]
    assert (info["expired_trajectories"], info["version"]) == (1, 10)


def test_fresh_goes_by_version_and_not_by_arrival(table):
    client = table(sampler=gear.Fresh())
    insert(client, 9, 7, 10, 8, 10)
    assert drawn(client, 5) == [10, 10, 9, 8, 7]


def test_what_is_too_old_when_it_comes_leaves_at_once(table):
    client = table(max_staleness=1)
    client.set_version(5)
    insert(client, 3)
    insert(client, 4)
    client.insert({"x": [0], "version": 5})  # the table's version, where none is given
    assert sorted(drawn(client, 2)) == [4, 5]
    assert client.info()["tables"][client.name]["expired_trajectories"] == 1
    client.set_version(6)


def test_a_version_never_falls(table):
    client = table(max_staleness=1)
    assert [client.set_version(v) for v in (3, 2, 3, 4)] == [3, 3, 3, 4]
    with pytest.raises(gear.DataError, match="version: expected a whole number"):
        client.set_version(-1)


def test_expired_items_give_their_producers_the_credit_back(table):
    client = table(limiter=gear.Queue(2), max_staleness=0)
    insert(client, 0, 0)
    with pytest.raises(gear.DeadlineExceeded, match="limiter Queue"):
        insert(client, 0, timeout=0.02)
    thread = threading.Thread(target=insert, args=(client, 1), kwargs={"timeout": 30})
    thread.start()
    client.set_version(1)
    thread.join(60)
    insert(client, 1, timeout=60.0)
    assert drawn(client, 2) == [1, 1]


def test_an_item_that_expires_while_it_is_read_returns_its_credit_when_it_is_not_delivered(table):
    client = table(limiter=gear.Queue(1), max_staleness=0)
    insert(client, 0)
    selection = client.select(1)
    client.set_version(1)
    assert client.collect(selection)["version"].tolist() == [0]  # still readable
    client.release(selection, delivered=False)
    insert(client, 1, timeout=60.0)
    with pytest.raises(gear.DeadlineExceeded):
        insert(client, 1, timeout=0.02)


def test_a_staleness_budget_admits_eta_plus_version_plus_1_batches(table):
    """Origin: AReaL, eq. 3: floor((N - 1) / batch) <= version + eta."""
    client = table(limiter=gear.StalenessBudget(batch=2, eta=1))
    insert(client, 0, 0, 0, 0)
    with pytest.raises(gear.DeadlineExceeded, match="waits for a newer version: 4 items are in at version 0"):
        insert(client, 0, timeout=0.02)
    drawn(client, 4)  # taking them out is not what it waits for
    with pytest.raises(gear.DeadlineExceeded, match="newer version"):
        insert(client, 0, timeout=0.02)
    thread = threading.Thread(target=insert, args=(client, 1, 1), kwargs={"timeout": 30})
    thread.start()
    client.set_version(1)
    thread.join(60)
    with pytest.raises(gear.DeadlineExceeded, match="6 items are in at version 1"):
        insert(client, 1, timeout=0.02)


def test_insert_many_takes_a_version_for_all_or_one_for_each(table):
    client = table(sampler=gear.Fresh())
    client.insert_many({"x": np.arange(3), "version": np.array([1, 3, 2])}, offsets=[0, 1, 2, 3], versions=[1, 3, 2])
    client.insert_many([{"x": [0], "version": 5}] * 2, versions=5)
    assert drawn(client, 5) == [5, 5, 3, 2, 1]


def test_a_table_without_versions_refuses_one(make):  # noqa: F811
    client = make(columns=COLUMNS, item=gear.Whole(), mean_length=2)
    with pytest.raises(gear.DataError, match="keeps no versions; declare max_staleness="):
        insert(client, 1)


def test_a_requirement_and_versions_go_together(make):  # noqa: F811
    client = make(
        columns=(*COLUMNS, gear.Column("reward", (), "float32", per="trajectory", late=True)), item=gear.Whole(),
        mean_length=2, sampler=gear.Fresh(), requirements=["reward"], max_staleness=2, max_times_sampled=1,
    )  # fmt: skip
    insert(client, 1, 3, 2)
    page = next(client.scan())
    order = np.argsort(page.trajectories)
    client.fill(page.ids[order[[0, 2]]], {"reward": [0.1, 0.2]})
    client.set_version(4)
    assert client.sample(1, require="reward")["version"].tolist() == [2]
    with pytest.raises(gear.DeadlineExceeded, match="none of which can be drawn with reward"):
        client.sample(1, require="reward", timeout=0.02)
    assert drawn(client, 1) == [3]


def test_batches_and_selections_tell_the_version_of_each_item(table):
    client = table(max_staleness=5, sampler=gear.Fifo())
    client.set_version(4)
    insert(client, 3, 5)
    client.insert({"x": [0], "version": 4})  # the table's
    assert client.sample(2, timeout=60.0).versions.tolist() == [3, 5]
    selection = gear.Selection.from_bytes(client.select(1, parties=2, timeout=60.0).to_bytes())
    assert selection.versions.tolist() == [4]
    insert(client, 5, 3)
    parts = [client.sample(1, world_size=2, rank=rank, timeout=60.0) for rank in (1, 0)]
    assert all(part.versions[0] == part["version"][0] for part in parts)


def test_batches_of_a_table_without_versions_say_how_to_have_them(table):
    client = table()
    client.insert({"x": [0], "version": 4})
    with pytest.raises(gear.DataError, match="keeps no versions; declare max_staleness="):
        _ = client.sample(1, timeout=5).versions


def test_a_writers_trajectory_is_of_the_version_with_which_it_began(make):  # noqa: F811
    client = make(columns=COLUMNS[:1], capacity=gear.Trajectories(32), item=gear.Whole(), mean_length=2,
                  sampler=gear.Fifo(), max_staleness=9, max_times_sampled=1, block_steps=2)  # fmt: skip
    client.set_version(3)
    with client.writer(version=5) as writer:
        writer.append({"x": 0})
        writer.version = 6  # in the middle of it
        writer.append({"x": 0})
        writer.end()
        writer.append({"x": 0})
        writer.end()
        writer.version = None
        writer.append({"x": 0})
        writer.end()
        with pytest.raises(gear.DataError, match="version: expected a whole number"):
            writer.version = -1
    with client.writer(num_envs=2, autoreset="same_step", version=7) as writer:
        writer.append({"x": [0, 0]}, terminated=[True, False])
        writer.version = 8
        writer.append({"x": [0, 0]})  # the second environment's trajectory goes on, the first one's begins
        writer.end()
    versions = client.sample(6, timeout=60.0).versions.tolist()
    assert versions[:4] == [5, 6, 3, 7]
    assert sorted(versions[4:]) == [7, 8]

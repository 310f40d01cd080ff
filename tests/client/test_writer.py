"""Writing step by step: what is visible when, pieces, private blocks, and nothing dropped in silence."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gear
from gear.client.leases import LeasePool

from .conftest import columns, rows


def figures(client):
    return client.info()["tables"]["t"]


def steps_of(client, size=256):
    """Every different whole trajectory in a large sample, as tuples of steps."""
    batch = client.sample(size, timeout=60.0)
    return {tuple(s[:n].tolist()) for s, n in zip(batch["step"], batch.lengths, strict=True)}


def step(t):
    return {"obs": np.full(2, t, np.float32), "step": t}


def append(writer, *range_):
    for t in range(*range_):
        writer.append(step(t))


def test_a_trajectory_becomes_visible_whole_at_its_end(embed):
    client = embed(item=gear.Whole())
    with client.writer() as writer:
        append(writer, 40)
        assert figures(client)["trajectories"] == 0
        writer.end(terminated=True)
        writer.flush()
        assert figures(client)["trajectories"] == 1
        append(writer, 100, 103)
        writer.end()
    assert steps_of(client) == {tuple(range(40)), (100, 101, 102)}


def test_chunks_and_steps_mix(embed):
    client = embed(item=gear.Whole(), block_steps=4)
    with client.writer() as writer:
        writer.extend(rows(6))
        append(writer, 6, 9)
        writer.extend(rows(11, start=9))
        writer.end()
    assert steps_of(client) == {tuple(range(20))}


def test_leaving_the_block_ends_an_unended_trajectory(embed):  # origin: reverb 0.14, observed: unsent steps
    client = embed(item=gear.Whole())
    with client.writer() as writer:
        append(writer, 5)
    assert steps_of(client) == {(0, 1, 2, 3, 4)}
    with pytest.raises(gear.Closed, match="this writer has been closed"):
        writer.append(step(0))
    writer.close()


def test_a_close_that_can_not_commit_says_how_many_steps_were_dropped(embed):
    table = gear.Table(
        "t", columns=[*columns(), gear.Column("goal", per="trajectory")], capacity=gear.Steps(100), item=gear.Whole()
    )
    with gear.embedded([table]) as client:
        writer = client.writer()
        append(writer, 5)
        with pytest.raises(gear.DataError, match=r"5 steps of an unended trajectory were dropped: .*\(goal\)"):
            writer.close()


def test_an_end_without_steps_is_refused(embed):
    with embed().writer() as writer, pytest.raises(gear.DataError, match="no step was appended since the last end"):
        writer.end()


def test_a_bad_step_is_not_appended(embed):
    client = embed(item=gear.Whole())
    with client.writer() as writer:
        append(writer, 2)
        for bad, message in [
            ({"obs": np.zeros(2, np.float32)}, "misses column 'step'"),
            ({**step(2), "x": 1}, "has 'x'"),
            ({"obs": np.zeros(3, np.float32), "step": 2}, r"expected float32\[2\], got float32\[3\]"),
            ({"obs": np.zeros(2), "step": 2}, "got float64"),
            ({"obs": 1.0, "step": 2}, r"got float32\[\]"),
            ({"obs": np.zeros(2, np.float32), "step": 2.0}, "expected int64, got Python float"),
            ({"obs": np.zeros(2, np.float32), "step": True}, "expected int64, got Python bool"),
            ({"obs": np.zeros(2, np.float32), "nothing": 1}, "misses column 'step'"),
        ]:
            with pytest.raises(gear.DataError, match=message):
                writer.append(bad)
        with pytest.raises(gear.DataError, match="unequal lengths"):
            writer.extend({"obs": np.zeros((3, 2), np.float32), "step": np.arange(2)})
        append(writer, 2, 4)
        writer.end()
    assert steps_of(client) == {(0, 1, 2, 3)}


def test_scalars_are_range_checked_and_nested_steps_are_flattened():
    table = gear.Table(
        "t",
        columns=[gear.Column("a/x"), gear.Column("a/y", (), "uint8"), gear.Column("b", (), "bfloat16")],
        capacity=gear.Steps(100),
    )
    with gear.embedded([table]) as client, client.writer() as writer:
        writer.append({"a": {"x": 1, "y": 255}, "b": 1.5})
        writer.append({"a/x": float("nan"), "a/y": np.uint8(3), "b": -2})
        with pytest.raises(gear.DataError, match="out of the range of uint8"):
            writer.append({"a": {"x": 1, "y": 256}, "b": 0})
        with pytest.raises(gear.DataError, match="out of the range of float32"):
            writer.append({"a": {"x": 1e300, "y": 0}, "b": 0})
        writer.end()
        batch = client.sample(64)
        assert set(batch["a/y"].tolist()) == {255, 3}
        assert set(batch["b"].astype(np.float32).tolist()) == {1.5, -2.0}


def test_rows_become_visible_when_a_block_is_full_and_on_flush(embed):
    client = embed(item=gear.Step(0), block_steps=4)
    writer = client.writer()
    append(writer, 3)
    assert figures(client)["steps"] == 0
    append(writer, 3, 4)
    assert figures(client)["steps"] == 4
    append(writer, 4, 6)
    writer.flush()
    assert figures(client)["steps"] == 6
    append(writer, 6, 7)
    assert set(client.sample(256)["step"].tolist()) == set(range(7))  # a client reads its own writes
    writer.end(final={"obs": [9.0, 9.0]})
    assert figures(client)["steps"] == 7
    assert figures(client)["trajectories"] == 1


def test_a_table_of_rows_may_be_written_whole(embed):
    client = embed(item=gear.Step(), sampler=gear.Prioritized(alpha=1.0))
    with client.writer(publish="end") as writer:
        append(writer, 40)
        assert figures(client)["steps"] == 0
        writer.end(priority=[1.0] + [0.0] * 39)
        assert set(client.sample(64)["step"].tolist()) == {0}
    with pytest.raises(gear.SchemaError, match="declares publish='end'.*got 'rows'"):
        embed(item=gear.Whole()).writer(publish="rows")


def test_a_priority_for_rows_already_published_is_refused(embed):
    client = embed(item=gear.Step(), sampler=gear.Prioritized(), block_steps=2)
    with client.writer() as writer:
        append(writer, 5)
        with pytest.raises(gear.DataError, match="part of this one is published already"):
            writer.end(priority=1.0)
        writer.end()


def test_no_window_mixes_two_writers(embed):  # origin: rl#3194
    client = embed(item=gear.Window(3), publish="rows", block_steps=4)
    one, two = client.writer(), client.writer()
    for t in range(5):
        one.append(step(t))
        two.append(step(1000 + t))
    one.publish()
    two.publish()
    assert (np.diff(client.sample(256)["step"], axis=1) == 1).all()


def test_a_long_trajectory_is_split_at_max_length(embed):
    client = embed(item=gear.Whole(), max_length=10, block_steps=4, capacity=gear.Steps(200))
    with client.writer() as writer:
        append(writer, 20)
        writer.end()
        writer.extend(rows(25, start=100))
        writer.end()
    assert steps_of(client) == {
        tuple(range(10)), tuple(range(10, 20)),
        tuple(range(100, 110)), tuple(range(110, 120)), tuple(range(120, 125)),
    }  # fmt: skip


@pytest.mark.parametrize("publish", ["end", "rows"])
def test_rows_wait_in_private_memory_when_no_block_is_lent(embed, publish):
    """Ten writers outgrow the reserve; each trajectory still arrives whole."""
    client = embed(item=gear.Window(4), publish=publish, capacity=gear.Steps(400), mean_length=20, block_steps=4)
    writers = [client.writer() for _ in range(10)]
    for t in range(30):
        for number, writer in enumerate(writers):
            writer.append(step(1000 * number + t))
    for writer in writers:
        writer.end(final={"obs": [7.0, 7.0]})
    client.flush(timeout=60.0)
    assert (figures(client)["trajectories"], figures(client)["steps"]) == (10, 300)
    seen = client.sample(1024)["step"]
    assert (np.diff(seen, axis=1) == 1).all()
    assert len(set((seen // 1000)[:, 0].tolist())) == 10


def test_an_evicted_open_trajectory_goes_on_as_a_new_piece(embed):
    client = embed(item=gear.Window(4), publish="rows", capacity=gear.Steps(100), mean_length=20, block_steps=4)
    writer = client.writer()
    append(writer, 6)
    writer.publish()
    client.reset()
    append(writer, 6, 30)
    writer.end()
    client.flush(timeout=60.0)
    batch = client.sample(256)["step"]
    assert (np.diff(batch, axis=1) == 1).all()
    assert batch.max() == 29
    with client.writer() as another:  # the lost slot is used again without confusion
        append(another, 100, 140)
    assert client.sample(512)["step"].max() == 139


def test_per_trajectory_columns_are_given_at_the_end_or_before():
    table = gear.Table(
        "t",
        columns=[*columns(), gear.Column("goal", (), "int32", per="trajectory")],
        capacity=gear.Steps(500),
        item=gear.Step(0),
        block_steps=4,
    )
    with gear.embedded([table]) as client:
        writer = client.writer()
        append(writer, 8)
        assert figures(client)["steps"] == 0  # nothing is visible before its goal is known
        with pytest.raises(gear.DataError, match=r"needs its per-trajectory columns \(goal\)"):
            writer.end()
        writer.end(trajectory={"goal": 1})
        writer.set({"goal": 2})
        append(writer, 1000, 1008)
        assert figures(client)["steps"] == 16
        with pytest.raises(gear.DataError, match="rows of this trajectory are published"):
            writer.set({"goal": 3})
        writer.end()
        batch = client.sample(256)
        np.testing.assert_array_equal(batch["goal"], np.where(batch["step"] < 1000, 1, 2))


@given(
    st.lists(st.tuples(st.sampled_from(["append", "extend", "end", "publish"]), st.integers(1, 12)), max_size=30),
    st.sampled_from(["end", "rows"]),
    st.sampled_from([1, 4, 5]),
    st.sampled_from([7, 12, 100]),
)
def test_whatever_the_calls_the_rows_are_those_appended(actions, publish, block_steps, max_length):
    table = gear.Table(
        "t", columns=columns(), capacity=gear.Steps(2000), item=gear.Window(1), publish=publish,
        block_steps=block_steps, max_length=max_length, mean_length=20, sampler=gear.Fifo(), max_times_sampled=1,
    )  # fmt: skip
    at, open_ = 0, 0
    with gear.embedded([table]) as client:
        with client.writer() as writer:
            for action, count in actions:
                if action == "append":
                    append(writer, at, at + count)
                    at, open_ = at + count, open_ + count
                elif action == "extend":
                    writer.extend(rows(count, start=at))
                    at, open_ = at + count, open_ + count
                elif action == "publish":
                    writer.publish()
                elif open_:
                    writer.end()
                    open_ = 0
        assert figures(client)["steps"] == at
        if at:
            drawn = client.sample(at, timeout=60.0)["step"]
            assert sorted(drawn.ravel().tolist()) == list(range(at))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_parents_leases_alone(embed):
    client = embed(item=gear.Whole())
    client.insert(rows(3))
    writer = client.writer()
    append(writer, 2)
    pool = client._tables.port("t", None).pool
    held = (pool.blocks, pool.slots)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            writer.append(step(2))
        except gear.Closed as error:
            code = 0 if "before a fork" in str(error) and (pool.blocks, pool.slots) == (0, 0) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (pool.blocks, pool.slots) == held
    writer.append(step(2))
    writer.end()
    assert steps_of(client) == {(0, 1, 2)}


@pytest.mark.parametrize("fails", [False, True])
def test_rows_appended_after_a_flush_in_a_private_block_are_not_lost(embed, monkeypatch, fails):
    """Found by the soak: a commit moves a private block into the table; later rows of it must follow."""
    client = embed(item=gear.Step(0), block_steps=8, mean_length=20, max_length=50, capacity=gear.Steps(400))
    for _ in range(30):  # every block has had an occupant
        client.insert(rows(20, 1000))
    writer = client.writer()
    pool = writer._port.pool
    monkeypatch.setattr(pool, "take", lambda *_: None)  # what the pool says when the shard lends no more
    monkeypatch.setattr(pool, "take_blocks", lambda *_: None)
    writer.extend(rows(3))
    if fails:
        submit = client._session.submit

        def refuse(*_):
            raise gear.DeadlineExceeded("not now")

        monkeypatch.setattr(client._session, "submit", refuse)
        with pytest.raises(gear.DeadlineExceeded):
            writer.flush(5.0)
        monkeypatch.setattr(client._session, "submit", submit)
    else:
        writer.flush(5.0)
    writer.append({name: column[0] for name, column in rows(1, 3).items()})
    writer.extend(rows(16, 4))
    writer.end()
    client.flush()
    seen = {int(step) for _ in range(100) for step in client.sample(64)["step"]}
    assert {step for step in seen if step < 1000} == set(range(20))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "bfloat16"])
def test_a_row_is_stored_whatever_memory_it_lies_in(dtype):
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    whole = np.random.default_rng(0).integers(0, 2, (6, 8, 6)).astype(kind)
    rows = [whole[0, :4, :3], whole[1].T[:4, :3], whole[2, ::2, ::2], np.ascontiguousarray(whole[3, 4:, :3])]
    rows.append(whole[4, 3::-1, :3])
    columns = [gear.Column("x", (4, 3), dtype), gear.Column("big", (40, 40), dtype), gear.Column("s", (), dtype)]
    with gear.embedded([gear.Table("t", columns, gear.Steps(100), item=gear.Whole(), max_length=10)]) as client:
        with client.writer("t") as writer:
            for row in rows:
                writer.append({"x": row, "big": np.resize(row, (40, 40)), "s": row[0, 0]})
            writer.end()
        batch = client.sample(1)
    stored = batch["x"][0]
    np.testing.assert_array_equal(stored, np.array(rows, kind).view(stored.dtype))
    big = np.array([np.resize(row, (40, 40)) for row in rows], kind)
    np.testing.assert_array_equal(batch["big"][0], big.view(stored.dtype))
    np.testing.assert_array_equal(batch["s"][0], np.array([row[0, 0] for row in rows], kind).view(stored.dtype))


@pytest.mark.parametrize("lent", [True, False])
@pytest.mark.parametrize("publish", ["end", "rows"])
def test_a_bad_step_where_a_block_begins_costs_nothing(lent, publish, monkeypatch):
    if not lent:  # no block to be had at once: rows wait in private memory
        monkeypatch.setattr(LeasePool, "take", lambda self, blocks, timeout: None)
        monkeypatch.setattr(LeasePool, "take_blocks", lambda self, blocks, timeout: None)
    table = gear.Table("t", [gear.Column("x")], gear.Steps(100), item=gear.Step(1), max_length=20, block_steps=4)
    with gear.embedded([table]) as client:
        writer = client.writer("t", publish=publish)
        for number in range(9):
            if number % 4 == 0:
                with pytest.raises(gear.DataError, match="'x'"):
                    writer.append({"x": [1.0, 2.0]})
                if number == 4:
                    writer.flush()
            writer.append({"x": float(number)})
        for number in range(9, 12):
            writer.append({"x": float(number)})
        with pytest.raises(gear.DataError, match="'x'"):
            writer.append({"x": [1.0, 2.0]})
        writer.end()
        writer.close()
        stored = client.sample(300)["x"].ravel()
    assert set(stored.tolist()) == set(map(float, range(12)))


def test_a_writer_that_nobody_ended_says_what_is_lost_with_it(embed, caplog):
    """Origin: an unended step vanished with its writer without a word."""
    client = embed()
    for last in (lambda writer: None, lambda writer: writer.end(), lambda writer: writer.close()):
        writer = client.writer()
        append(writer, 2)
        last(writer)
        del writer
    vector = client.writer(num_envs=2)
    vector.append({name: np.stack([value, value]) for name, value in step(0).items()})
    del vector
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"{kind} was left to the garbage collector: 2 unended steps of table 't' lost: end its trajectories, "
        "close it, or open it in a `with`"
        for kind in ("Writer", "VectorWriter")
    ]


def test_a_program_that_ends_with_an_unended_trajectory_says_so(server):
    code = (
        "import sys, gear; client = gear.connect(sys.argv[1]);"
        "client.create_table(gear.Table('unended', [gear.Column('x')], gear.Steps(80), item=gear.Whole()));"
        "writer = client.writer('unended'); writer.append({'x': 1.0})"
    )
    ended = subprocess.run([sys.executable, "-c", code, server.address], capture_output=True, text=True, check=True)
    assert "Writer was not closed before the end of the program: 1 unended step " in ended.stderr
    assert len(ended.stderr.splitlines()) == 1

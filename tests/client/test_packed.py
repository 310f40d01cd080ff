"""Many trajectories in one call: the same rows, flags and priorities as one by one, in packed form and as a list."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gear
from gear.client import group

from .conftest import columns, rows
from .stored import stored


def figures(client, name="t"):
    return client.info()["tables"][name]


def packed(lengths, start=0):
    """Trajectories of those lengths, whose steps go on counting: (values, offsets)."""
    return rows(sum(lengths), start), np.cumsum([0, *lengths])


def numbers(client, name="t"):
    return [one.steps["step"].tolist() for one in stored(client, name)]


@st.composite
def many(draw):
    """Lengths, flags, final values and priorities of some trajectories."""
    lengths = draw(st.lists(st.integers(1, 25), min_size=1, max_size=12))
    count = len(lengths)
    return (
        lengths,
        draw(st.lists(st.booleans(), min_size=count, max_size=count)),
        draw(st.sampled_from([(), ("obs",), ("obs", "step")])),
        draw(st.one_of(st.none(), st.lists(st.sampled_from([None, 0.5, 2, "each"]), min_size=count, max_size=count))),
    )


@given(
    many(),
    st.sampled_from([gear.Whole(), gear.Step(), gear.Window(3, stride=2, edge="tail"), gear.Window(4)]),
    st.sampled_from([1, 4, 5]),
    st.sampled_from([7, 100]),
    st.booleans(),
)
def test_what_is_stored_is_what_inserting_one_by_one_stores(case, item, block_steps, max_length, as_list):
    lengths, terminated, final, raw = case
    table = gear.Table(
        "t", columns=[*columns(), gear.Column("goal", (2,), "int32", per="trajectory")], capacity=gear.Steps(600),
        item=item, block_steps=block_steps, max_length=max_length, mean_length=20, sampler=gear.Prioritized(alpha=1.0),
    )  # fmt: skip
    values, offsets = packed(lengths)
    values["goal"] = np.arange(2 * len(lengths), dtype=np.int32).reshape(-1, 2)
    last = {n: v for n, v in rows(len(lengths), 7000).items() if n in final} or None
    ones = [
        {"obs": values["obs"][a:b], "step": values["step"][a:b], "goal": values["goal"][k]}
        for k, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True))
    ]
    with gear.embedded([table]) as single, gear.embedded([table]) as joined:
        port = single._tables.port("t", None)
        if raw is not None:
            for k, n in enumerate(lengths):
                if raw[k] == "each":
                    items = sum(_items(port.table, steps) for steps in port.pieces(n))
                    raw[k] = np.linspace(0.1, 3, items)
        for k, one in enumerate(ones):
            single.insert(
                one,
                priority=None if raw is None else raw[k],
                final=None if last is None else {n: v[k] for n, v in last.items()},
                terminated=terminated[k],
            )
        form = (ones, None) if as_list else (values, offsets)
        joined.insert_many(form[0], offsets=form[1], priorities=raw, terminated=terminated, final=last)
        leases = ("free_blocks", "leased_blocks", "free_slots", "leased_slots")
        assert {k: v for k, v in figures(joined).items() if k not in leases} == {
            k: v for k, v in figures(single).items() if k not in leases
        }
        for one, other in zip(stored(joined), stored(single), strict=True):
            for part in ("steps", "final", "values"):
                left, right = getattr(one, part), getattr(other, part)
                assert (left is None) == (right is None)
                for name in left or ():
                    np.testing.assert_array_equal(left[name], right[name])
            assert (one.terminated, one.continued, one.continues) == (
                other.terminated,
                other.continued,
                other.continues,
            )
        drawn, other = probabilities(joined), probabilities(single)
        common = drawn.keys() & other.keys()
        assert common
        assert all(drawn[item] == pytest.approx(other[item], rel=1e-9) for item in common)


def probabilities(client):
    """Of the items of a large sample, by their first step (padded at the tail, if at all)."""
    batch = client.sample(512)
    first = batch["step"] if batch["step"].ndim == 1 else batch["step"][:, 0]
    return dict(zip(first.tolist(), batch.probabilities.tolist(), strict=True))


def _items(table, steps):
    from gear.client.priorities import item_count

    return item_count(table, steps)


@pytest.mark.parametrize("item", [gear.Window(4), gear.Step()])
def test_over_a_server_rows_arrive_bit_exact(server, item):
    name = f"packed-{type(item).__name__}"
    rng = np.random.default_rng(0)
    with gear.connect(server.address) as client:
        client.create_table(
            gear.Table(
                name,
                [gear.Column("a", (3, 5), "uint8"), gear.Column("b", (), "bfloat16"), gear.Column("k", (), "int64")],
                gear.Steps(4000), item=item, mean_length=30, sampler=gear.Fifo(), max_times_sampled=1,
            )
        )  # fmt: skip
        lengths = rng.integers(1, 60, 100)
        offsets = np.cumsum([0, *lengths])
        values = {
            "a": torch.from_numpy(rng.integers(0, 256, (offsets[-1], 3, 5), dtype=np.uint8)),
            "b": torch.from_numpy(rng.random(offsets[-1])).to(torch.bfloat16),
            "k": np.arange(offsets[-1])[::-1],
        }
        client.insert_many(values, name, offsets=torch.from_numpy(offsets))
        found = stored(client, name)
        assert [len(one.steps["k"]) for one in found] == lengths.tolist()
        np.testing.assert_array_equal(np.concatenate([one.steps["k"] for one in found]), values["k"])
        np.testing.assert_array_equal(np.concatenate([one.steps["a"] for one in found]), values["a"].numpy())
        bits = values["b"].view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(np.concatenate([one.steps["b"] for one in found]), bits)


def test_read_only_and_strided_columns(embed):
    client = embed(item=gear.Whole())
    values, offsets = packed([3, 5])
    frozen = {name: np.frombuffer(v.tobytes(), v.dtype).reshape(v.shape) for name, v in values.items()}
    wide = {name: np.repeat(v, 2, 0)[::2] for name, v in values.items()}
    assert not frozen["obs"].flags.writeable
    client.insert_many(frozen, offsets=offsets)
    client.insert_many(wide, offsets=offsets)
    client.insert_many([{n: np.asfortranarray(v) for n, v in rows(4, s).items()} for s in (0, 4)])
    assert numbers(client) == [[0, 1, 2], [3, 4, 5, 6, 7]] * 2 + [[0, 1, 2, 3], [4, 5, 6, 7]]
    for one in stored(client):
        np.testing.assert_array_equal(one.steps["obs"], np.repeat(one.steps["step"][:, None], 2, 1))


def test_more_than_there_are_leases_for(embed):
    """A table of few blocks: what the shard does not lend ahead is evicted for, trajectory by trajectory."""
    client = embed(item=gear.Whole(), capacity=gear.Steps(60), mean_length=10, block_steps=2)
    values, offsets = packed([10] * 50)
    client.insert_many(values, offsets=offsets)
    assert figures(client)["inserted_trajectories"] == 50
    assert numbers(client) == [list(range(k, k + 10)) for k in range(440, 500, 10)]


def test_trajectories_longer_than_max_length_are_split(embed):
    client = embed(item=gear.Whole(), max_length=10, block_steps=4)
    values, offsets = packed([25, 10, 1])
    client.insert_many(values, offsets=offsets, final={"step": np.array([7, 8, 9])})
    found = stored(client)
    assert [len(one.steps["step"]) for one in found] == [10, 10, 5, 10, 1]
    assert np.concatenate([one.steps["step"] for one in found]).tolist() == list(range(36))
    assert [one.final and int(one.final["step"]) for one in found] == [None, None, 7, 8, 9]
    assert [(one.continues, one.continued) for one in found[:4]] == [(0, 1), (1, 1), (1, 0), (0, 0)]


@pytest.mark.parametrize("as_list", [True, False])
def test_the_timeout_says_how_many_were_committed(embed, as_list):
    client = embed(item=gear.Whole(), limiter=gear.SampleToInsertRatio(1.0, 2, 4.0))
    values, offsets = packed([3] * 10)
    form = ([rows(3, k) for k in range(0, 30, 3)], None) if as_list else (values, offsets)
    with pytest.raises(gear.DeadlineExceeded, match=r"6 of 10 trajectories were committed") as caught:
        client.insert_many(form[0], offsets=form[1], timeout=0.05)
    assert caught.value.committed == 6
    assert numbers(client) == [[k, k + 1, k + 2] for k in range(0, 18, 3)]
    client.sample(4)
    client.insert_many({n: v[18:] for n, v in values.items()}, offsets=offsets[6:] - 18)
    assert figures(client)["inserted_trajectories"] == 10


def test_one_that_fails_to_be_submitted_gives_back_its_leases(embed, monkeypatch):
    client = embed(item=gear.Whole())
    client.insert(rows(3))
    port = client._tables.port("t", None)
    submit, calls = client._session.submit_many, []

    def second_fails(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise gear.DeadlineExceeded("not now")
        return submit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(group, "GROUP", 2)
        patch.setattr(client._session, "submit_many", second_fails)
        with pytest.raises(gear.DeadlineExceeded, match="2 of 5 trajectories were committed") as caught:
            client.insert_many([rows(3, 10 * k) for k in range(1, 6)])
    assert caught.value.committed == 2
    held = (port.pool.blocks, port.pool.slots)
    client.insert_many([rows(3, 10 * k) for k in range(3, 6)])
    assert numbers(client) == [[10 * k, 10 * k + 1, 10 * k + 2] for k in range(6)]
    assert held[0] == held[1] > 0


def test_what_waits_is_taken_back_when_the_rest_cannot_be_sent(embed, monkeypatch):
    client = embed(item=gear.Whole(), limiter=gear.Queue(1))
    monkeypatch.setattr(group, "GROUP", 2)
    write, calls = group.Group._write, []

    def second_fails(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError
        write(*arguments)

    monkeypatch.setattr(group.Group, "_write", second_fails)
    with pytest.raises(MemoryError):
        client.insert_many([rows(3, 10 * k) for k in range(4)])
    assert (figures(client)["inserted_trajectories"], figures(client)["waiting_writers"]) == (1, 0)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (lambda: (rows(3) for _ in range(2)), {}, "expected a list of dicts.*got generator"),
        (lambda: [rows(3)], {"offsets": [0, 3]}, "offsets= say where .* of one dict"),
        (lambda: [rows(3)], {"priorities": 1.0}, "expected 1 priorities, one per trajectory, got 1.0"),
    ],
)
def test_arguments_that_do_not_go_together_are_named(embed, given, options, message):
    with pytest.raises(gear.DataError, match=message):
        embed(item=gear.Whole()).insert_many(given(), **options)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"offsets": None}, "packed form, which needs offsets="),
        ({}, {"offsets": [0, 3, 3, 9]}, r"at least one row per trajectory; got offsets\[2\] = 3 after 3"),
        ({}, {"offsets": [0, 3, 5, 8]}, "rise from 0 to 9.*got 0 to 8"),
        ({}, {"offsets": [1, 3, 5, 9]}, "rise from 0 to 9.*got 1 to 9"),
        ({}, {"offsets": [0, 5, 3, 9]}, r"got offsets\[2\] = 3 after 5"),
        ({}, {"offsets": [0.0, 9.0]}, r"expected int64\[N \+ 1\], got float64\[2\]"),
        ({}, {"offsets": []}, r"expected int64\[N \+ 1\]"),
        ({"step": np.arange(8)}, {}, "unequal lengths: obs 9, step 8"),
        ({"obs": np.zeros((9, 3), np.float32)}, {}, r"expected float32\[T, 2\]"),
        ({"more": np.zeros(9)}, {}, "has 'more'"),
        ({"goal": np.zeros(4, np.int32)}, {}, "column 'goal': expected 3 rows, one for each of 3, got 4"),
        ({}, {"priorities": [1.0]}, "expected 3 priorities, one per trajectory, got 1"),
        ({}, {"priorities": np.array([1, -1, 2])}, r"priorities\[1\] is -1"),
        ({}, {"priorities": [None, [1.0, 2.0], None]}, r"trajectory 1 of 3: priorities: expected shape \[1\]"),
        ({}, {"terminated": [True]}, "'terminated': expected 3 rows"),
        ({}, {"final": {"obs": np.zeros((2, 2), np.float32)}}, "'obs': expected 3 rows"),
        ({}, {"final": {"goal": np.zeros(3)}}, "final .*has 'goal'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_inserted(change, options, message):
    table = gear.Table(
        "t", columns=[*columns(), gear.Column("goal", (), "int32", per="trajectory")], capacity=gear.Steps(100),
        item=gear.Whole(), sampler=gear.Prioritized(),
    )  # fmt: skip
    values = {**rows(9), "goal": np.zeros(3, np.int32), **change}
    with gear.embedded([table]) as client:
        with pytest.raises(gear.DataError, match=message):
            client.insert_many(values, **{"offsets": [0, 2, 5, 9], **options})
        assert figures(client)["inserted_trajectories"] == 0


def test_one_that_is_too_long_is_named(embed):
    client = embed(item=gear.Whole(), capacity=gear.Steps(20))
    values, offsets = packed([3, 21])
    with pytest.raises(gear.DataError, match="trajectory 1 of 2: trajectory of 21 steps does not fit.*nothing was"):
        client.insert_many(values, offsets=offsets)
    assert figures(client)["inserted_trajectories"] == 0


def test_none_at_all_is_nothing(embed):
    client = embed()
    client.insert_many([])
    client.insert_many(rows(0), offsets=[0])
    assert figures(client)["inserted_trajectories"] == 0


def test_inserting_one_by_one_and_writing_import_no_compiler(server):
    code = """
import sys, numpy as np, gear
client = gear.connect(sys.argv[1])
client.create_table(gear.Table("bare", [gear.Column("x")], gear.Steps(100)))
client.insert({"x": np.zeros(3, np.float32)}, "bare")
with client.writer("bare", num_envs=2, autoreset="disabled") as writer:
    writer.append({"x": np.zeros(2, np.float32)}, [True, False])
client.close()
print([m for m in ("numba", "torch") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code, server.address], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_a_large_batch_goes_in_messages_that_the_path_takes(server, path):
    """Rows of several megabytes, trajectories of several pieces among them: each arrives once and whole."""
    name = f"large-{path}"
    with gear.connect(server.address, path=path) as client:
        columns = [gear.Column("image", (4096,), "uint8"), gear.Column("step", (), "int64")]
        client.create_table(
            gear.Table(name, columns, gear.Steps(4000), item=gear.Whole(), mean_length=8, max_length=20)
        )
        lengths = np.tile([3, 50, 8, 1], 25)
        offsets = np.cumsum([0, *lengths])
        step = np.arange(offsets[-1])
        image = np.repeat((step % 251).astype(np.uint8)[:, None], 4096, 1)
        client.insert_many({"image": image, "step": step}, name, offsets=offsets)
    with gear.connect(server.address, path="shm") as client:
        found = stored(client, name)
    assert np.concatenate([one.steps["step"] for one in found]).tolist() == step.tolist()
    assert all((one.steps["step"] % 251 == one.steps["image"].T).all() for one in found)
    assert [one.continues for one in found[:5]] == [0, 0, 1, 1, 0]

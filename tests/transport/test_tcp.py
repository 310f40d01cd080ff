"""The tcp path shows the same tables as the others: what goes in comes out, bit by bit, whatever its shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import gear
from gear.transport import pieces, tcp
from tests.transport.helpers import eventually

SILENCE = "10"
"""Of the `server`: nothing here is about silence."""

COLUMNS = [
    gear.Column("obs/image", (3, 2), "uint8"),
    gear.Column("obs/state", (5,)),
    gear.Column("reward", (), "float64"),
    gear.Column("done", (), "bool"),
    gear.Column("return", (2,), "float32", per="trajectory"),
    gear.Column("policy", (), "int64", per="trajectory"),
]
ITEMS = [
    gear.Whole(),
    gear.Step(0),
    gear.Step(2),
    gear.Window(1),
    gear.Window(7),
    gear.Window(7, stride=3),
    gear.Window(7, edge="tail"),
    gear.Window(7, edge="head"),
]


@pytest.fixture
def connected(server) -> Iterator[Callable[[str], gear.Client]]:
    """A function that connects to the module's server over a path."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(gear.connect(server.address, path=path))


def trajectory(rng: np.random.Generator, steps: int) -> dict[str, np.ndarray]:
    return {
        "obs/image": rng.integers(0, 255, (steps, 3, 2)).astype(np.uint8),
        "obs/state": rng.random((steps, 5), np.float32),
        "reward": rng.random(steps),
        "done": rng.random(steps) < 0.5,
        "return": rng.random(2, np.float32),
        "policy": np.int64(rng.integers(1 << 60)),
    }


def last(one: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"obs/image": one["obs/image"][0], "obs/state": one["obs/state"][-1]}


def same(one: gear.Batch, two: gear.Batch) -> None:
    assert list(one) == list(two)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
        assert one[name].dtype == two[name].dtype
    np.testing.assert_array_equal(one.mask, two.mask)
    np.testing.assert_array_equal(one.lengths, two.lengths)


@pytest.mark.parametrize("writes", ["tcp", "shm"])
@pytest.mark.parametrize("item", ITEMS, ids=str)
def test_every_item_has_the_same_bytes_on_both_paths(connected, name, item, writes, monkeypatch):
    monkeypatch.setattr(pieces, "most", lambda laned: 1000)  # many pieces, some of one item
    over_tcp, over_shm = connected("tcp"), connected("shm")
    over_tcp.create_table(gear.Table(name, COLUMNS, gear.Steps(2000), item=item, mean_length=30, max_length=60))
    rng = np.random.default_rng(5)
    writer = {"tcp": over_tcp, "shm": over_shm}[writes]
    for k in range(40):
        one = trajectory(rng, int(rng.integers(1, 61)))
        writer.insert(one, name, final=last(one) if k % 3 else None, terminated=k % 2 == 0, wait=k % 5 == 0)
    writer.flush()
    for size in (1, 5, 64):
        selection = over_tcp.select(size, name, parties=2)
        mine, theirs = over_tcp.collect(selection), over_shm.collect(selection)
        same(mine, theirs)
        views = [gear.View("reward", value=-1), "policy"]
        same(over_tcp.collect(selection, views, out=mine), over_shm.collect(selection, views))
        over_tcp.release(selection)
        over_shm.release(selection)
    batch = over_tcp.sample(64, name)
    again = over_tcp.sample(64, name, out=batch)
    assert again is batch


@pytest.mark.parametrize("publish", ["end", "rows"])
@pytest.mark.parametrize("block_steps", [1, 4, 16])
def test_a_writer_over_tcp_stores_what_it_was_given(connected, name, publish, block_steps):
    over_tcp, over_shm = connected("tcp"), connected("shm")
    over_tcp.create_table(
        gear.Table(
            name,
            COLUMNS,
            gear.Trajectories(100),
            item=gear.Window(33, stride=33, edge="tail"),
            mean_length=20,
            max_length=33,
            block_steps=block_steps,
            publish=publish,
        )  # fmt: skip
    )
    rng = np.random.default_rng(3)
    given = [trajectory(rng, int(rng.integers(1, 34))) for _ in range(25)]
    for k, one in enumerate(given):
        one["policy"] = np.int64(k)
    rows = [c.name for c in COLUMNS if c.per == "step"]
    values = [c.name for c in COLUMNS if c.per == "trajectory"]
    with over_tcp.writer(name) as writer:
        for one in given:
            writer.set({key: one[key] for key in values})
            steps, cut = len(one["reward"]), len(one["reward"]) // 3
            if cut:
                writer.extend({key: one[key][:cut] for key in rows})
            for t in range(cut, steps):
                writer.append({key: one[key][t] for key in rows})
                if rng.random() < 0.2:
                    writer.flush()
            writer.end(final=last(one), terminated=True)
    found = {}
    for _ in range(20):
        batch = over_shm.sample(64, name)
        for k, (policy, length) in enumerate(zip(batch["policy"], batch.lengths, strict=True)):
            found[int(policy)] = {key: batch[key][k, :length] if key in rows else batch[key][k] for key in batch}
    assert set(found) == set(range(25))
    for k, one in enumerate(given):
        for key in one:
            np.testing.assert_array_equal(found[k][key], one[key], err_msg=f"{k} {key}")
    figures = over_shm.info()["tables"][name]
    assert (figures["trajectories"], figures["leased_blocks"]) == (25, 0)


def test_the_stage_is_empty_when_everything_has_arrived(connected, name):
    client = connected("tcp")
    client.create_table(gear.Table(name, COLUMNS, gear.Steps(2000), item=gear.Step(0), mean_length=20, max_length=50))
    rng = np.random.default_rng(1)
    with client.writer(name) as writer:
        for _ in range(30):
            one = trajectory(rng, int(rng.integers(1, 120)))  # in pieces, the oldest lost on the way
            writer.set({key: one[key] for key in ("return", "policy")})
            for t in range(len(one["reward"])):
                writer.append({c.name: one[c.name][t] for c in COLUMNS if c.per == "step"})
                if rng.random() < 0.1:
                    writer.publish()
            writer.end()
        for _ in range(20):
            client.insert(trajectory(rng, 30), name)
    client.flush()
    port = client._tables.port(name, None)
    client._session.give_back(port.open, port.pool.surrender())
    stage = client._session._boxes[port.layout.index].stage
    assert [numbers.used for numbers in stage._numbers] == [0, 0]


def test_a_trajectory_larger_than_a_message_part_arrives_whole(connected, name, monkeypatch):
    monkeypatch.setattr(pieces, "FRAME", 1 << 16)
    client = connected("tcp")
    table = gear.Table(name, [gear.Column("x", (100,))], gear.Steps(6000), item=gear.Whole(), max_length=6000)
    client.create_table(table)
    x = np.arange(600_000, dtype=np.float32).reshape(6000, 100)
    client.insert({"x": x}, name)
    np.testing.assert_array_equal(client.sample(1, name)["x"][0], x)


def test_priorities_travel_and_weights_are_those_of_the_draw(connected, name):
    client = connected("tcp")
    client.create_table(
        gear.Table(name, [gear.Column("x")], gear.Steps(100), item=gear.Step(0), sampler=gear.Prioritized(1.0))
    )
    client.insert({"x": np.arange(4, dtype=np.float32)}, name, priority=np.array([0.0, 1.0, 3.0, 0.0]))
    batch = client.sample(400, name, beta=1.0)
    assert set(batch["x"].tolist()) == {1.0, 2.0}
    np.testing.assert_allclose(batch.probabilities, np.where(batch["x"] == 2, 0.75, 0.25))
    assert client.update_priorities(batch.ids, (batch["x"] == 1).astype(float)) == gear.Update(400, 0)
    assert set(client.sample(50, name)["x"].tolist()) == {1.0}


def test_a_loader_over_tcp_counts_only_what_it_handed_out(connected, name):
    client = connected("tcp")
    client.create_table(gear.Table(name, [gear.Column("x")], gear.Steps(100), item=gear.Window(4)))
    client.insert({"x": np.arange(20, dtype=np.float32)}, name)
    with client.loader(8, name, prefetch=3) as loader:
        for _ in range(5):
            batch = next(loader)
            assert (np.diff(batch["x"], axis=1) == 1).all()
    eventually(lambda: client.info()["tables"][name]["pins"] == 0, "what was not handed out went back")
    assert client.info()["tables"][name]["sampled_items"] == 40


def test_torch_batches_come_over_tcp(server, name):
    torch = pytest.importorskip("torch")
    with gear.connect(server.address, path="tcp", device="cpu") as client:
        client.create_table(
            gear.Table(name, [gear.Column("x", (2,), "bfloat16")], gear.Steps(100), item=gear.Window(3))
        )
        x = torch.arange(20, dtype=torch.bfloat16).reshape(10, 2)
        client.insert({"x": x}, name)
        batch = client.sample(16, name)
        assert batch["x"].dtype is torch.bfloat16
        assert (batch["x"][:, 1] - batch["x"][:, 0] == 2).all()


def test_a_full_limiter_holds_inserts_back_and_withdraws_them(connected, name):
    client = connected("tcp")
    client.create_table(
        gear.Table(
            name,
            [gear.Column("x")],
            gear.Steps(1000),
            item=gear.Whole(),
            mean_length=4,
            limiter=gear.SampleToInsertRatio(1.0, 1, 2.0),
        )  # fmt: skip
    )
    one = {"x": np.zeros(4, np.float32)}
    done = 0
    with pytest.raises(gear.DeadlineExceeded, match="the limiter SampleToInsertRatio"):  # noqa: PT012
        while done < 10:
            client.insert(one, name, timeout=0.1)
            done += 1
    with pytest.raises(gear.DeadlineExceeded) as late:
        client.insert_many([one] * 5, name, timeout=0.1)
    assert late.value.committed == 0
    figures = client.info()["tables"][name]
    assert (figures["inserted_trajectories"], figures["leased_blocks"]) == (done, 0)
    client.sample(2, name)
    client.insert(one, name, timeout=60.0)
    assert client.info()["tables"][name]["inserted_trajectories"] == done + 1


def test_parked_rows_commit_when_a_sample_lets_them(connected, name):
    client, other = connected("tcp"), connected("shm")
    client.create_table(
        gear.Table(
            name,
            [gear.Column("x")],
            gear.Steps(1000),
            item=gear.Whole(),
            mean_length=4,
            limiter=gear.SampleToInsertRatio(1.0, 1, 2.0),
        )  # fmt: skip
    )
    for k in range(12):
        client.insert({"x": np.full(4, k, np.float32)}, name, wait=False)
    assert client.info()["tables"][name]["trajectories"] < 12
    for _ in range(12):
        other.sample(1, name)
    client.flush(5.0)
    assert client.info()["tables"][name]["trajectories"] == 12


def test_selections_are_shared_between_paths_and_revoked_when_blocks_are_needed(connected, name):
    client, other = connected("tcp"), connected("shm")
    client.create_table(
        gear.Table(name, [gear.Column("x")], gear.Trajectories(4), item=gear.Whole(), mean_length=4, block_steps=4)
    )
    client.insert({"x": np.zeros(4, np.float32)}, name)
    held = [client.select(1, name) for _ in range(20)]
    for k in range(200):
        other.insert({"x": np.full(4, k, np.float32)}, name, timeout=60.0)
        if k % 10 == 0:
            held.append(client.select(1, name))
    with pytest.raises(gear.PinLost):  # noqa: PT012
        for selection in held:
            client.collect(selection)
    client.sample(4, name, timeout=60.0)


def test_a_pin_that_was_taken_back_while_rows_were_under_way_is_lost(connected, name):
    client = connected("tcp")
    client.create_table(gear.Table(name, [gear.Column("x")], gear.Steps(100), item=gear.Window(4)))
    client.insert({"x": np.zeros(10, np.float32)}, name)
    selection = client.select(4, name, ttl=0.05)
    deadline = time.time() + 60
    while time.time() < deadline and client.info()["tables"][name]["pins"]:
        pass
    with pytest.raises(gear.PinLost):
        client.collect(selection)
    reader = client._tables.reader(name, None, None)
    plan = reader.plan((), 4, 4)
    assert not client._session.gather(reader.open, selection, plan, np.empty(plan.nbytes, np.uint8))


def test_the_best_path_is_found_and_one_can_be_forced(server, monkeypatch):
    for path, expected in ((None, "shm"), ("shm", "shm"), ("tcp", "tcp")):
        with gear.connect(server.address, path=path) as client:
            assert client.info()["path"] == expected
    with pytest.raises(gear.ProtocolError, match="path: expected 'shm', 'rdma', 'tcp' or None"):
        gear.connect(server.address, path="infiniband")


def test_a_client_without_the_shared_memory_uses_tcp(server, monkeypatch):
    monkeypatch.setattr("gear.transport.door.DOOR", "another-door")
    with gear.connect(server.address) as client:
        assert client.info()["path"] == "tcp"
    with pytest.raises(gear.ConnectionLost, match="path='shm' needs a client on the server's host"):
        gear.connect(server.address, path="shm")


def test_threads_of_one_client_gather_at_once(connected, name, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setattr(pieces, "most", lambda laned: 2000)
    client = connected("tcp")
    client.create_table(gear.Table(name, COLUMNS, gear.Steps(2000), item=gear.Window(7), mean_length=30))
    rng = np.random.default_rng(2)
    for _ in range(20):
        client.insert(trajectory(rng, 30), name, wait=False)
    client.flush()
    selection = client.select(64, name)
    expected = client.collect(selection)
    with ThreadPoolExecutor(2 * tcp.GATHERS) as pool:
        for batch in pool.map(lambda _: client.collect(selection), range(4 * tcp.GATHERS)):
            same(batch, expected)


def test_packed_inserts_and_vectorised_writers_go_the_same_way(connected, name):
    over_tcp, over_shm = connected("tcp"), connected("shm")
    columns = [gear.Column("step", (), "int64"), gear.Column("env", (), "int64")]
    over_tcp.create_table(gear.Table(name, columns, gear.Steps(5000), item=gear.Whole(), mean_length=20, max_length=60))
    lengths = np.arange(1, 51)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    step = np.concatenate([np.arange(n) for n in lengths])
    packed = {"step": step, "env": np.repeat(lengths, lengths)}
    over_tcp.insert_many(packed, name, offsets=offsets)
    with over_tcp.writer(name, num_envs=3, autoreset="disabled") as writer:
        no = np.zeros(3, np.bool_)
        for t in range(40):
            writer.append({"step": np.full(3, t), "env": np.arange(100, 103)}, no, no)
    found = set()
    for _ in range(30):
        batch = over_shm.sample(64, name)
        for k, length in enumerate(batch.lengths):
            assert batch["step"][k, :length].tolist() == list(range(length))
            assert set(batch["env"][k, :length].tolist()) == {int(length) if length != 40 else batch["env"][k, 0]}
            found.add((int(batch["env"][k, 0]), int(length)))
    assert found == {(n, n) for n in range(1, 51)} | {(env, 40) for env in (100, 101, 102)}

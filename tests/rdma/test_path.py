"""The rdma path against a server: equal bytes, counters, concurrency under eviction, failures."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gear
from gear.transport.rdma_mirror import Mirror
from tests.rdma.children import COLUMNS, consistent, trajectory

slow = pytest.mark.slow
"""Left out where processors are emulated and nobody asks for all."""

BATCHES = [
    pytest.param("careful", "unloaded", gear.Window(16, stride=3, edge="tail"), id="inbox"),
    pytest.param("trusting", "landed", gear.Window(16), id="leases", marks=slow),
    pytest.param("trusting", "landed", gear.Whole(), id="whole", marks=slow),
]
"""A server, how rows come to it, and items."""


def declared(name: str, item: gear.schema.Item, steps: int = 1500, **fields: object) -> gear.Table:
    given = {"mean_length": 40, "max_length": 60, "block_steps": 8, **fields}
    return gear.Table(name, COLUMNS, gear.Steps(steps), item=item, **given)  # type: ignore[arg-type]


def same(one: gear.Batch, two: gear.Batch) -> None:
    assert list(one) == list(two)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    np.testing.assert_array_equal(one.mask, two.mask)
    np.testing.assert_array_equal(one.lengths, two.lengths)


def figures(client: gear.Client) -> tuple[dict, dict]:
    info = client.info()
    return info["rdma"], info["way"]


@pytest.mark.parametrize(("server", "came", "item"), BATCHES)
def test_every_batch_has_the_bytes_that_tcp_returns(request, connect, server, came, item):
    address = request.getfixturevalue(server)
    over_rdma, over_tcp = connect(address), connect(address, "tcp")
    name = f"equal-{type(item).__name__}-{getattr(item, 'stride', 0)}"
    over_rdma.create_table(declared(name, item))
    rng, given = np.random.default_rng(5), {}
    before = figures(over_rdma)
    for k in range(25):
        one = given[k] = trajectory(rng, k, int(rng.integers(1, 61)))
        final = {"obs": one["obs"][0], "reward": one["reward"][-1]} if k % 3 else None
        over_rdma.insert(one, name, final=final, terminated=k % 2 == 0, wait=k % 5 == 0)
    over_rdma.flush()
    after = figures(over_rdma)
    assert after[0][came] > before[0][came]
    assert after[1]["written_bytes"] > 25 * 8 * 160
    if came == "landed":  # of rows the server copied nothing, only the columns of which a trajectory has one row
        assert after[0]["copied_bytes"] - before[0]["copied_bytes"] == 25 * (8 + 2000)
    for size, views in ((1, ()), (40, ()), (10, [gear.View("obs", stack=2), gear.return_to_go("reward"), "image"])):
        selection = over_tcp.select(size, name, parties=2)
        read = figures(over_rdma)
        mine, theirs = over_rdma.collect(selection, views or None), over_tcp.collect(selection, views or None)
        same(mine, theirs)
        now = figures(over_rdma)
        assert now[1]["read_bytes"] > read[1]["read_bytes"]
        assert now[0]["located"] == read[0]["located"] + 1  # one request for a batch, whatever its bytes
        assert now[0]["copied_bytes"] - read[0]["copied_bytes"] <= 8 * size  # policy numbers; of rows nothing
        over_rdma.release(selection)
        over_tcp.release(selection)
    batch = over_rdma.sample(4, name)
    for k, image in zip(batch["policy"].tolist(), batch["image"], strict=True):
        np.testing.assert_array_equal(image, given[k]["image"])


WIDE = [gear.Column("obs", (40,)), gear.Column("reward", (), "float64")]
SHORT = [
    gear.Column("obs", (3,)),
    gear.Column("reward", (), "float64"),
    gear.Column("late", (), per="trajectory", late=True),
]
PUSHED = {
    "single rows": (WIDE, gear.Step()),
    "short blocks": (SHORT[:2], gear.Window(16)),
    "late": (SHORT, gear.Whole()),
}


@pytest.mark.parametrize("kind", ["single rows", *(pytest.param(kind, marks=slow) for kind in [*PUSHED][1:])])
def test_short_rows_are_pushed_with_the_bytes_that_tcp_returns(careful, connect, kind):
    over_rdma, over_tcp = connect(careful), connect(careful, "tcp")
    columns, item = PUSHED[kind]
    name, rng = f"pushed-{kind.replace(' ', '-')}", np.random.default_rng(4)
    over_rdma.create_table(gear.Table(name, columns, gear.Steps(1500), item=item, mean_length=40, max_length=60))
    for _ in range(25):
        steps = int(rng.integers(16, 61))
        one = {c.name: rng.random((steps, *c.shape)).astype(c.dtype) for c in columns if not c.late}
        over_rdma.insert(one, name)
    if kind == "late":
        ids = np.concatenate([page.ids for page in over_tcp.scan(name)])
        over_tcp.fill(ids, {"late": rng.random(len(ids), np.float32)})
    selection = over_tcp.select(600, name, parties=2)
    before = figures(over_rdma)
    mine, theirs = over_rdma.collect(selection), over_tcp.collect(selection)
    same(mine, theirs)
    after = figures(over_rdma)
    assert after[0]["pushed"] == before[0]["pushed"] + 1
    nbytes = sum(mine[column].nbytes for column in mine)
    assert after[0]["pushed_bytes"] - before[0]["pushed_bytes"] >= nbytes
    assert after[1]["pushed_bytes"] - before[1]["pushed_bytes"] >= nbytes
    assert after[0]["staged_bytes"] == 0
    over_rdma.release(selection)
    over_tcp.release(selection)


def test_where_leases_do_not_confine_writers_rows_go_to_an_inbox(careful, connect):
    client, name = connect(careful), "inbox"
    client.create_table(declared(name, gear.Whole(), steps=4000))
    rng = np.random.default_rng(6)
    given = [trajectory(rng, k, int(rng.integers(1, 61))) for k in range(40)]
    before = figures(client)
    client.insert_many(given[:20], name)
    for one in given[20:]:
        client.insert(one, name, wait=False)
    client.flush()
    after = figures(client)
    nbytes = sum(one["obs"].nbytes + one["reward"].nbytes for one in given)
    assert after[0]["unloaded"] > before[0]["unloaded"]
    assert after[0]["landed"] == before[0]["landed"]
    assert after[1]["written_bytes"] - before[1]["written_bytes"] >= nbytes
    batch = client.sample(40, name)
    for k, row in enumerate(batch["policy"].tolist()):
        steps = int(batch.lengths[k])
        np.testing.assert_array_equal(batch["obs"][k, :steps], given[row]["obs"])
        np.testing.assert_array_equal(batch["image"][k], given[row]["image"])


@slow
def test_many_trajectories_at_once_are_written(trusting, connect):
    client, name = connect(trusting), "many"
    client.create_table(declared(name, gear.Whole(), steps=4000))
    rng = np.random.default_rng(1)
    client.insert_many([trajectory(rng, k, 30) for k in range(64)], name)
    assert client.info()["tables"][name]["trajectories"] == 64


@slow
def test_a_writer_whose_trajectory_grows_sends_it_over_tcp(trusting, connect):
    client, name = connect(trusting), "grows"
    client.create_table(declared(name, gear.Window(4), publish="rows"))
    one = trajectory(np.random.default_rng(1), 3, 50)
    with client.writer(name) as writer:
        writer.extend({k: one[k] for k in ("obs", "reward")})
        writer.flush()
        writer.end(trajectory={k: one[k] for k in ("policy", "image")})
    info = client.info()["tables"][name]
    assert (info["trajectories"], info["inserted_steps"]) == (1, 50)


def test_after_its_queue_pair_is_lost_a_client_goes_on_and_gets_another(careful, connect):
    client, name = connect(careful), "lost"
    client.create_table(declared(name, gear.Window(16)))
    rng = np.random.default_rng(2)
    for k in range(5):
        client.insert(trajectory(rng, k, 40), name)
    way = client._session._way
    for k in range(5, 9):
        way.pair.close()  # the next request finds it broken
        client.insert(trajectory(rng, k, 40), name)
        client.sample(8, name)
        deadline = time.monotonic() + 60
        while way.pair is None and time.monotonic() < deadline:
            client.sample(8, name)
    assert way.pair is not None
    assert way.figures["broken"] >= 4
    assert client.info()["tables"][name]["trajectories"] == 9
    assert client.info()["rdma"]["queue_pairs"] >= 1


def churn(address: str, name: str, seconds: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.rdma.children", address, name, seconds]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@slow
def test_nothing_is_torn_while_the_table_evicts(trusting, connect):
    client, other, name = connect(trusting), connect(trusting, "tcp"), "churn"
    client.create_table(declared(name, gear.Window(16), steps=400))
    writer = churn(trusting, name, "12")
    batches = 0
    while writer.poll() is None:
        selection = client.select(16, name, parties=2, timeout=60)
        mine, theirs = client.collect(selection), other.collect(selection)
        consistent(mine)
        same(mine, theirs)
        client.release(selection)
        other.release(selection)
        batches += 1
    with writer.stdout as said:
        inserted = int(said.read().split()[-1])
    info = client.info()["tables"][name]
    assert batches > 3
    assert info["inserted_trajectories"] == inserted
    assert info["evicted_trajectories"] > 0


@slow
def test_the_check_sees_rows_that_are_read_without_a_pin(trusting, connect, monkeypatch):
    client, name = connect(trusting), "torn"
    client.create_table(declared(name, gear.Window(16), steps=400))
    writer = churn(trusting, name, "15")
    bring = Mirror.transfers

    def late(self):
        """As if the pin had not held: what was located is given back, and read when it is others' already."""
        moves = bring(self)
        client._session.release(client._session.open_table(name, 60), held[-1], False)
        before = client.info()["tables"][name]["inserted_trajectories"]
        while writer.poll() is None and client.info()["tables"][name]["inserted_trajectories"] < before + 30:
            pass
        return moves

    held = []
    monkeypatch.setattr(Mirror, "transfers", late)
    torn = 0
    while writer.poll() is None and not torn:
        selection = client.select(16, name, timeout=60)
        held.append(selection)
        try:
            consistent(client.collect(selection))
        except AssertionError:
            torn += 1
        except gear.PinLost:
            pass
    writer.kill()
    writer.wait()
    writer.stdout.close()
    assert torn


@slow
def test_a_writer_that_is_killed_leaves_nothing_torn_and_no_lease(trusting, connect):
    client, name = connect(trusting), "killed"
    client.create_table(declared(name, gear.Window(16), steps=400))
    writer = churn(trusting, name, "600")
    client.sample(16, name, timeout=120)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    deadline = time.monotonic() + 120  # five client timeouts
    while (info := client.info())["rdma"]["queue_pairs"] > 1 or info["tables"][name]["leased_blocks"]:
        consistent(client.sample(16, name, timeout=60))
        assert time.monotonic() < deadline, "the queue pair of a dead client, or its leases, stay"
    info = client.info()["tables"][name]
    assert info["inserted_trajectories"] > 0

"""A server whose shard has a GPU, with writers and learners, in the simulator: everything is what a CPU serves."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import gear
from gear.client.device_batch import DeviceBatch
from gear.devices import streams
from gear.storage import memory
from tests.devices.test_arena import OnCard
from tests.transport.conftest import _serve


def table(placement: str, name: str = "", **fields: Any) -> gear.Table:
    columns = [
        gear.Column("obs", (5,), "float32", placement=placement),
        gear.Column("frame", (9,), "uint8"),
        gear.Column("reward", placement=placement),
        gear.Column("goal", (), "int64", per="trajectory"),
    ]
    given: dict[str, Any] = {
        "capacity": gear.Steps(150), "item": gear.Window(6), "sampler": gear.Prioritized(alpha=0.7),
        "block_steps": 4, "mean_length": 15, "seed": 21,
    }  # fmt: skip
    return gear.Table(name or placement, columns, **(given | fields))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`gear-server --devices 0`, one for the file."""
    yield from _serve(tmp_path_factory, "0", "10", "--device-memory", "8MiB")


def rows(rng: np.random.Generator, steps: int) -> dict[str, np.ndarray]:
    return {
        "obs": rng.random((steps, 5), np.float32), "frame": rng.integers(0, 255, (steps, 9), np.uint8),
        "reward": rng.random(steps, np.float32),
    }  # fmt: skip


def train(client: gear.Client, name: str, learner: gear.Client) -> list[tuple[Any, ...]]:
    """Write and learn; what the learner saw. Writers lease blocks as they go, hence others: ids would differ."""
    rng, seen = np.random.default_rng(4), []
    for step in range(6):
        steps = int(rng.integers(2, 40))
        obs = rng.random(5, np.float32)
        client.insert(
            {**rows(rng, steps), "goal": np.int64(step)}, name, priority=1.0 + step, final={"obs": obs}
        )  # fmt: skip
        client.insert_many([{**rows(rng, n), "goal": np.int64(n)} for n in (3, 6)], name)
        views = ("obs", gear.n_step("reward", 2, 0.9), gear.View("frame", shift=1, name="next"), "goal")
        for query in (gear.Query(4), gear.Query(3, views=views)):
            batch = learner.sample(query, name, beta=0.5)
            low = batch.ids & ((1 << 47) - 1)  # without the number of the table
            arrays = [np.asarray(batch[column]).copy() for column in batch]
            seen.append((low, batch.probabilities, np.asarray(batch.weights), np.asarray(batch.mask), *arrays))
            learner.update_priorities(batch.ids, np.abs(arrays[0].reshape(len(batch.ids), -1).sum(1)).astype(float))
        learner.release(learner.select(2, name), delivered=False)
        streams.drain_all()
        learner.info()  # carries what was let go of: a pin decides which blocks the next insert gets
    return seen


def alike(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_draws_and_batches_are_those_of_a_cpu_bit_by_bit(server, start_server):
    """Same seed and same order of requests: columns on host or device, written by shared memory or over TCP."""
    plain = start_server("--devices", "cpu", "--memory", "64MiB")
    expected = {}
    with gear.connect(plain.address) as learner, gear.connect(plain.address, path="tcp") as remote:
        for path, writer in (("shm", learner), ("tcp", remote)):
            learner.create_table(table("host", path))
            expected[path] = train(writer, path, learner)
    with gear.connect(server.address, device="cuda:0") as learner, gear.connect(server.address, path="tcp") as remote:
        assert learner.info()["devices"] == "GPU-simulated-0"
        for path, writer in (("shm", learner), ("tcp", remote)):
            for placement in ("host", "device"):
                learner.create_table(table(placement, f"{path}-{placement}"))
                alike(expected[path], train(writer, f"{path}-{placement}", learner))


def test_every_kind_of_learner_reads_columns_of_a_device(server):
    """By shared memory and TCP, into NumPy arrays, tensors of the host and of the device, from a loader."""
    rng = np.random.default_rng(8)
    given = {**rows(rng, 9), "goal": np.int64(3)}
    with gear.connect(server.address) as actor:
        actor.create_table(table("device", "kinds", item=gear.Whole(), sampler=None))
        actor.insert({**given, "obs": OnCard(given["obs"])}, "kinds")
        for path in ("shm", "tcp"):
            with gear.connect(server.address, path=path) as other, other.writer("kinds") as writer:
                for t in range(9):
                    writer.append({name: given[name][t] for name in ("obs", "frame", "reward")})
                writer.end(trajectory={"goal": given["goal"]})
        for path in ("shm", "tcp"):
            for device in (None, "cpu", "cuda:0"):
                with gear.connect(server.address, device=device, path=path) as learner:
                    batch = learner.sample(2, "kinds")
                    assert isinstance(batch, DeviceBatch) == (path == "shm" and device == "cuda:0")
                    for name, value in given.items():
                        np.testing.assert_array_equal(np.asarray(batch[name])[1], value)
        with actor.loader(3, "kinds", device="cuda:0", prefetch=2) as loader:
            for _ in range(4):
                np.testing.assert_array_equal(np.asarray(next(loader)["obs"])[2], given["obs"])


def test_what_does_not_fit_is_refused_with_both_sizes(server):
    with gear.connect(server.address) as client:
        wide = gear.Table("wide", [gear.Column("x", (1000,), placement="device")], gear.Steps(4000))
        with pytest.raises(gear.InsufficientMemory, match=r"needs 1\d\.\d\d MiB \(\d+ bytes\) of GPU memory, but of"):
            client.create_table(wide)
        with pytest.raises(gear.TableNotFound):
            client.sample(1, "wide")


def test_a_server_has_a_shard_for_each_device_and_a_learner_reads_them_all(start_server, tmp_path):
    file = tmp_path / "tables.toml"
    file.write_text(
        '[table.t]\ncolumns = [{ name = "x", dtype = "int64" }, { name = "y", placement = "device" }]\n'
        'capacity = { type = "steps", n = 400 }\nitem = { type = "step" }\n'
    )
    server = start_server("--devices", "GPU-simulated-1,0", "--memory", "64MiB", "--tables", str(file))
    assert server.fields["devices"] == "1,0"
    with gear.connect(server.address, device="cuda:0") as learner:
        assert learner.info()["devices"] == "GPU-simulated-0,GPU-simulated-1"
        for k in range(8):
            learner.insert({"x": np.arange(5) + 10 * k, "y": np.arange(5, dtype=np.float32) + 10 * k})
        batch = learner.sample(gear.Query(40, views=["x"]))
        assert set(np.asarray(batch["x"]).tolist()) <= {10 * k + i for k in range(8) for i in range(5)}
        with pytest.raises(gear.DeviceError, match=r"has columns on GPU GPU-simulated-1 \(here cuda:1\)"):
            learner.sample(64)


def test_tables_with_columns_on_a_device_end_with_their_shard_and_the_others_go_on(server):
    """Last in this file: it kills the shard."""
    given = {"obs": np.ones((8, 5), np.float32), "frame": np.zeros((8, 9), np.uint8), "reward": np.ones(8, np.float32)}
    given["goal"] = np.int64(1)
    with gear.connect(server.address) as client, gear.connect(server.address, device="cuda:0") as learner:
        for name in ("stays", "goes"):
            client.create_table(table("host" if name == "stays" else "device", name))
            client.insert(given, name, priority=3.0)
            client.update_priorities(client.sample(1, name).ids, [5.0])
        tables = client.info()["tables"]
        there = [one for name, one in tables.items() if name in ("goes", "kinds") or name.endswith("-device")]
        lost = {name: sum(one[name] for one in there) for name in ("trajectories", "steps")}
        assert tables["goes"]["trajectories"] == 1
        before = learner.select(4, "stays")
        learner.release(before)
        os.kill(client.info()["pid"], signal.SIGKILL)
        batch = learner.sample(4, "stays", timeout=60)
        leaves = np.array([3.0, 5.0]) ** 0.7  # of two items and of one: priorities survive
        assert np.isclose(batch.probabilities[:, None], leaves / (leaves @ [2, 1])).any(1).all()
        assert np.asarray(batch["obs"]).sum() == 4 * 6 * 5
        with pytest.raises(gear.TableNotFound, match="had columns on a GPU and ended with the shard that died"):
            client.sample(1, "goes", timeout=60)
        with gear.connect(server.address) as other:
            other.create_table(table("device", "goes"))
            other.insert(given, "goes")
            assert np.asarray(other.sample(1, "goes")["obs"]).sum() == 30
        with pytest.raises(gear.TableNotFound, match="connect anew"):
            client.insert(given, "goes", timeout=60)
        assert client.info()["lost_with_device"] == {"tables": len(there), **lost}
    for path in memory.SHARED.glob(
        "gear-simulated-*"
    ):  # a device forgets what a dead process had; the simulator's does not
        if not os.path.exists(f"/proc/{path.name.split('-')[2]}"):
            path.unlink()

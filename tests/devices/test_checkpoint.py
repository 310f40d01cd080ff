"""Checkpoints of tables with columns on a device: saved while they are used, put back there, or on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear
from gear.server.reinsert import Reader
from gear.storage import fields as f
from gear.storage import format, manifest
from gear.storage.memory import SHARED
from gear.storage.portions import Wish, pieces
from gear.storage.restoring import restore
from gear.storage.table import StoredTable
from tests.devices.test_batches import fill, table, trajectory
from tests.devices.test_service import rows as made_rows
from tests.devices.test_service import table as declared
from tests.storage.actors import column
from tests.storage.test_checkpoint import begin, end

GPU = "GPU-simulated-0"


def contents(stored: StoredTable) -> dict[int, dict[str, bytes]]:
    """By its number in the order of insertion, the rows of each trajectory: those of a device by copies."""
    slots, blocks = (stored.layout.view(stored.segment, name) for name in ("slots", "blocks"))
    strips = {}
    for name, place in stored.layout.placements.items():
        if place.column.per == "step":
            there, dtype = place.column.placement == "device", np.dtype(place.column.dtype)
            strips[name] = (
                stored.arena.strip(place.offset, place.stride, dtype, place.column.shape).copy()
                if there
                else column(stored, name)
            )
    found = {}
    for slot in np.flatnonzero(slots[:, f.STATE] == f.CLOSED).tolist():
        chain, block = [], int(slots[slot, f.FIRST])
        while block >= 0:
            chain.append(block)
            block = int(blocks[block, f.NEXT])
        n = int(slots[slot, f.LENGTH]) + bool(slots[slot, f.FLAGS] & f.HAS_FINAL)
        found[int(slots[slot, f.ORDER])] = {
            name: strip[chain].reshape(-1, *strip.shape[2:])[:n].tobytes() for name, strip in strips.items()
        }
    return found


def restored(path: Path, folder: Path, wish: Wish, gpu: str, shards: int = 1) -> StoredTable:
    folder.mkdir()
    arenas = restore(path, pieces(path, manifest.load(path), 0, shards, True, wish), folder, None, gpu, 1 << 20)
    kept = next(folder.glob("table-*"))
    header = format.read(kept)
    where = (header.table, header.index, header.shard, kept, header.spread)
    return StoredTable(*where, kept=True, gpu=gpu, arena=arenas.get(header.index))


@pytest.fixture
def folder(tmp_path):
    """A directory for segments, which are shared memory."""
    made = SHARED / f"gear-{tmp_path.name[-40:]}"
    yield made
    for path in made.glob("*") if made.exists() else ():
        path.unlink()
    if made.exists():
        made.rmdir()


@pytest.mark.parametrize("places", [("frame", "reward"), ("obs", "frame", "reward", "token")])
@pytest.mark.parametrize("fields", [{}, {"capacity": gear.Bytes(9000)}], ids=["steps", "bytes"])
@pytest.mark.parametrize("to_host", [False, True])
def test_what_is_restored_is_what_was_there_at_the_instant(places, fields, to_host, tmp_path, folder):
    """Blocks that were leased again before they were read are copied aside, the device's part of them too."""
    with gear.embedded([table(gear.Window(4), places, **fields)], device="cuda:0") as client:
        fill(client)
        stored = client._session._tables["t"].stored
        before = contents(stored)
        writing = begin(stored, tmp_path / "saved")
        rng = np.random.default_rng(1)
        for _ in range(20):
            client.insert(trajectory(rng, 20))
        assert not before.keys() & contents(stored).keys(), "all of it was evicted"
        path = end(writing, tmp_path / "saved")
    saved = manifest.load(path).parts[0].tables[0]
    assert saved.left_out == 0
    again = restored(path, folder, Wish(to_host), "" if to_host else GPU)
    try:
        assert again.found.damaged == 0
        assert (again.arena is None) == to_host
        assert contents(again) == before
        read = dict(Reader(path, saved))
        assert read.keys() == before.keys()
        for order, one in read.items():
            for name, value in one.columns.items():
                if name != "goal":
                    assert before[order][name].startswith(value.tobytes())
    finally:
        again.close()


def test_a_gpu_or_a_word_is_needed_and_enough_of_it(tmp_path, folder):
    with gear.embedded([table(gear.Whole(), ("obs",))], device="cuda:0") as client:
        fill(client)
        path = end(begin(client._session._tables["t"].stored, tmp_path / "saved"), tmp_path / "saved")
    found = pieces(path, manifest.load(path), 0, 1, True)
    folder.mkdir()
    with pytest.raises(gear.DeviceError, match=r"tables t of .* have columns on a GPU.*--restore-to-host"):
        restore(path, found, folder)
    with pytest.raises(gear.InsufficientMemory, match=r"take .* of a GPU, but --device-memory allows 16 B"):
        restore(path, found, folder, None, GPU, 16)
    wish = Wish(beside=(frozenset({"t"}), frozenset()))
    assert pieces(path, manifest.load(path), 0, 1, True, wish) == []
    wish = Wish(beside=(frozenset(), frozenset({0, 1})))
    assert [one.layout.index for one in pieces(path, manifest.load(path), 0, 1, True, wish)] == [2]


def test_a_deploy_brings_columns_of_a_gpu_back_and_a_server_without_one_takes_them_if_told(start_server, tmp_path):
    """Host memory is kept, device memory is not: it comes from the checkpoint that the server made at its end."""
    arguments = ("--devices", "0", "--checkpoint", str(tmp_path / "saved"), "--restore", "latest")
    server = start_server(*arguments, "--device-memory", "8MiB", discard=False)
    rng = np.random.default_rng(2)
    given = [{**made_rows(rng, n), "goal": np.int64(n)} for n in (7, 9, 30)]

    def batches(client: gear.Client) -> list[Any]:
        made = [client.sample(gear.Query(6), name) for name in ("host", "device")]
        return [{name: np.asarray(batch[name]) for name in batch} | {"p": batch.probabilities} for batch in made]

    with gear.connect(server.address) as client:
        for name in ("host", "device"):
            client.create_table(declared(name))
            client.insert_many(given, name)
    assert server.stop() == 0
    again = start_server("--name", server.name, *arguments, "--device-memory", "8MiB", discard=False)
    with gear.connect(again.address) as client:
        info = client.info()
        assert info["lost_with_device"] == {"tables": 0, "trajectories": 0, "steps": 0}
        assert {name: one["trajectories"] for name, one in info["tables"].items()} == {"host": 3, "device": 3}
        seen = batches(client)
        for name in seen[0]:
            np.testing.assert_array_equal(seen[0][name], seen[1][name])
        client.insert_many(given, "device")
        path = client.checkpoint().path
    again.stop()
    plain = start_server("--name", server.name, "--devices", "cpu", "--restore", path, "--restore-to-host")  # --discard
    with gear.connect(plain.address) as client:
        assert {c.placement for c in client._tables.reader("device", None, None).open.table.columns} == {"host"}
        assert client.info()["tables"]["device"]["trajectories"] == 6
        assert len(client.sample(5, "device").ids) == 5

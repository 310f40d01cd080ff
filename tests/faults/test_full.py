"""Real disks and a real shared memory that run full while a server works."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gear
from gear.errors import CheckpointError, InsufficientMemory
from gear.storage import manifest, shelf
from tests.conftest import Server

pytestmark = pytest.mark.faults

WIDE = [gear.Column("x", (1024,), "uint8")]


def table(name: str, mib: int) -> gear.Table:
    return gear.Table(name, WIDE, gear.Steps(mib * 1024), item=gear.Whole(), mean_length=64, max_length=64)


def mounted(where: Path, size: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(where)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError as error:
        pytest.skip(f"a small filesystem cannot be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"a small filesystem cannot be mounted here (root only): {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A filesystem of 6 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    mounted(where, "6m")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True, timeout=20)


def test_a_disk_that_is_full_fails_the_save_and_nothing_else(start_server, disk):
    server = start_server("--checkpoint", str(disk), "--memory", "64MiB")
    with gear.connect(server.address) as client:
        client.create_table(table("t", 16))
        rows = {"x": np.random.default_rng(0).integers(0, 256, (64, 1024), dtype=np.uint8)}
        client.insert_many([rows] * 32)  # 2 MiB
        first = client.checkpoint()
        client.insert_many([rows] * 160)  # 10 MiB more
        for failed in (1, 2):
            with pytest.raises(CheckpointError, match=r"(?i)no space left on device"):
                client.checkpoint()
            client.insert(rows)
            assert (client.sample(4)["x"][:, :64] == rows["x"]).all()
            assert client.info()["checkpoint"]["failures"] == failed
        assert [one.path for one in shelf.listed(disk)] == [Path(first.path)]
        assert shelf.incomplete(disk) == [], "what was written of it is removed"
        manifest.verify(Path(first.path))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True, timeout=20)
        second = client.checkpoint()
        manifest.verify(Path(second.path))
        assert second.trajectories == 32 + 160 + 2


@contextlib.contextmanager
def small_memory(tmp_path: Path, size: str) -> Iterator[tuple[Server, Path]]:
    """A server in a mount namespace whose shared memory is a small filesystem of its own, seen from here as a path."""
    script = f'mount -t tmpfs -o size={size} none /dev/shm && exec {sys.executable} -m gear.server "$@"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "server"]
    options = [
        "--name",
        f"full-{tmp_path.name}"[:60],
        "--port",
        "0",
        "--devices",
        "cpu",
        "--discard",
        "--memory",
        "48MiB",
    ]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=stderr)
    server = Server("full", process, log)
    try:
        server.wait_ready()
        yield server, Path(f"/proc/{process.pid}/root/dev/shm")
    finally:
        server.stop()


def test_a_shared_memory_that_is_full_refuses_tables_and_fails_no_insert(tmp_path, disk, long_only):
    """Memory is reserved when a table is created: what fills up later meets no insert, and nothing ends in SIGBUS."""
    with small_memory(tmp_path, "48m") as (server, memory), gear.connect(server.address, path="tcp") as client:
        client.create_table(table("t", 16))
        with (memory / "filler").open("wb") as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(1 << 20))
                filler.flush()
        assert shutil.disk_usage(memory).free == 0
        rows = {"x": np.full((64, 1024), 7, np.uint8)}
        for _ in range(8):
            client.insert_many([rows] * 64)  # twice what the table holds
        assert (client.sample(16, "t")["x"][:, :64] == 7).all()
        with pytest.raises(InsufficientMemory, match="free"):
            client.create_table(table("u", 16))
        (memory / "filler").unlink()
        client.create_table(table("u", 16))
        client.insert(rows, "u")
        assert client.info()["tables"]["t"]["inserted_trajectories"] == 512

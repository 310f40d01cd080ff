"""How long a shard takes to take up the tables of one that died: ``python -m benchmarks.recovery --gib 2``.

A server is filled over shared memory, its shard is killed, and the time is taken until a waiting client has its next
batch; beside it what the table's own share of that is (`StoredTable` over the kept segment, kernels loaded). The bar is
10 GiB in 3 s. Where less is stored (10 GiB take 12 of memory, and 12 for the copy of which the table's own share is
taken), that share is scaled to 10 GiB, and a verdict is given on it and the rest together; the exit code is 1 if one is
missed.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import gear
from benchmarks import service
from gear.server.restart import SPARE_SECONDS
from gear.server.warm import warm
from gear.storage.memory import SHARED
from gear.storage.table import StoredTable

BAR, GIB = 3.0, 10.0
"""Seconds for so many GiB."""

SETTLE = SPARE_SECONDS + 15.0

KINDS = {
    "windows, prioritized": {"item": gear.Window(64), "sampler": gear.Prioritized(0.6)},
    "windows, uniform": {"item": gear.Window(64)},
    "steps, prioritized": {"item": gear.Step(), "sampler": gear.Prioritized(0.6)},
}


def table(gib: float, **fields: object) -> gear.Table:
    """Rows of 1 KiB in trajectories of 256."""
    columns = [gear.Column("obs", (255,), "float32"), gear.Column("reward", (), "float32")]
    steps = int(gib * 2**30) // 1024
    return gear.Table("t", columns, gear.Steps(steps), mean_length=256, max_length=256, **fields)  # type: ignore[arg-type]


def fill(client: gear.Client, gib: float) -> int:
    """Insert until the table is full; how many trajectories."""
    many = 256
    packed = {"obs": np.zeros((many * 256, 255), np.float32), "reward": np.zeros(many * 256, np.float32)}
    count = int(gib * 2**20) // 256
    for begin in range(0, count, many):
        n = min(many, count - begin)
        client.insert_many([{k: v[:256] for k, v in packed.items()}] * n, "t")
    return count


def measure(kind: str, gib: float) -> tuple[float, float, int]:
    """(seconds until served again, seconds of the table's own, trajectories)."""
    declared = table(gib, **KINDS[kind])
    name, memory = f"bench-{secrets.token_hex(4)}", str(int((gib * 1.5 + 1) * 2**30))
    process, address = service.start(name, "--memory", memory)
    try:
        return _recover(declared, gib, address)
    finally:
        service.stop(process)


def _recover(declared: gear.Table, gib: float, address: str) -> tuple[float, float, int]:
    started = time.perf_counter()
    with gear.connect(address) as client:
        client.create_table(declared)
        count = fill(client, gib)
        client.sample(8)
        time.sleep(max(0.0, SETTLE - (time.perf_counter() - started)))  # the spare process is there by then
        pid = client.info()["pid"]
        directory = Path(client._session._door.directory)  # type: ignore[union-attr]
        os.kill(pid, signal.SIGKILL)
        began = time.perf_counter()
        client.sample(8, timeout=120.0)
        whole = time.perf_counter() - began
        assert client.info()["tables"]["t"]["trajectories"] == count
        copy = Path(tempfile.mkdtemp(prefix="gear-bench-", dir=SHARED)) / "table-0"
        try:
            shutil.copyfile(directory / "table-0", copy)
            began = time.perf_counter()
            stored = StoredTable(declared, path=copy, kept=True)
            own = time.perf_counter() - began
            assert stored.found is not None
            assert stored.found.trajectories == count
            del stored
        finally:
            shutil.rmtree(copy.parent)
    return whole, own, count


def main() -> None:
    """Print a line for each kind of table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    gib = parser.parse_args().gib
    warm()
    print(f"{gib:g} GiB in trajectories of 256 rows of 1 KiB; bar {BAR:g} s for {GIB:g} GiB")
    good = True
    for kind in KINDS:
        whole, own, count = measure(kind, gib)
        scaled = whole - own + own * max(1.0, GIB / gib)
        good &= scaled <= BAR
        said = f"served again after {whole:.2f} s, the table's own share {own:.2f} s ({count} trajectories)"
        load = f"load {os.getloadavg()[0]:.1f}"
        print(
            f"{'reached' if scaled <= BAR else 'MISSED '} {kind}: {said}; for {GIB:g} GiB {scaled:.2f} s; {load}",
            flush=True,
        )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

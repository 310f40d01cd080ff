"""`make bench`: speed of GEAR against what the machine can do, as ratios measured in the same run.

    python -m benchmarks.run [--rounds 7] [--only NAME] [--json FILE]

Results are checked for content before they are timed; a wrong one ends the run with status 1. The peers' own
systems join as further candidates of the same measurements.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date

import numba
import numpy as np

import gear
from benchmarks.measure import Candidate, Measurement, show, write

Columns = dict[str, np.ndarray]

COLUMNS = [
    gear.Column("obs", (17,), "float32"),
    gear.Column("action", (6,), "float32"),
    gear.Column("reward", (), "float32"),
    gear.Column("done", (), "bool"),
]
STEPS, SETS = 1_000_000, 4000
"""Transitions stored; index sets that rotate, so that no batch is still in the cache."""


def transitions(count: int, seed: int = 0) -> Columns:
    """`count` steps of `COLUMNS` with random content."""
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.random((count, 17), dtype=np.float32),
        "action": rng.random((count, 6), dtype=np.float32),
        "reward": rng.random(count, dtype=np.float32),
        "done": rng.random(count) > 0.5,
    }


def fill(client: gear.Client, table: str, data: Columns, length: int) -> None:
    """Insert `data` as trajectories of `length` steps."""
    for start in range(0, len(data["reward"]), length):
        client.insert({k: v[start : start + length] for k, v in data.items()}, table, wait=False)
    client.flush()


class Take:
    """The limit: NumPy takes the same columns of the same number of rows into arrays there already."""

    def __init__(self, data: Columns, sets: list[np.ndarray]) -> None:
        self.data, self.sets = data, sets
        self.out = {k: np.empty((len(sets[0]), *v.shape[1:]), v.dtype) for k, v in data.items()}

    def __call__(self, k: int) -> None:
        index = self.sets[k % len(self.sets)]
        for name, column in self.data.items():
            column.take(index, 0, self.out[name], "clip")  # mode "raise" would buffer: 1.5 x slower


def check(batch: gear.Batch, data: Columns) -> None:
    """Every row of the batch is a row of `data`, whole; rows are found by their reward and observation."""
    order = np.argsort(data["reward"], kind="stable")
    reward = np.asarray(batch["reward"]).reshape(-1)
    mask = np.asarray(batch.mask).reshape(-1)
    low = np.searchsorted(data["reward"], reward, "left", sorter=order)
    high = np.searchsorted(data["reward"], reward, "right", sorter=order)
    flat = {k: np.asarray(batch[k]).reshape(len(reward), *v.shape[1:]) for k, v in data.items()}
    for k in np.flatnonzero(mask):
        same = [r for r in order[low[k] : high[k]] if all((data[n][r] == flat[n][k]).all() for n in data)]
        if not same:
            raise SystemExit(f"row {k} of a batch is no row that was inserted")


@contextlib.contextmanager
def server() -> Iterator[tuple[str, float]]:
    """A real server; yields (address, seconds until its ready line)."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "gear.server", "--devices", "cpu", "--port", "0", "--discard"]
    process = subprocess.Popen(
        [*command, "--name", f"bench-{secrets.token_hex(4)}", "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield line.split("address=")[1].split()[0], time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


def in_process(data: Columns) -> Iterator[Measurement]:
    """Transitions and windows without a server."""
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, STEPS, 256) for _ in range(SETS)]
    for sampler in (gear.Uniform(), gear.Prioritized(0.6)):
        kind = type(sampler).__name__.lower()
        client = gear.embedded([gear.Table("steps", COLUMNS, gear.Steps(STEPS), sampler=sampler, mean_length=1000)])
        fill(client, "steps", data, 1000)
        reused = client.sample(256)
        check(reused, data)
        yield Measurement(
            f"sample-{kind}",
            "256 of 1e6 transitions in process",
            [
                Candidate("gear, new arrays", lambda k, c=client: c.sample(256)),
                Candidate("gear, out=", lambda k, c=client, b=reused: c.sample(256, out=b)),
                Candidate("NumPy take(out=, mode='clip')", Take(data, rows)),
            ],
            256,
            "samples",
            "<= 2 x take" if kind == "uniform" else "reported",
        )
        if kind == "prioritized":
            ids = [client.sample(256).ids for _ in range(500)]
            values = [rng.random(256) for _ in range(500)]
            yield Measurement(
                "update",
                "256 priorities of 1e6 in process",
                [Candidate("gear", lambda k, c=client, i=ids, v=values: c.update_priorities(i[k % 500], v[k % 500]))],
                256,
                "updates",
                "reported",
            )
        client.close()


def windows(client: gear.Client, name: str, data: Columns) -> Iterator[Measurement]:
    """64 windows of 64 steps of 1000 trajectories of 1000 steps."""
    rng = np.random.default_rng(2)
    starts = [rng.integers(0, 1000, 64) * 1000 + rng.integers(0, 937, 64) for _ in range(500)]
    sets = [(s[:, None] + np.arange(64)).reshape(-1) for s in starts]
    client.create_table(gear.Table(name, COLUMNS, gear.Steps(STEPS), item=gear.Window(64), mean_length=1000))
    fill(client, name, data, 1000)
    reused = client.sample(64, name)
    check(reused, data)
    yield Measurement(
        name,
        "64 windows of 64 steps of 1000 trajectories of 1000",
        [
            Candidate("gear, new arrays", lambda k: client.sample(64, name)),
            Candidate("gear, out=", lambda k: client.sample(64, name, out=reused)),
            Candidate("NumPy take(out=, mode='clip')", Take(data, sets)),
        ],
        64 * 64,
        "steps",
        "<= 3 x take over shm",
        calls=300,
    )


def inserts(client: gear.Client, where: str, data: Columns) -> Iterator[Measurement]:
    """64-step trajectories, pipelined; single steps through a writer."""
    name = f"insert-{where}"
    client.create_table(gear.Table(name, COLUMNS, gear.Steps(200_000), item=gear.Window(64)))
    pieces = [{k: v[s : s + 64] for k, v in data.items()} for s in range(0, 64 * 500, 64)]

    def thousand(k: int) -> None:
        for i in range(1000):
            client.insert(pieces[i % 500], name, wait=False)
        client.flush()

    yield Measurement(
        name,
        "1000 trajectories of 64 steps, wait=False, then flush",
        [Candidate("gear", thousand)],
        1000,
        "trajectories",
        ">= 30,000/s over shm",
        calls=5,
    )
    writer = client.writer(name)
    steps = [{k: v[s] for k, v in data.items()} for s in range(500)]
    count = 0

    def append(k: int) -> None:
        writer.append(steps[k % 500])

    def thousand_steps(k: int) -> None:
        nonlocal count
        for i in range(1000):
            append(i)
        writer.end()
        count += 1

    yield Measurement(
        f"append-{where}",
        "one step through a writer (median call)",
        [Candidate("gear", append)],
        1,
        "steps",
        "<= 3 us",
        calls=5000,
    )
    yield Measurement(
        f"append-{where}-1000",
        "1000 steps through a writer, end included",
        [Candidate("gear", thousand_steps)],
        1000,
        "steps",
        "reported",
        calls=20,
    )
    writer.close()


def over_shm(data: Columns) -> Iterator[Measurement]:
    """The same through a server and shared memory."""
    with server() as (address, seconds):
        print(f"gear-server ready after {seconds:.2f} s")
        client = gear.connect(address)
        yield from windows(client, "windows-shm", data)
        yield from inserts(client, "shm", data)
        client.close()


def import_time(rounds: int) -> list[float]:
    """Milliseconds of `import gear` in new processes."""
    code = "import time; t = time.perf_counter(); import gear; print((time.perf_counter() - t) * 1e3)"
    run = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(rounds)
    ]
    return sorted(float(r.stdout) for r in run)


def machine() -> dict[str, object]:
    """Facts every figure needs beside it."""
    model = "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "gear": gear.__version__,
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7, at least 5 for a figure)")
    parser.add_argument("--only", default="", help="only measurements whose name contains this")
    parser.add_argument("--json", default="", help="append the records to this file as JSON lines")
    options = parser.parse_args()
    facts = machine()
    print(", ".join(f"{k} {v}" for k, v in facts.items()))
    times = import_time(5)
    print(f"import gear: {times[len(times) // 2]:.0f} ms ({times[0]:.0f} to {times[-1]:.0f}; asked: < 150 ms)")
    data = transitions(STEPS)
    done: list[Measurement] = []

    def sources() -> Iterator[Measurement]:
        yield from in_process(data)
        client = gear.embedded()
        yield from windows(client, "windows-inproc", data)
        yield from inserts(client, "inproc", data)
        client.close()
        yield from over_shm(data)

    for measurement in sources():
        if options.only in measurement.name:
            measurement.run(options.rounds)
            print(show(measurement), flush=True)
            done.append(measurement)
    if options.json:
        write(options.json, facts, done)


if __name__ == "__main__":
    main()

"""What a checkpoint costs, on a full table that evicts: ``python -m benchmarks.checkpoint --gib 1``.

A server holds a full table; a writer inserts as fast as it can and a reader samples, each in a process of its own.
Rounds without and with a save take turns. Reported: bytes per second of a save beside what sequential writes with fsync
reach in the same directory in the same round; insert throughput and the reader's slowest requests during a save against
those without; the bytes of a second save after 1 % of the table has changed. Bars: 70 %, 80 %, 50 ms more, 5 %.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import shutil
import statistics
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

import gear
from benchmarks import service
from benchmarks.recovery import fill, table

LENGTH = 256
WINDOW = 3.0
"""Seconds of a round without a save, at least."""


def write(address: str, over: Event, counts: Any) -> None:
    """Insert trajectories of 256 KiB until told to end; the number so far stands in `counts`."""
    rows = {"obs": np.zeros((LENGTH, 255), np.float32), "reward": np.zeros(LENGTH, np.float32)}
    with gear.connect(address) as client:
        while not over.is_set():
            client.insert(rows, "t", timeout=60.0)
            counts[0] += 1


def read(address: str, over: Event, times: Any) -> None:
    """Sample and note when each request ended and how long it took."""
    with gear.connect(address) as client:
        client.sample(8, "t")
        k, most = 0, len(times) // 2
        while not over.is_set() and k < most:
            began = time.monotonic()
            client.sample(8, "t")
            ended = time.monotonic()
            times[2 * k], times[2 * k + 1] = ended, ended - began
            k += 1
            time.sleep(0.001)


def raw(directory: Path, nbytes: int) -> float:
    """Bytes per second of sequential writes of 4 MiB, synced every 256 MiB and at the end."""
    chunk, path = np.random.default_rng(0).integers(0, 256, 4 << 20, np.uint8), directory / "raw"
    began = time.perf_counter()
    done = 0
    with open(path, "wb", buffering=0) as file:
        while done < nbytes:
            done += file.write(chunk.data)
            if done % (256 << 20) == 0:
                os.fsync(file.fileno())
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return done / seconds


def quantile(times: np.ndarray, begin: float, end: float) -> tuple[float, int]:
    """The 99.9th percentile of the requests that ended in between, and how many those were."""
    ended, took = times[0::2], times[1::2]
    inside = took[(ended >= begin) & (ended < end)]
    return (float(np.quantile(inside, 0.999)) if len(inside) else float("nan")), len(inside)


def measure(gib: float, rounds: int, directory: Path) -> dict[str, list[float]]:
    """The figures of each round."""
    name, memory = f"bench-{secrets.token_hex(4)}", str(int((gib * 1.5 + 1) * 2**30))
    process, address = service.start(name, "--memory", memory, "--checkpoint", str(directory))
    context = multiprocessing.get_context("spawn")
    over, counts = context.Event(), context.Array("q", 1, lock=False)
    times = context.Array("d", 2 * 400_000, lock=False)
    found: dict[str, list[float]] = {
        n: [] for n in ("rate", "alone", "raw", "raw then", "inserts", "beside raw", "latency", "left out", "small")
    }
    actors = [
        context.Process(target=write, args=(address, over, counts)),
        context.Process(target=read, args=(address, over, times)),
    ]
    try:
        with gear.connect(address) as client:
            client.create_table(table(gib, item=gear.Window(64), sampler=gear.Prioritized(0.6)))
            count = fill(client, gib)
            found["raw"].append(raw(directory, int(gib * 2**30)))
            for _ in range(rounds):  # nobody else at work
                _clear(directory)
                done = client.checkpoint()
                found["alone"].append(done.nbytes / done.seconds)
                found["raw"].append(raw(directory, int(gib * 2**30)))
            changed = max(1, count // 100)
            rows = {"obs": np.ones((LENGTH, 255), np.float32), "reward": np.ones(LENGTH, np.float32)}
            for _ in range(changed):
                client.insert(rows, "t")
            done = client.checkpoint()
            found["small"].append(done.written / done.nbytes)
            for actor in actors:
                actor.start()
            while counts[0] < 50:
                time.sleep(0.05)
            for _ in range(rounds):
                _clear(directory)
                begin, before = time.monotonic(), counts[0]
                time.sleep(WINDOW)
                middle, between = time.monotonic(), counts[0]
                done = client.checkpoint()
                end, after = time.monotonic(), counts[0]
                found["rate"].append(done.nbytes / done.seconds)
                begun, inserted = time.monotonic(), counts[0]
                found["raw then"].append(raw(directory, int(gib * 2**30)))
                beside = (counts[0] - inserted) / (time.monotonic() - begun)
                found["left out"].append(done.left_out / max(1, done.left_out + done.trajectories))
                found["inserts"].append((after - between) / (end - middle) / ((between - before) / (middle - begin)))
                noted = np.frombuffer(times, np.float64)
                (during, n), (without, m) = quantile(noted, middle, end), quantile(noted, begin, middle)
                found["latency"].append(during - without)
                rates = (between - before) / (middle - begin), (after - between) / (end - middle)
                found["beside raw"].append(beside / rates[0])
                print(
                    f"  insert {rates[0]:.0f} /s without, {rates[1]:.0f} /s during {done.seconds:.2f} s; "
                    f"p99.9 {1e3 * without:.1f} ms ({m}), {1e3 * during:.1f} ms ({n})"
                )
    finally:
        over.set()
        for actor in actors:
            if actor.pid is not None:
                actor.join(30)
                actor.kill()
        service.stop(process)
    return found


def _clear(directory: Path) -> None:
    """Have the next save write everything."""
    for path in directory.glob("checkpoint-*"):
        shutil.rmtree(path)


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default=None, help="where to write (default: the directory for temporary files)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="gear-bench-", dir=options.directory))
    try:
        found = measure(options.gib, options.rounds, directory)
    finally:
        shutil.rmtree(directory)
    middle = {name: statistics.median(values) for name, values in found.items()}
    print(f"{options.gib:g} GiB of trajectories of 256 KiB; medians of {options.rounds} rounds")
    for name, beside, what in (
        ("alone", "raw", "nobody else at work"),
        ("rate", "raw then", "inserts and samples go on"),
    ):
        print(f"raw writes with fsync, {what:26}{middle[beside] / 1e6:6.0f} MB/s ({_range(found[beside])})")
        share = middle[name] / middle[beside]
        print(f"a save, {what:41}{middle[name] / 1e6:6.0f} MB/s ({_range(found[name])}), {share:.2f} of raw")
    print(f"inserts during a save               {middle['inserts']:.2f} of without")
    print(f"inserts during raw writes           {middle['beside raw']:.2f} of without")
    print(f"p99.9 of a request during - without {1e3 * middle['latency']:.1f} ms")
    print(f"left out                            {middle['left out']:.1%}")
    print(f"second save after 1 % has changed   {middle['small']:.1%} of the bytes")


def _range(values: list[float]) -> str:
    return f"{min(values) / 1e6:.0f} to {max(values) / 1e6:.0f}"


if __name__ == "__main__":
    main()

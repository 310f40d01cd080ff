"""What a checkpoint costs, on a full table that evicts: ``python -m benchmarks.checkpoint --gib 1 --rounds 5``.

A server holds a full table; a writer inserts as fast as it can and a reader samples, each in a process of its own. A
round is: a while without, a save, a while without, raw writes of as many bytes, a while without. What is measured
during a save or raw writes is held against the two whiles around it, in which nothing is written to the disk, so that
what else the machine does counts on both sides. Bars, each with a verdict; the exit code is 1 if one is missed:

- bytes per second of a save >= 70 % of sequential writes with fsync in the same directory, with inserts going on beside
  both, and with nobody at work beside both;
- inserts during a save >= 80 % of without;
- the 99.9th percentile of a request of the reader, during a save minus without, <= 50 ms, over all rounds;
- a second save after 1 % of the table has changed writes <= 5 % of the bytes.

Beside the bars: the processor's time that a save takes in the shard, and what part of the table it left out as evicted
before it was written. On two cores raw writes alone cost inserts a third.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gear
from benchmarks import service
from benchmarks.recovery import fill, table

LENGTH = 256
WINDOW = 1.5
"""Seconds of a while without."""

TICKS = os.sysconf("SC_CLK_TCK")


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


class Span(NamedTuple):
    """Some time: seconds of the clock, what was inserted in it, seconds of the processor that the shard took."""

    begin: float
    end: float
    inserts: int
    cpu: float

    @property
    def rate(self) -> float:
        """Inserts per second."""
        return self.inserts / (self.end - self.begin)


class Watch:
    """Takes the time of something, with what was inserted and what the shard did meanwhile."""

    def __init__(self, counts: Any, pid: int) -> None:
        self._counts, self._stat = counts, Path(f"/proc/{pid}/stat")

    def _now(self) -> tuple[float, int, float]:
        fields = self._stat.read_text().rpartition(")")[2].split()
        return time.monotonic(), self._counts[0], (int(fields[11]) + int(fields[12])) / TICKS

    def __call__(self, what: Any) -> tuple[Span, Any]:
        """Do it: how long it took, and what came of it."""
        began = self._now()
        outcome = what()
        ended = self._now()
        return Span(began[0], ended[0], ended[1] - began[1], ended[2] - began[2]), outcome


Found = dict[str, list[float]]


def measure(gib: float, rounds: int, directory: Path) -> Found:
    """The figures of each round; of `p99.9` one figure over all rounds."""
    name, memory = f"bench-{secrets.token_hex(4)}", str(int((gib * 1.5 + 1) * 2**30))
    process, address = service.start(name, "--memory", memory, "--checkpoint", str(directory))
    context = multiprocessing.get_context("spawn")
    over, counts = context.Event(), context.Array("q", 1, lock=False)
    times = context.Array("d", 2 * 400_000, lock=False)
    actors = [
        context.Process(target=write, args=(address, over, counts)),
        context.Process(target=read, args=(address, over, times)),
    ]
    try:
        with gear.connect(address) as client:
            client.create_table(table(gib, item=gear.Window(64), sampler=gear.Prioritized(0.6)))
            count = fill(client, gib)
            found: Found = {"small": [_second(client, count)]}
            alone(client, found, rounds, directory, int(gib * 2**30))
            for actor in actors:
                actor.start()
            while counts[0] < 50:
                time.sleep(0.05)
            watch, noted = Watch(counts, client.info()["pid"]), np.frombuffer(times, np.float64)
            beside(client, watch, found, rounds, directory, noted)
    finally:
        over.set()
        for actor in actors:
            if actor.pid is not None:
                actor.join(30)
                actor.kill()
        service.stop(process)
    return found


def _second(client: gear.Client, count: int) -> float:
    """What part of its bytes a save writes after 1 % of the table has changed."""
    client.checkpoint()
    rows = {"obs": np.ones((LENGTH, 255), np.float32), "reward": np.ones(LENGTH, np.float32)}
    for _ in range(max(1, count // 100)):
        client.insert(rows, "t")
    done = client.checkpoint()
    return done.written / done.nbytes


def alone(client: gear.Client, found: Found, rounds: int, directory: Path, nbytes: int) -> None:
    """Saves and raw writes with nobody else at work, in turns."""
    found |= {name: [] for name in ("alone", "alone raw")}
    for _ in range(rounds):
        _clear(directory)
        done = client.checkpoint()
        found["alone"].append(done.nbytes / done.seconds)
        found["alone raw"].append(raw(directory, nbytes))


def beside(client: gear.Client, watch: Watch, found: Found, rounds: int, directory: Path, noted: np.ndarray) -> None:
    """Saves and raw writes while a writer and a reader are at work, in turns; `noted`: see `read`."""
    found |= {name: [] for name in ("rate", "raw", "inserts", "raw inserts", "left out", "cpu", "p99.9")}
    during, without = [], []

    def rest() -> Span:
        return watch(lambda: time.sleep(WINDOW))[0]

    for number in range(rounds):
        _clear(directory)
        before = rest()
        save, done = watch(client.checkpoint)
        between = rest()
        rough, rate = watch(lambda done=done: raw(directory, done.nbytes))
        after = rest()
        found["rate"].append(done.nbytes / done.seconds)
        found["raw"].append(rate)
        usual = (before.rate + between.rate) / 2
        found["inserts"].append(save.rate / usual)
        found["raw inserts"].append(rough.rate / ((between.rate + after.rate) / 2))
        found["left out"].append(done.left_out / max(1, done.left_out + done.trajectories))
        each = (before.cpu + between.cpu) / max(
            1, before.inserts + between.inserts
        )  # samples are the same all the time
        found["cpu"].append((save.cpu - each * save.inserts) / done.nbytes)
        during.append(_took(noted, save))
        without += [_took(noted, before), _took(noted, between)]
        print(
            f"  round {number + 1}: inserts {usual:.0f} /s, {save.rate:.0f} /s during a save of {done.seconds:.2f} s, "
            f"{rough.rate:.0f} /s during raw writes; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    slow = [float(np.quantile(np.concatenate(parts), 0.999)) for parts in (during, without)]
    print(f"  p99.9 of {sum(map(len, during))} requests {slow[0] * 1e3:.1f} ms, without {slow[1] * 1e3:.1f} ms")
    found["p99.9"].append(slow[0] - slow[1])


def _took(noted: np.ndarray, span: Span) -> np.ndarray:
    """Seconds that the requests took that ended in that time."""
    ended, took = noted[0::2], noted[1::2]
    return took[(ended >= span.begin) & (ended < span.end)]


def _clear(directory: Path) -> None:
    """Have the next save write everything."""
    for path in directory.glob("checkpoint-*"):
        shutil.rmtree(path)


def report(found: Found) -> bool:
    """Print what was found; whether every bar was reached."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    good = True

    def verdict(ok: bool, text: str) -> None:
        nonlocal good
        good &= ok
        print(f"{'reached' if ok else 'MISSED '} {text}")

    for name, beside_, what in (("rate", "raw", "inserts go on"), ("alone", "alone raw", "nobody else at work")):
        rate, bare = (f"{middle[n] / 1e6:.0f} MB/s ({_range(found[n])})" for n in (name, beside_))
        share = middle[name] / middle[beside_]
        verdict(share >= 0.7, f"a save, {what}: {rate}, {share:.0%} of raw writes with fsync: {bare}; bar 70 %")
    verdict(middle["inserts"] >= 0.8, f"inserts during a save: {middle['inserts']:.0%} of without; bar 80 %")
    verdict(
        middle["p99.9"] <= 0.05, f"p99.9 of a request, during a save - without: {middle['p99.9'] * 1e3:+.1f} ms; bar 50"
    )
    verdict(middle["small"] <= 0.05, f"second save after 1 % has changed: {middle['small']:.1%} of the bytes; bar 5 %")
    print(f"        inserts during raw writes: {middle['raw inserts']:.0%} of without")
    print(f"        the shard's processor time for a save: {middle['cpu'] * 2**30:.2f} s per GiB")
    print(f"        left out, as evicted before it was written: {middle['left out']:.1%} of the trajectories")
    return good


def _range(values: list[float]) -> str:
    return f"{min(values) / 1e6:.0f} to {max(values) / 1e6:.0f}"


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="where to write (default: the directory for temporary files)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="gear-bench-", dir=options.directory))
    try:
        found = measure(options.gib, options.rounds, directory)
    finally:
        shutil.rmtree(directory)
    print(f"{options.gib:g} GiB of trajectories of 256 KiB; medians of {options.rounds} rounds")
    sys.exit(0 if report(found) else 1)


if __name__ == "__main__":
    main()

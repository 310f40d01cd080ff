"""W4: responses of an LLM from one producer process to one consumer process, against TransferQueue and bare memory.

    python -m benchmarks.responses [--rounds 5] [--json FILE]

TransferQueue runs in an environment of its own; `benchmarks/.venvs/transferqueue` is made with

    python -m venv benchmarks/.venvs/transferqueue
    benchmarks/.venvs/transferqueue/bin/pip install torch==2.13.0 TransferQueue==0.1.11 ray numpy

and left out, which is said, where it is not there. All candidates take turns in every round; each process is asked by
a line on its standard input and answers with the seconds that it took. A consumer reads each batch and drops it
before it gets the next one, as a learner does; the reading is not counted. The exit code is 1 only if a result is
wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import gear
from benchmarks.measure import WrongResult
from benchmarks.responses_data import COUNT, GETS, MOST, PUT, STEPS, batches, checksum, nbytes
from benchmarks.service import server

PEER = Path(__file__).parent / ".venvs" / "transferqueue" / "bin" / "python"

TABLE = gear.Table(
    "responses",
    [
        gear.Column("input_ids", (), "int64"),
        gear.Column("logprobs"),
        gear.Column("mask", (), "bool"),
        gear.Column("reward", (), "float32", per="trajectory"),
        gear.Column("version", (), "int64", per="trajectory"),
    ],
    gear.Trajectories(COUNT + 1024),
    item=gear.Whole(),
    sampler=gear.Fifo(),
    max_times_sampled=1,
    mean_length=700,
    max_length=MOST,
)


def listed(batch: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """A batch as one dict per response."""
    bounds = batch["offsets"].tolist()
    return [
        {name: batch[name][a:b] for name in STEPS} | {"reward": batch["reward"][i], "version": batch["version"][i]}
        for i, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False))
    ]


class Bare:
    """Shared memory and nothing else: what is put is copied in, what is got is copied out."""

    def __init__(self, path: str, create: bool = False) -> None:
        self.whole = np.memmap(path, np.uint8, "w+" if create else "r+", shape=(2 * nbytes(),))

    def put(self, made: list[dict[str, np.ndarray]]) -> None:
        at = 0
        for batch in made:
            for column in batch.values():
                self.whole[at : at + column.nbytes] = column.view(np.uint8)
                at += column.nbytes

    def get(self, made: list[dict[str, np.ndarray]], count: int) -> float:
        at, seconds = 0, 0.0
        for first in range(0, len(made), count // PUT):
            size = sum(column.nbytes for batch in made[first : first + count // PUT] for column in batch.values())
            start = time.perf_counter()
            taken = self.whole[at : at + size].copy()
            seconds += time.perf_counter() - start
            taken.sum()  # as the others' batches are read
            at += size
        return seconds


def serve(commands: dict[str, Callable[[], float]]) -> None:
    """Answer commands by their seconds until standard input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(commands[line.strip()](), flush=True)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def produce(address: str, name: str) -> None:
    """The producer's process."""
    made = batches()
    lists = [listed(batch) for batch in made]
    packed = [({k: v for k, v in batch.items() if k != "offsets"}, batch["offsets"]) for batch in made]
    bare = Bare(name)
    with gear.connect(address, path="shm") as client:
        serve(
            {
                "put": lambda: timed(lambda: [client.insert_many(batch) for batch in lists]),
                "packed": lambda: timed(lambda: [client.insert_many(b, offsets=offsets) for b, offsets in packed]),
                "bare": lambda: timed(lambda: bare.put(made)),
            }
        )


def consume(address: str, name: str) -> None:
    """The consumer's process."""
    made, total = batches(), checksum()
    bare = Bare(name)
    with gear.connect(address, path="shm") as client:

        def get(count: int) -> float:
            query = gear.Query(count, layout="packed")
            seconds, came, items = 0.0, 0, 0
            for _ in range(COUNT // count):
                start = time.perf_counter()
                batch = client.sample(query, timeout=60)
                seconds += time.perf_counter() - start
                came, items = came + int(batch["input_ids"].sum()), items + len(batch["reward"])
            if came != total or items != COUNT:
                raise WrongResult(f"gets of {count} brought tokens that sum to {came}, not {total}")
            return seconds

        commands: dict[str, Callable[[], float]] = {f"get {n}": lambda n=n: get(n) for n in GETS}  # type: ignore[misc]
        serve(commands | {f"bare {n}": lambda n=n: bare.get(made, n) for n in GETS})


class Process:
    """A process that serves commands."""

    def __init__(self, *command: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer("ready")

    def _answer(self, expected: str = "") -> str:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():  # others may print too
            line = line.strip()
            if line == expected or (not expected and line.replace(".", "").replace("e-", "").isdigit()):
                return line
        raise WrongResult(f"{self.process.args} ended with {self.process.wait()}")

    def ask(self, command: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def processes() -> Iterator[tuple[Process, Process, Process | None]]:
    """Producer, consumer, and TransferQueue where it is installed."""
    name = f"/dev/shm/gear-bench-{os.getpid()}"
    Bare(name, create=True)
    with contextlib.ExitStack() as stack:
        stack.callback(os.unlink, name)
        address = stack.enter_context(server())
        with gear.connect(address) as client:
            client.create_table(TABLE)
        started = []
        for part in ("produce", "consume"):
            started.append(Process(sys.executable, "-m", "benchmarks.responses", part, address, name))
            stack.callback(started[-1].close)
        peer = None
        if any(PEER.parents[1].glob("lib/python*/site-packages/transfer_queue")):
            peer = Process(str(PEER), str(Path(__file__).parent / "responses_peer.py"))
            stack.callback(peer.close)
        yield started[0], started[1], peer


def main() -> None:
    """Run what was asked for and print it."""
    if sys.argv[1:2] in (["produce"], ["consume"]):
        (produce if sys.argv[1] == "produce" else consume)(*sys.argv[2:4])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", default="", help="append the records to this file as JSON lines")
    options = parser.parse_args()
    times: dict[str, list[float]] = {}

    def note(what: str, seconds: float) -> None:
        times.setdefault(what, []).append(seconds)

    with processes() as (producer, consumer, peer):
        for turn in range(options.rounds + 1):  # the first warms up
            if turn == 1:
                times.clear()
            for put, count in (("put", 64), ("packed", 512)):
                note({"put": "gear put, list of dicts", "packed": "gear put, packed"}[put], producer.ask(put))
                note(f"gear get {count}", consumer.ask(f"get {count}"))
                note("bare put", producer.ask("bare"))
                note(f"bare get {count}", consumer.ask(f"bare {count}"))
            if peer is not None:
                note("TransferQueue put", peer.ask("put"))
                for count in GETS:
                    note(f"TransferQueue get {count}", peer.ask(f"get {count}"))
    report(times, options.json)


def report(times: dict[str, list[float]], path: str) -> None:
    """Print each candidate's rate, and its ratios to the others of the same round."""
    size = nbytes()
    print(f"{COUNT} responses, {size / 1e6:.1f} MB; load {os.getloadavg()[0]:.1f}; medians (range) over the rounds")
    records = []
    for what, seconds in times.items():
        rates = [size / s / 1e6 for s in seconds]
        record: dict[str, object] = {"candidate": what, "MB_s": round(statistics.median(rates), 1)}
        line = f"  {what:<26} {statistics.median(rates):>9.1f} MB/s ({min(rates):.1f} to {max(rates):.1f})"
        kind = what.split()[1].rstrip(",")
        for other in ("TransferQueue", "bare"):
            name = f"{other} {kind}" if kind == "put" else f"{other} get {what.split()[-1]}"
            if what.startswith("gear") and name in times:
                ratios = [theirs / mine for mine, theirs in zip(seconds, times[name], strict=False)]
                record[f"times_{other}"] = round(statistics.median(ratios), 3)
                line += f"   {statistics.median(ratios):.2f} x {other} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(line)
        records.append(record)
    if not any(what.startswith("Transfer") for what in times):
        print("  TransferQueue is not installed in benchmarks/.venvs/transferqueue and was left out")
    if path:
        with open(path, "a") as file:
            file.writelines(json.dumps({"workload": "W4", **record}) + "\n" for record in records)


if __name__ == "__main__":
    try:
        main()
    except WrongResult as error:
        print(f"WRONG: {error}")
        sys.exit(1)

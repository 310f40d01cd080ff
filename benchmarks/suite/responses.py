"""W4: responses of a language model from one producer process to one consumer process, through a server.

    python -m benchmarks.suite.responses produce|consume ADDRESS FILE

is one of these processes: asked by a line on its standard input it answers with the seconds that it took. A consumer
reads each batch and drops it before it gets the next one, as a learner does; the reading is not counted. The limit is
shared memory and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import gear
from benchmarks.bars import Bar
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.responses_data import COUNT, GETS, MOST, PUT, STEPS, batches, checksum, nbytes
from benchmarks.service import served
from benchmarks.workloads import Columns

NAMES = ("w4-put", *(f"w4-get-{count}" for count in GETS))
BARE = "bare shared memory"


def table(capacity: int) -> gear.Table:
    """Each response is delivered once, the oldest first."""
    return gear.Table(
        "responses",
        [
            gear.Column("input_ids", (), "int64"),
            gear.Column("logprobs"),
            gear.Column("mask", (), "bool"),
            gear.Column("reward", (), "float32", per="trajectory"),
            gear.Column("version", (), "int64", per="trajectory"),
        ],
        gear.Trajectories(capacity),
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
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
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


class Stage:
    """Producer and consumer, and whether what is to be got has been put."""

    def __init__(self, producer: Process, consumer: Process) -> None:
        self.producer, self.consumer = producer, consumer
        self.stored = False

    def put(self, how: str) -> float:
        """All responses, in batches; seconds."""
        if self.stored:  # nothing but what is measured is ever stored
            self.get(GETS[-1])
        self.stored = True
        return self.producer.ask(how)

    def get(self, count: int) -> float:
        """All responses, `count` at a time; seconds. The consumer checks what comes."""
        self.fill()
        self.stored = False
        return self.consumer.ask(f"get {count}")

    def fill(self) -> None:
        """Put them if they are not there."""
        if not self.stored:
            self.put("packed")

    def drain(self) -> None:
        """Get them if they are."""
        if self.stored:
            self.get(GETS[-1])


def responses(_: Columns) -> Iterator[Measurement]:
    """Put, and get 64 and 512 at a time; the consumer finds out whether all came."""
    name = f"/dev/shm/gear-bench-responses-{os.getpid()}"
    Bare(name, create=True)
    with contextlib.ExitStack() as stack:
        stack.callback(os.unlink, name)
        address, server = stack.enter_context(served())
        with gear.connect(address) as client:
            client.create_table(table(COUNT + 1024))
        started = []
        for part in ("produce", "consume"):
            started.append(Process(sys.executable, "-m", "benchmarks.suite.responses", part, address, name))
            stack.callback(started[-1].close)
        stage = Stage(*started)
        pids = [process.process.pid for process in started]
        size = {"per_call": nbytes() / 1e6, "unit": "MB", "calls": 1}

        def candidate(name: str, call: Callable[[int], float], *processes: int, before=None) -> Candidate:
            return Candidate(name, call, timed=True, processes=processes, here=False, before=before)

        yield Measurement(
            NAMES[0], f"{COUNT} responses, {PUT} at a time",
            [
                candidate("gear, packed", lambda k: stage.put("packed"), server, pids[0], before=stage.drain),
                candidate("gear, a list of dicts", lambda k: stage.put("put"), server, pids[0], before=stage.drain),
            ],
            [candidate(f"{BARE}, copied in", lambda k: stage.producer.ask("bare"), pids[0])],
            bars=[Bar(25, "peers")], **size,
        )  # fmt: skip
        for count in GETS:
            yield Measurement(
                f"w4-get-{count}", f"{COUNT} responses, packed, {count} at a time",
                [candidate("gear", lambda k, count=count: stage.get(count), server, pids[1], before=stage.fill)],
                [candidate(f"{BARE}, copied out", lambda k, count=count: stage.consumer.ask(f"bare {count}"), pids[1])],
                bars=[Bar(25, "peers"), Bar(0.6, BARE)], **size,
            )  # fmt: skip


if __name__ == "__main__":
    (produce if sys.argv[1] == "produce" else consume)(*sys.argv[2:4])

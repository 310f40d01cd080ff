"""Reverb: trajectories across processes (its server in one, writer or reader in another) and in one process.

Its best configuration is measured: items of whole arrays ("blob"), read by a `TrajectoryDataset` whose workers and
samples in flight are the fastest of those tried; stepwise writers as its documentation shows them are measured beside.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from importlib.metadata import version as installed

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import reverb
import tensorflow as tf

from benchmarks import cpu
from benchmarks.crew import Crew
from benchmarks.measure import Candidate, WrongResult
from benchmarks.peers.reverb_server import server, tables
from benchmarks.workloads import ITEMS, Columns, Expected, check_items, trajectories, transitions

STACK = None
"""What ends with this process; set by `serve`."""

IN_FLIGHT = 25
SINGLE = 20_000
"""Transitions stored as items of one step."""

BATCH = 256


def version() -> str:
    """What it is."""
    return f"Reverb {installed('dm-reverb')}, TensorFlow {tf.__version__}"


@functools.cache
def serving(kind: str) -> tuple[str, int]:
    """Address and process of a server for items of that kind."""
    return STACK.enter_context(server(SINGLE if kind == "1" else ITEMS[kind]))


@functools.cache
def serving_here(kind: str) -> tuple[str, None]:
    """The address of a server in this process: its sampler then reads the tables without gRPC."""
    made = reverb.Server(tables(ITEMS[kind]), port=None)
    STACK.callback(made.stop)
    return f"localhost:{made.port}", None


@functools.cache
def stored(kind: str) -> list[Columns]:
    if kind == "1":
        data = transitions(SINGLE)
        return [{name: column[k] for name, column in data.items()} for k in range(SINGLE)]
    return trajectories(kind)


class Writer:
    """Makes one item of each trajectory."""

    def __init__(self, address: str, stepwise: bool, sample: Columns, table: str = "uniform") -> None:
        self.stepwise, self.names, self.table = stepwise, tuple(sample), table
        self.steps = len(next(iter(sample.values()))) if stepwise else 1
        self.writer = reverb.Client(address).trajectory_writer(self.steps)
        if stepwise:
            for name in self.names:
                self.writer.configure((name,), num_keep_alive_refs=self.steps, max_chunk_length=self.steps)

    def put(self, trajectory: Columns, priority: float = 1.0) -> None:
        writer = self.writer
        if self.stepwise:
            for k in range(self.steps):
                writer.append({name: trajectory[name][k] for name in self.names})
            item = {name: writer.history[name][-self.steps :] for name in self.names}
        else:
            writer.append(trajectory)
            item = {name: writer.history[name][-1] for name in self.names}
        writer.create_item(self.table, priority, item)
        writer.flush(block_until_num_items=IN_FLIGHT)

    def done(self) -> None:
        self.writer.flush()


@functools.cache
def fill(address: str, kind: str) -> None:
    rng, given = np.random.default_rng(1), stored(kind)
    for table in ("uniform",) if kind != "1" else ("uniform", "prioritized"):
        writer = Writer(address, False, given[0], table)
        for trajectory in given:
            writer.put(trajectory, float(rng.random() + 0.1))
        writer.done()


def processes(pid: int | None) -> tuple[int, ...]:
    return () if pid is None else (pid,)


def insert(kind: str) -> list[Candidate]:
    address, pid = serving(kind)
    given = stored(kind)

    def one(name: str, stepwise: bool, count: int) -> Candidate:
        writer = Writer(address, stepwise, given[0])

        def call(k: int) -> None:
            for i in range(count):
                writer.put(given[(k * count + i) % len(given)])
            writer.done()

        def check() -> None:
            for k in range(1 + (4 if stepwise else len(given)) // count):
                call(k)
            rows = list(reverb.Client(address).sample("uniform", 4, emit_timesteps=False))
            batch = {}
            for at, name in enumerate(sorted(given[0])):  # the order of its columns
                batch[name] = np.stack([row.data[at].reshape(given[0][name].shape) for row in rows])
            check_items(kind, batch, 4)

        return Candidate(name, call, per_call=count, processes=processes(pid), check=check)

    stepwise, blob = {"64": (20, 200), "1000": (2, 100), "frames": (20, 50)}[kind]
    return [one("Reverb, step-wise", True, stepwise), one("Reverb, whole arrays", False, blob)]


def specs(kind: str) -> tuple[dict, dict]:
    if kind == "frames":
        return {"obs": tf.uint8}, {"obs": tf.TensorShape([20, 84, 84, 4])}
    lead = [] if kind == "1" else [int(kind)]
    return (
        {"obs": tf.float32, "action": tf.float32, "reward": tf.float32, "done": tf.bool},
        {name: tf.TensorShape(lead + tail) for name, tail in
         (("obs", [17]), ("action", [6]), ("reward", []), ("done", []))},
    )  # fmt: skip


def batches(address: str, kind: str, workers: int, in_flight: int):
    """Batches of a dataset."""
    types, shapes = specs(kind)
    dataset = reverb.TrajectoryDataset(address, "uniform", types, shapes, in_flight, num_workers_per_iterator=workers)
    return iter(dataset.batch(BATCH, drop_remainder=True).prefetch(1))


def rate(iterator, seconds: float) -> float:
    next(iterator)
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        next(iterator)
        count += 1
    return count / spent


@functools.cache
def best(address: str, kind: str) -> tuple[int, int]:
    """Workers and samples in flight of the fastest configuration."""
    tried = {}
    for workers, in_flight in itertools.product((1, 2, 4), (BATCH, 3 * BATCH)):
        iterator = batches(address, kind, workers, in_flight)
        tried[workers, in_flight] = rate(iterator, 0.25)
        del iterator
        cpu.settle([os.getpid()], 0.5)
    return max(tried, key=tried.__getitem__)


def sample(kind: str, here: bool = False) -> list[Candidate]:
    address, pid = serving_here(kind) if here else serving(kind)
    fill(address, kind)
    workers, in_flight = best(address, kind)
    iterator = batches(address, kind, workers, in_flight)
    members = [os.getpid(), *processes(pid)]

    def call(k: int = 0) -> dict:
        data = next(iterator).data
        return {name: column.numpy() for name, column in data.items()}  # on the CPU a view

    def check() -> None:
        if kind == "1":
            Expected(transitions(SINGLE)).rows(call(), BATCH)
        else:
            check_items(kind, call(), BATCH)

    def before() -> None:
        """What was prefetched since the last round is no work of this one."""
        for _ in range(2 + in_flight // BATCH):
            next(iterator)

    class Settling(Candidate):
        """Lets its prefetches end before the next candidate's turn."""

        def round(self, *given) -> tuple[float, float]:
            figure = super().round(*given)
            cpu.settle(members, 1.0)
            return figure

    name = f"Reverb{', in process' if here else ''} ({workers} workers, {in_flight} in flight)"
    return [Settling(name, call, processes=processes(pid), before=before, check=check)]


def update() -> list[Candidate]:
    address, pid = serving("1")
    fill(address, "1")
    client, rng = reverb.Client(address), np.random.default_rng(2)
    keys = list({s.info.key for s in client.sample("prioritized", 4000, emit_timesteps=False)})
    given = [
        {keys[k]: float(rng.random() + 0.01) for k in rng.choice(len(keys), 256, replace=False)} for _ in range(32)
    ]

    def check() -> None:
        for k in range(32):
            client.mutate_priorities("prioritized", given[k])
        wanted = {key: value for some in given for key, value in some.items()}
        for drawn in client.sample("prioritized", 50, emit_timesteps=False):
            if drawn.info.key in wanted and abs(drawn.info.priority - wanted[drawn.info.key]) > 1e-6:
                raise WrongResult("an item has not the priority it was given")

    return [
        Candidate(
            "Reverb", lambda k: client.mutate_priorities("prioritized", given[k % 32]), processes=processes(pid),
            check=check,
        )
    ]  # fmt: skip


@functools.cache
def crew(writers: int, readers: int) -> Crew:
    """Writers and readers at the same time, each in a process."""
    address, _ = serving("64")
    fill(address, "64")
    command = [sys.executable, "-m", "benchmarks.peers.reverb_crew", address, *map(str, best(address, "64"))]
    made = Crew(command, writers, readers)
    STACK.callback(made.close)
    return made


def together(writers: int, readers: int, role: str) -> list[Candidate]:
    made = crew(writers, readers)
    members = (serving("64")[1], *made.pids)
    call = lambda k: made.seconds(0, k, role)
    rest = lambda: cpu.settle(members, 1.0)
    return [Candidate("Reverb", call, timed=True, here=False, counted=False, before=rest)]


CASES = {f"items-insert-{kind}": functools.partial(insert, kind) for kind in ITEMS}
CASES |= {f"items-sample-{kind}": functools.partial(sample, kind) for kind in ("1", *ITEMS)}
CASES |= {f"inproc-sample-{kind}": functools.partial(sample, kind, True) for kind in ITEMS}
CASES["items-update"] = update
CASES |= {
    f"together-{writers}w{readers}r-{what}": functools.partial(together, writers, readers, role)
    for writers, readers in ((1, 1), (4, 2))
    for what, role in (("samples", "reader"), ("inserts", "writer"))
}

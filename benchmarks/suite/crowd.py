"""64 shards, 512 actors and 64 learners: simulated with the service times of this machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import numpy as np

import gear
from benchmarks import cpu
from benchmarks.data import COLUMNS
from benchmarks.measure import Finding, Found
from benchmarks.service import served
from benchmarks.simulate import Load, Times, simulate
from benchmarks.workloads import Columns, trajectories

NAMES = ("simulated",)
FEW, BATCH, SHARDS = 4, 256, 4
LOADS = {
    "training 50 ms": Load(),
    "training 20 ms, actors x 4": Load(rate=40, training=0.02),
    "no training": Load(training=0.0),
}


def prioritized() -> gear.Table:
    return gear.Table(
        "items", COLUMNS, gear.Trajectories(2000), item=gear.Whole(), sampler=gear.Prioritized(0.6), mean_length=64,
        max_length=64,
    )  # fmt: skip


class Costs:
    """CPU seconds of a server of so many shards, and of a client over TCP, for each verb."""

    def __init__(self, shards: int) -> None:
        given = trajectories("64")
        with contextlib.ExitStack() as stack:
            address, process = stack.enter_context(served("--devices", f"cpu:{shards}"))
            client = stack.enter_context(gear.connect(address, path="tcp"))
            client.create_table(prioritized())
            self._members = cpu.tree([process])

            def insert() -> None:
                for trajectory in given[:640]:
                    client.insert(trajectory, wait=False)
                client.flush()

            for _ in range(4):
                insert()
            self.insert = self._of(insert, 5)[0] / 640
            self.sample, self.update = {}, {}
            for size in (FEW, BATCH):
                reused = client.sample(size)
                ids, values = reused.ids.copy(), np.random.default_rng(0).random(size) + 0.01
                self.sample[size] = self._of(lambda size=size, out=reused: client.sample(size, out=out), 300)
                self.update[size] = self._of(lambda ids=ids, values=values: client.update_priorities(ids, values), 300)

    def _of(self, call: Callable[[], object], count: int) -> tuple[float, float]:
        call()
        server, here = cpu.spent(self._members), time.process_time()
        for _ in range(count):
            call()
        return (cpu.spent(self._members) - server) / count, (time.process_time() - here) / count


def measured() -> Times:
    """From a server of one shard, and one of four for what another shard costs a client."""
    one, four = Costs(1), Costs(SHARDS)

    def line(figures: dict[int, tuple[float, float]], end: int) -> tuple[float, float]:
        """What a message costs, and an item."""
        slope = max(0.0, (figures[BATCH][end] - figures[FEW][end]) / (BATCH - FEW))
        return max(1e-6, figures[FEW][end] - FEW * slope), slope

    select, select_item = line(one.sample, 0)
    update, update_item = line(one.update, 0)
    message = max(1e-6, (four.sample[BATCH][1] - one.sample[BATCH][1]) / (SHARDS - 1))
    return Times(one.insert, select, select_item, update, update_item, message, line(one.sample, 1)[1])


def crowd(_: Columns) -> Iterator[Finding]:
    """The figures, and what gives way first."""

    def work_out() -> Found:
        times = measured()
        values = {f"measured: {name}, us": seconds * 1e6 for name, seconds in vars(times).items()}
        for name, load in LOADS.items():
            outcome = simulate(times, load)
            values |= {
                f"{name}: batches/s": outcome.batches,
                f"{name}: inserts/s": outcome.inserts,
                f"{name}: latency of a batch, median, ms": outcome.latency * 1e3,
                f"{name}: latency of a batch, 99 %, ms": outcome.late * 1e3,
                f"{name}: share of time at work, busiest shard": outcome.busiest_shard,
                f"{name}: share of time at work, learner's client": outcome.client,
            }
            finding.said.append(f"{name}: busy most are {outcome.bottleneck}")
        return values, []

    finding = Finding(
        NAMES[0], "64 shards, 512 actors, 64 learners, batches of 256 trajectories of 64 steps over TCP: simulated",
        "", work_out,
    )  # fmt: skip
    yield finding

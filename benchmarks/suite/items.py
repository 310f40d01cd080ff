"""Whole trajectories across processes, against Reverb: 64 transitions, 1000 transitions, 20 frames.

The server is a process, the client another (this one). Our two paths take turns with Reverb, whose items and reader are
configured as they are fastest; and one process, where Reverb's reader does without gRPC.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

import gear
from benchmarks.bars import Bar
from benchmarks.data import COLUMNS, fill
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.service import served
from benchmarks.workloads import FRAME, ITEMS, LENGTH, STEPS, Columns, Expected, Ring, check_items, trajectories

NAMES = (
    "items-sample-1",
    "items-update",
    *(f"items-{verb}-{kind}" for kind in ITEMS for verb in ("insert", "sample")),
)
HERE = tuple(f"inproc-sample-{kind}" for kind in ITEMS)
STEPWISE, BLOB = "Reverb, step-wise", "Reverb, whole arrays"
INSERT_BARS = {"64": [Bar(100, STEPWISE), Bar(8, BLOB)], "1000": [Bar(1, BLOB)], "frames": [Bar(1, BLOB)]}
SAMPLE_BARS = {"64": 20, "1000": 4, "frames": 3}
PER_CALL = {"64": 1000, "1000": 200, "frames": 50}
BATCH = 256


def table(kind: str) -> gear.Table:
    if kind == "frames":
        columns, length = [gear.Column("obs", FRAME, "uint8")], 20
    else:
        columns, length = COLUMNS, int(kind)
    return gear.Table(
        f"items-{kind}", columns, gear.Trajectories(ITEMS[kind]), item=gear.Whole(), mean_length=length,
        max_length=length,
    )  # fmt: skip


def transitions_table() -> gear.Table:
    return gear.Table(
        "steps", COLUMNS, gear.Steps(STEPS), item=gear.Step(), sampler=gear.Prioritized(0.6), mean_length=LENGTH
    )


def items(data: Columns) -> Iterator[Measurement]:
    """Through a server."""
    with contextlib.ExitStack() as stack:
        address, process = stack.enter_context(served())
        clients = {path: stack.enter_context(gear.connect(address, path=path)) for path in ("shm", "tcp")}
        yield from single(data, clients, process)
        for kind in ITEMS:
            given = trajectories(kind)
            clients["shm"].create_table(table(kind))
            for trajectory in given:
                clients["shm"].insert(trajectory, f"items-{kind}", wait=False)
            clients["shm"].flush()
            yield inserts(kind, given, clients, process)
            clients["shm"].flush()
            clients["tcp"].flush()
            yield samples(f"items-sample-{kind}", kind, clients, [Bar(SAMPLE_BARS[kind], "peers")], (process,))
            clients["shm"].reset(f"items-{kind}")


def embedded(data: Columns) -> Iterator[Measurement]:
    """In one process."""
    for kind in ITEMS:
        with gear.embedded([table(kind)]) as client:
            for trajectory in trajectories(kind):
                client.insert(trajectory, wait=False)
            client.flush()
            yield samples(f"inproc-sample-{kind}", kind, {"inproc": client}, [Bar(1, "peers")])


def single(data: Columns, clients: dict[str, gear.Client], process: int) -> Iterator[Measurement]:
    """Single transitions and their priorities."""
    rng, expected = np.random.default_rng(1), Expected(data)
    clients["shm"].create_table(transitions_table())
    fill(clients["shm"], "steps", data, rng.random(STEPS) + 0.01)
    ours = []
    for path, client in clients.items():
        reused = client.sample(BATCH, "steps")

        def check(client: gear.Client = client, reused: gear.Batch = reused) -> None:
            expected.check(client.sample(BATCH, "steps", out=reused))

        ours.append(
            Candidate(
                f"gear over {path}",
                lambda k, client=client, reused=reused: client.sample(BATCH, "steps", out=reused),
                processes=(process,), check=check,
            )
        )  # fmt: skip
    yield Measurement(
        "items-sample-1", "256 single transitions, of 1e6 (Reverb: of 20,000)", ours,
        per_call=BATCH, unit="samples", bars=[Bar(40, "peers")], mean=True, budget=0.15,
    )  # fmt: skip
    ids = [clients["shm"].sample(BATCH, "steps").ids for _ in range(250)]
    values = rng.random((250, BATCH)) + 0.01
    ours = []
    for path, client in clients.items():

        def update(k: int, client: gear.Client = client) -> gear.Update:
            return client.update_priorities(ids[k % 250], values[k % 250])

        def applied(update=update) -> None:
            if update(0) != gear.Update(BATCH, 0):
                raise WrongResult("an update of 256 stored items was not applied whole")

        ours.append(Candidate(f"gear over {path}", update, processes=(process,), check=applied))
    yield Measurement(
        "items-update", "256 new priorities of 1e6 (Reverb: of 20,000)", ours,
        per_call=BATCH, unit="updates", bars=[Bar(4, "peers")],
    )  # fmt: skip


def inserts(kind: str, given: list[Columns], clients: dict[str, gear.Client], process: int) -> Measurement:
    """Trajectory by trajectory, pipelined, then flushed."""
    name, count, ring = f"items-{kind}", PER_CALL[kind], Ring(given[:20], 20 * len(next(iter(given[0].values()))))
    ours = []
    for path, client in clients.items():

        def insert(k: int, client: gear.Client = client) -> None:
            for i in range(k * count, (k + 1) * count):
                client.insert(given[i % len(given)], name, wait=False)
            client.flush()

        def check(client: gear.Client = client) -> None:
            batch = client.sample(64, name)
            check_items(kind, {column: np.asarray(batch[column]) for column in given[0]}, 64)

        ours.append(Candidate(f"gear over {path}", insert, processes=(process,), check=check))
    return Measurement(
        f"items-insert-{kind}", f"{count} trajectories ({kind}), pipelined, then flushed", ours,
        [Candidate("NumPy copies the same rows", lambda k: [ring.write(i) for i in range(count)])],
        per_call=count, unit="trajectories", bars=INSERT_BARS[kind], mean=True, budget=0.15,
    )  # fmt: skip


def samples(
    name: str, kind: str, clients: dict[str, gear.Client], bars: list[Bar], processes: tuple[int, ...] = ()
) -> Measurement:
    """Batches of 256."""
    ours = []
    for path, client in clients.items():
        reused = client.sample(BATCH, f"items-{kind}")

        def check(client: gear.Client = client, reused: gear.Batch = reused) -> None:
            batch = client.sample(BATCH, f"items-{kind}", out=reused)
            names = [column.name for column in table(kind).columns]
            check_items(kind, {column: np.asarray(batch[column]) for column in names}, BATCH)

        check()
        ours.append(
            Candidate(
                f"gear over {path}" if processes else "gear",
                lambda k, client=client, reused=reused: client.sample(BATCH, f"items-{kind}", out=reused),
                processes=processes, check=check,
            )
        )  # fmt: skip
    return Measurement(
        name, f"256 whole trajectories ({kind})", ours,
        per_call=BATCH, unit="samples", bars=bars, mean=True, budget=0.25,
    )  # fmt: skip

"""The measurements of `make bench`, by group: what is set up once, and the measurements made on it.

A group is run only if one of its measurements was asked for. `PEERS` is where other systems join: functions that
make one more candidate for the measurement they are listed under.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np

import gear
from benchmarks import waiting
from benchmarks.data import COLUMNS, LENGTH, STEPS, Columns, Expected, Ring, Take, fill, piece
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.network import BULK, bulk, latency
from benchmarks.service import server, start_and_stop

PEERS: dict[str, list[Callable[[Columns], Candidate]]] = {}
"""By measurement: how each peer does the same work, given the same data."""

SETS = 4000
TAKE = "NumPy take(out=, mode='clip')"


def measurement(
    name: str, work: str, ours: list[Candidate], limit: list[Candidate], data: Columns, **rest
) -> Measurement:
    """Ours, then the peers, then the limit if there is one."""
    return Measurement(name, work, [*ours, *(peer(data) for peer in PEERS.get(name, ())), *limit], **rest)


def start_up(data: Columns) -> Iterator[Measurement]:
    """Starting: the package, the server."""

    def imported(module: str) -> float:
        code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    yield measurement(
        "import",
        "`import gear` in a new process",
        [Candidate("gear", lambda k: imported("gear"), timed=True)],
        [Candidate("numpy alone", lambda k: imported("numpy"), timed=True)],
        data, per_call=1, unit="imports", bar="< 150 ms", calls=1,
    )  # fmt: skip
    yield measurement(
        "ready",
        "gear-server from its start to its ready line",
        [Candidate("gear-server", lambda k: start_and_stop(), timed=True)],
        [],
        data, per_call=1, unit="starts", bar="reported", calls=1,
    )  # fmt: skip


def steps(data: Columns, sampler: gear.Uniform | gear.Prioritized) -> Iterator[Measurement]:
    """Transitions in process; then priorities."""
    rng = np.random.default_rng(1)
    sets = [rng.integers(0, STEPS, 256) for _ in range(SETS)]
    prioritized = isinstance(sampler, gear.Prioritized)
    table = gear.Table("steps", COLUMNS, gear.Steps(STEPS), item=gear.Step(), sampler=sampler, mean_length=LENGTH)
    with gear.embedded([table]) as client:
        fill(client, "steps", data, rng.random(STEPS) + 0.01 if prioritized else None)
        expected, reused = Expected(data), client.sample(256)

        def verify() -> None:
            for batch in (client.sample(256), client.sample(256, out=reused)):
                expected.check(batch)

        verify()
        yield measurement(
            f"sample-{'prioritized' if prioritized else 'uniform'}",
            "256 of 1e6 transitions in process",
            [
                Candidate("gear, new arrays", lambda k: client.sample(256)),
                Candidate("gear, out=", lambda k: client.sample(256, out=reused)),
            ],
            [Candidate(TAKE, Take(data, sets))],
            data, per_call=256, unit="samples", bar="reported" if prioritized else "<= 2 x take", verify=verify,
        )  # fmt: skip
        if prioritized:
            ids, values = [client.sample(256).ids for _ in range(500)], rng.random((500, 256)) + 0.01

            def update(k: int) -> gear.Update:
                return client.update_priorities(ids[k % 500], values[k % 500])

            def applied() -> None:
                if update(0) != gear.Update(256, 0):
                    raise WrongResult("an update of 256 stored items was not applied whole")

            yield measurement(
                "update", "256 priorities of 1e6 in process", [Candidate("gear", update)], [],
                data, per_call=256, unit="updates", bar="reported", verify=applied,
            )  # fmt: skip


def windows(data: Columns, client: gear.Client, where: str) -> Iterator[Measurement]:
    """64 windows of 64 steps of 1000 trajectories of 1000 steps."""
    rng, name = np.random.default_rng(2), f"windows-{where}"
    starts = [rng.integers(0, STEPS // LENGTH, 64) * LENGTH + rng.integers(0, LENGTH - 63, 64) for _ in range(500)]
    sets = [(s[:, None] + np.arange(64)).reshape(-1) for s in starts]
    client.create_table(gear.Table(name, COLUMNS, gear.Steps(STEPS), item=gear.Window(64), mean_length=LENGTH))
    fill(client, name, data)
    expected, reused = Expected(data), client.sample(64, name)

    def verify() -> None:
        for batch in (client.sample(64, name), client.sample(64, name, out=reused)):
            expected.check(batch)
            if not np.asarray(batch.mask).all():
                raise WrongResult("a window inside a trajectory is not full")

    verify()
    yield measurement(
        name,
        "64 windows of 64 steps of 1000 trajectories of 1000",
        [
            Candidate("gear, new arrays", lambda k: client.sample(64, name)),
            Candidate("gear, out=", lambda k: client.sample(64, name, out=reused)),
        ],
        [Candidate(TAKE, Take(data, sets))],
        data, per_call=64 * 64, unit="steps", bar="reported" if where == "tcp" else "<= 3 x take over shm",
        calls=300, verify=verify,
    )  # fmt: skip


def inserts(data: Columns, client: gear.Client, where: str) -> Iterator[Measurement]:
    """64-step trajectories, pipelined; single steps through a writer."""
    name, size = f"insert-{where}", 200_000
    client.create_table(gear.Table(name, COLUMNS, gear.Steps(size), item=gear.Window(64)))
    used = piece(data, 0, 64 * 500)
    pieces = [piece(used, start, 64) for start in range(0, 64 * 500, 64)]
    expected, ring = Expected(used), Ring(pieces, size)
    inserted = 0

    def insert(k: int) -> None:
        nonlocal inserted
        for i in range(1000):
            client.insert(pieces[i % 500], name, wait=False)
        client.flush()
        inserted += 1000

    def verify() -> None:
        figures = client.info()["tables"][name]
        counts = figures["inserted_trajectories"], figures["trajectories"] + figures["evicted_trajectories"]
        if counts != (inserted, inserted):
            raise WrongResult(f"{inserted} trajectories were inserted, the table counts {counts}")
        for _ in range(20):
            expected.check(client.sample(64, name))

    yield measurement(
        name,
        "1000 trajectories of 64 steps, wait=False, then flush",
        [Candidate("gear", insert)],
        [Candidate("NumPy copies the same rows", lambda k: [ring.write(i) for i in range(1000)])],
        data, per_call=1000, unit="trajectories", bar="reported" if where == "tcp" else ">= 30,000/s over shm",
        calls=5, verify=verify,
    )  # fmt: skip
    joined, offsets = piece(used, 0, 64 * 500), np.arange(501) * 64

    def many(given: list[Columns] | Columns, bounds: np.ndarray | None) -> None:
        nonlocal inserted
        for _ in range(2):
            client.insert_many(given, name, offsets=bounds)
        inserted += 1000

    yield measurement(
        f"packed-{where}",
        "1000 trajectories of 64 steps in two calls",
        [
            Candidate("gear, packed", lambda k: many(joined, offsets)),
            Candidate("gear, a list of dicts", lambda k: many(pieces, None)),
            Candidate("gear, one by one with wait=False", insert),
        ],
        [Candidate("NumPy copies the same rows", lambda k: [ring.write(i) for i in range(1000)])],
        data, per_call=1000, unit="trajectories", bar="reported", calls=5, verify=verify,
    )  # fmt: skip
    if where != "tcp":  # a writer writes into the same memory on every path
        yield from appends(data, client, name, where)
        yield vectors(data, client, name, where)


def appends(data: Columns, client: gear.Client, table: str, where: str) -> Iterator[Measurement]:
    """One step at a time into the same table."""
    single = [{k: v[s] for k, v in data.items()} for s in range(500)]
    out = {k: np.zeros((LENGTH, *v.shape[1:]), v.dtype) for k, v in data.items()}
    expected = Expected(piece(data, 0, 500))

    def assign(k: int) -> None:
        for name, value in single[k % 500].items():
            out[name][k % LENGTH] = value

    with client.writer(table) as writer:

        def episode(k: int) -> None:
            for i in range(500):
                writer.append(single[i])
            writer.end()

        def verify() -> None:
            episodes = -(-200_000 // 500)  # until nothing else is stored
            for k in range(episodes):
                episode(k)
            client.flush()
            expected.check(client.sample(64, table))

        yield measurement(
            f"append-{where}",
            "one step through a writer (median call)",
            [Candidate("gear", lambda k: writer.append(single[k % 500]))],
            [Candidate("NumPy assigns the same values", assign)],
            data, per_call=1, unit="steps", bar="<= 3 us", calls=5000, verify=writer.end,
        )  # fmt: skip
        yield measurement(
            f"episode-{where}",
            "500 steps through a writer, end included",
            [Candidate("gear", episode)],
            [],
            data, per_call=500, unit="steps", bar="reported", calls=20, verify=verify,
        )  # fmt: skip


def vectors(data: Columns, client: gear.Client, table: str, where: str) -> Measurement:
    """64 environments, episodes of 100 steps of all of them: full blocks and ends are in it."""
    envs, per_call = 64, 100
    every = [piece(data, envs * s, envs) for s in range(500)]
    single = [[{k: v[i] for k, v in step.items()} for i in range(envs)] for step in every]
    out = {k: np.zeros((envs, per_call, *v.shape[1:]), v.dtype) for k, v in data.items()}
    going = np.zeros(envs, np.bool_)
    writers = [client.writer(table) for _ in range(envs)]
    vector = client.writer(table, num_envs=envs, autoreset="disabled")

    def at_once(k: int) -> None:
        for s in range(per_call):
            vector.append(every[(k + s) % 500], going, going)
        vector.end()

    def each(k: int) -> None:
        for s in range(per_call):
            for writer, step in zip(writers, single[(k + s) % 500], strict=True):
                writer.append(step)
        for writer in writers:
            writer.end()

    def assign(k: int) -> None:
        for s in range(per_call):
            for name, value in every[(k + s) % 500].items():
                out[name][:, s] = value

    def verify() -> None:
        client.flush()
        client.reset(table)
        for step in every[:64]:
            vector.append(step, going, going)
        vector.end()
        client.flush()
        for item in np.asarray(client.sample(64, table)["obs"]):
            env = int(np.argmax((data["obs"][:envs] == item[0]).all(1)))
            if not (item == data["obs"][env : env + 64 * envs : envs]).all():
                raise WrongResult("a trajectory of an environment is not its rows in order")

    return measurement(
        f"vector-{where}",
        "an episode of 100 steps of 64 environments, end included",
        [
            Candidate("gear, one writer for all", at_once),
            Candidate("gear, 64 writers", each),
        ],
        [Candidate("NumPy assigns the same values", assign)],
        data, per_call=envs * per_call, unit="steps", bar="reported", calls=10, verify=verify,
    )  # fmt: skip


def embedded(data: Columns) -> Iterator[Measurement]:
    """In process."""
    with gear.embedded() as client:
        yield from windows(data, client, "inproc")
        yield from inserts(data, client, "inproc")


def shared(data: Columns) -> Iterator[Measurement]:
    """Through a server and shared memory."""
    with server() as address, gear.connect(address) as client:
        yield from windows(data, client, "shm")
        yield from inserts(data, client, "shm")


def networked(data: Columns) -> Iterator[Measurement]:
    """Through a server and TCP."""
    with server() as address, gear.connect(address, path="tcp") as client:
        yield from latency(data, client)
        yield from windows(data, client, "tcp")
        yield from bulk(data, client, "windows-tcp")
        yield from inserts(data, client, "tcp")


def beside_waiting(data: Columns) -> Iterator[Measurement]:
    """Beside readers that wait."""
    with server() as address:
        yield from waiting.waiting(address)


ROWS = ("windows", "insert", "packed", "append", "episode", "vector")

GROUPS: list[tuple[tuple[str, ...], Callable[[Columns], Iterator[Measurement]]]] = [
    (("import", "ready"), start_up),
    (("sample-uniform",), lambda data: steps(data, gear.Uniform())),
    (("sample-prioritized", "update"), lambda data: steps(data, gear.Prioritized(0.6))),
    (tuple(f"{n}-inproc" for n in ROWS), embedded),
    (tuple(f"{n}-shm" for n in ROWS), shared),
    ((waiting.NAME,), beside_waiting),
    (("latency-tcp", "windows-tcp", *(f"bulk-tcp-{size}" for size in BULK), "insert-tcp", "packed-tcp"), networked),
]
"""Names of a group's measurements, and what makes them."""

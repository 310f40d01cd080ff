"""Writing, in process and through a server: pipelined and packed inserts, writers, vectors of environments.

What is measured against peers is in `steps` and `items`; here our ways of writing stand beside one another and beside
NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import gear
from benchmarks.bars import Within
from benchmarks.data import COLUMNS
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.service import served
from benchmarks.workloads import LENGTH, Columns, Expected, Ring, piece

ROWS = ("insert", "packed", "append", "episode", "vector")


def names(where: str) -> tuple[str, ...]:
    """Of what is measured there."""
    return tuple(f"{name}-{where}" for name in ROWS)


def inserts(data: Columns, client: gear.Client, where: str, processes: tuple[int, ...] = ()) -> Iterator[Measurement]:
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

    yield Measurement(
        name,
        "1000 trajectories of 64 steps, wait=False, then flush",
        [Candidate("gear", insert, processes=processes)],
        [Candidate("NumPy copies the same rows", lambda k: [ring.write(i) for i in range(1000)])],
        per_call=1000, unit="trajectories", bars=[Within(1 / 30_000)], mean=True, verify=verify,
    )  # fmt: skip
    joined, offsets = piece(used, 0, 64 * 500), np.arange(501) * 64

    def many(given: list[Columns] | Columns, bounds: np.ndarray | None) -> None:
        nonlocal inserted
        for _ in range(2):
            client.insert_many(given, name, offsets=bounds)
        inserted += 1000

    yield Measurement(
        f"packed-{where}",
        "1000 trajectories of 64 steps in two calls",
        [
            Candidate("gear, packed", lambda k: many(joined, offsets), processes=processes),
            Candidate("gear, a list of dicts", lambda k: many(pieces, None), processes=processes),
            Candidate("gear, one by one with wait=False", insert, processes=processes),
        ],
        [Candidate("NumPy copies the same rows", lambda k: [ring.write(i) for i in range(1000)])],
        per_call=1000, unit="trajectories", mean=True, verify=verify,
    )  # fmt: skip
    yield from appends(data, client, name, where, processes)
    yield vectors(data, client, name, where, processes)


def appends(
    data: Columns, client: gear.Client, table: str, where: str, processes: tuple[int, ...]
) -> Iterator[Measurement]:
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

        yield Measurement(
            f"append-{where}",
            "one step through a writer (median call)",
            [Candidate("gear", lambda k: writer.append(single[k % 500]), processes=processes)],
            [Candidate("NumPy assigns the same values", assign)],
            per_call=1, unit="steps", bars=[Within(3e-6)], calls=5000, verify=writer.end,
        )  # fmt: skip
        yield Measurement(
            f"episode-{where}",
            "500 steps through a writer, end included",
            [Candidate("gear", episode, processes=processes)],
            per_call=500, unit="steps", mean=True, verify=verify,
        )  # fmt: skip


def vectors(data: Columns, client: gear.Client, table: str, where: str, processes: tuple[int, ...]) -> Measurement:
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

    return Measurement(
        f"vector-{where}",
        "an episode of 100 steps of 64 environments, end included",
        [
            Candidate("gear, one writer for all", at_once, processes=processes),
            Candidate("gear, 64 writers", each, processes=processes),
        ],
        [Candidate("NumPy assigns the same values", assign)],
        per_call=envs * per_call, unit="steps", mean=True, verify=verify,
    )  # fmt: skip


def embedded(data: Columns) -> Iterator[Measurement]:
    """In process."""
    with gear.embedded() as client:
        yield from inserts(data, client, "inproc")


def shared(data: Columns) -> Iterator[Measurement]:
    """Through a server; a writer writes into shared memory whichever path its client reads by."""
    with served() as (address, process), gear.connect(address, path="shm") as client:
        yield from inserts(data, client, "shm", (process,))

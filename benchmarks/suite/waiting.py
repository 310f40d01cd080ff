"""Inserts beside readers that wait: into a table for which 200 of them do, and into one like it for which none does."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np

import gear
from benchmarks.bars import Bar
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.service import server
from benchmarks.workloads import Columns

READERS = 200
GROUP = 64
NAMES = ("insert-waiting",)


def table(name: str) -> gear.Table:
    """Responses of a language model whose reward comes late."""
    return gear.Table(
        name,
        (gear.Column("tokens", (), "int64"), gear.Column("reward", (), "float32", per="trajectory", late=True)),
        gear.Trajectories(4096),
        item=gear.Whole(),
        mean_length=64,
        requirements=[("reward",)],
        max_staleness=1,
        distinct=True,
    )


def _readers(address: str, name: str, ready: Connection) -> None:
    """Wait for rewards, and for a batch that is larger than the table, until the other end closes."""
    client = gear.connect(address, path="shm")

    def wait(k: int) -> None:
        with contextlib.suppress(gear.GearError):
            client.sample(gear.Query(8192 if k % 2 else 1, name, require=() if k % 2 else ("reward",)))

    for k in range(READERS):
        threading.Thread(target=wait, args=(k,), daemon=True).start()
    ready.send(True)
    with contextlib.suppress(EOFError):
        ready.recv()
    client.close()


def waiting(address: str) -> Iterator[Measurement]:
    """64 trajectories of 64 steps per call, over shared memory, in alternation."""
    name = NAMES[0]
    tokens, bounds = np.arange(64 * GROUP), np.arange(GROUP + 1) * 64
    with gear.connect(address, path="shm") as client:
        for one in ("busy", "quiet"):
            client.create_table(table(f"{name}-{one}"))
        here, there = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_readers, args=(address, f"{name}-busy", there), daemon=True
        )
        process.start()
        there.close()
        try:
            here.recv()
            _until(client, f"{name}-busy")

            def insert(one: str) -> None:
                client.insert_many({"tokens": tokens}, f"{name}-{one}", offsets=bounds)

            def verify() -> None:
                _until(client, f"{name}-busy")

            yield Measurement(
                name,
                f"{GROUP} trajectories of 64 steps into a table for which {READERS} readers wait",
                [Candidate(f"{READERS} readers wait", lambda k: insert("busy"))],
                [Candidate("none waits", lambda k: insert("quiet"))],
                per_call=GROUP, unit="trajectories", bars=[Bar(0.95, "none")], calls=200, verify=verify,
            )  # fmt: skip
        finally:
            here.close()
            process.join(10)
            process.kill()


def _until(client: gear.Client, name: str) -> None:
    """All readers wait."""
    deadline = time.monotonic() + 30
    while (found := client.info()["tables"][name]["waiting_readers"]) != READERS:
        if time.monotonic() > deadline:
            raise WrongResult(f"{found} of {READERS} readers wait")
        time.sleep(0.05)


def beside_waiting(data: Columns) -> Iterator[Measurement]:
    """Beside readers that wait."""
    with server() as address:
        yield from waiting(address)

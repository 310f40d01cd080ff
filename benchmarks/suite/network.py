"""The `tcp` path against bare pyzmq that sends as many bytes: large batches, and the round trip of a small one."""

from __future__ import annotations

from collections.abc import Iterator

import gear
from benchmarks.bars import Bar
from benchmarks.data import COLUMNS, fill
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.plain import sender
from benchmarks.service import served
from benchmarks.suite import windows
from benchmarks.workloads import LENGTH, STEPS, Columns, Expected

BULK = (192, 1024, 8192)
"""Windows of 64 steps per batch: 1.2 MB, 6.4 MB and 51 MB."""

NAMES = ("latency-tcp", "windows-shm", "windows-tcp", *(f"bulk-tcp-{size}" for size in BULK))
ZMQ, RAW = "pyzmq sends as many bytes, no copy", "raw TCP sends as many bytes"


def networked(data: Columns) -> Iterator[Measurement]:
    """Through a server: W1 and W2 over TCP, and W2 over shared memory beside it."""
    with served() as (address, process), gear.connect(address, path="tcp") as client:
        yield from latency(data, client, process)
        client.create_table(windows.table("windows"))
        fill(client, "windows", data)
        with gear.connect(address, path="shm") as near:
            yield windows.samples(data, near, "windows-shm", "windows", [Bar(1 / 3, "NumPy")], (process,))
        yield windows.samples(data, client, "windows-tcp", "windows", [], (process,))
        yield from bulk(data, client, process)


def against(nbytes: int, ours: list[Candidate], name: str, work: str, **rest) -> Iterator[Measurement]:
    """Ours beside processes that do nothing but send as many bytes."""
    with sender("zmq") as zeromq, sender("tcp") as raw:
        plain = [
            Candidate(ZMQ, lambda k: zeromq(nbytes), processes=(zeromq.process,)),
            Candidate(RAW, lambda k: raw(nbytes), processes=(raw.process,)),
        ]
        yield Measurement(name, work, ours, plain, **rest)


def bulk(data: Columns, client: gear.Client, process: int) -> Iterator[Measurement]:
    """Large batches, one request outstanding."""
    expected = Expected(data)
    for size in BULK:
        reused = client.sample(size, "windows")
        nbytes = len(reused.buffer)

        def check(size: int = size, reused: gear.Batch = reused) -> None:
            expected.check(client.sample(64, "windows"))
            if len(client.sample(size, "windows", out=reused).ids) != size:
                raise WrongResult(f"a batch of {size} windows has not that many")

        ours = [
            Candidate(
                "gear, out=", lambda k, size=size, out=reused: client.sample(size, "windows", out=out),
                processes=(process,), check=check,
            ),
            Candidate("gear, new arrays", lambda k, size=size: client.sample(size, "windows"), processes=(process,)),
        ]  # fmt: skip
        yield from against(
            nbytes, ours, f"bulk-tcp-{size}", f"{size} windows of 64 steps, {nbytes / 1e6:.1f} MB",
            per_call=nbytes / 1e6, unit="MB", bars=[Bar(0.75, "pyzmq")], budget=0.15,
        )  # fmt: skip


def latency(data: Columns, client: gear.Client, process: int) -> Iterator[Measurement]:
    """A small batch against a round trip with the same bytes."""
    client.create_table(gear.Table("steps", COLUMNS, gear.Steps(STEPS), item=gear.Step(), mean_length=LENGTH))
    fill(client, "steps", data)
    expected, reused = Expected(data), client.sample(256, "steps")
    nbytes = len(reused.buffer)

    def check() -> None:
        for batch in (client.sample(256, "steps"), client.sample(256, "steps", out=reused)):
            expected.check(batch)

    check()
    ours = [
        Candidate("gear, out=", lambda k: client.sample(256, "steps", out=reused), processes=(process,), check=check),
        Candidate("gear, new arrays", lambda k: client.sample(256, "steps"), processes=(process,)),
    ]
    yield from against(
        nbytes, ours, "latency-tcp", f"256 of 1e6 transitions, {nbytes / 1e3:.0f} kB",
        per_call=256, unit="samples", bars=[Bar(0.5, "pyzmq")],
    )  # fmt: skip

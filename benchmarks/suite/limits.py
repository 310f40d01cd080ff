"""What the machine can do, with nothing of ours in the way: copies in memory, and bytes from another process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Candidate, Measurement
from benchmarks.plain import sender
from benchmarks.workloads import Columns

NAMES = ("limit-memory", "limit-bytes-25k", "limit-bytes-1200k", "limit-bytes-51200k")
LARGE = 256 << 20


def limits(data: Columns) -> Iterator[Measurement]:
    """memcpy; bare shared memory, a bare TCP socket and pyzmq without copies, with the sizes of our batches."""
    source, target = np.ones(LARGE, np.uint8), np.zeros(LARGE, np.uint8)
    table, picks = source.reshape(-1, 1024), np.random.default_rng(0).integers(0, LARGE // 1024, (64, 4096))
    out = np.empty((4096, 1024), np.uint8)
    most = 4 << 20

    def copy(k: int) -> None:
        start = k % (LARGE // most) * most
        target[start : start + most] = source[start : start + most]

    yield Measurement(
        NAMES[0],
        "4 MiB of 256 copied in memory",
        [Candidate("memcpy", copy)],
        [Candidate("NumPy take(out=, mode='clip'), 1 kB each", lambda k: table.take(picks[k % 64], 0, out, "clip"))],
        per_call=most / 1e6, unit="MB",
    )  # fmt: skip
    for name in NAMES[1:]:
        nbytes = int(name.rpartition("-")[2].removesuffix("k")) * 1000
        with sender("shm") as shared, sender("tcp") as raw, sender("zmq") as zeromq:
            ways = (("bare shared memory, copied out", shared), ("raw TCP", raw), ("pyzmq without copies", zeromq))
            yield Measurement(
                name,
                f"{nbytes / 1e3:,.0f} kB from another process, one request outstanding",
                [
                    Candidate(way, lambda k, fetch=fetch, nbytes=nbytes: fetch(nbytes), processes=(fetch.process,))
                    for way, fetch in ways
                ],
                per_call=nbytes / 1e6, unit="MB",
            )  # fmt: skip

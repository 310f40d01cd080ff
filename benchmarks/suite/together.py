"""Writers and readers at the same time, over both paths and over 1, 2 and 4 shards; Reverb with as many beside.

    python -m benchmarks.suite.together PATH=ADDRESS,... writer|reader NUMBER

is one of them (see `benchmarks.crew`). Trajectories of 64 transitions are written one by one, pipelined, and read whole
in batches of 256.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import numpy as np

import gear
from benchmarks.crew import Crew, serve
from benchmarks.measure import Candidate, Measurement
from benchmarks.service import served
from benchmarks.suite.items import table
from benchmarks.workloads import Columns, check_items, trajectories

CREWS = ((1, 1), (4, 2), (4, 4))
NAMES = tuple(f"together-{w}w{r}r-{what}" for w, r in CREWS for what in ("samples", "inserts"))
SERVICES = (("shm", 1), ("tcp", 1), ("shm", 2), ("shm", 4))
KIND, BATCH = "64", 256


def together(_: Columns) -> Iterator[Measurement]:
    """Each number of clients at all services in turn."""
    for writers, readers in CREWS:
        with contextlib.ExitStack() as stack:
            addresses = []
            for path, shards in SERVICES:
                address, _ = stack.enter_context(served("--devices", f"cpu:{shards}"))
                with gear.connect(address) as client:
                    client.create_table(table(KIND))
                    for trajectory in trajectories(KIND):
                        client.insert(trajectory, wait=False)
                    client.flush()
                addresses.append(f"{path}={address}")
            crew = Crew([sys.executable, "-m", "benchmarks.suite.together", ",".join(addresses)], writers, readers)
            stack.callback(crew.close)
            for what, role in (("samples", "reader"), ("inserts", "writer")):
                ours = [
                    Candidate(
                        f"gear over {path}, {shards} shard{'s' * (shards > 1)}",
                        lambda k, crew=crew, number=number, role=role: crew.seconds(number, k, role),
                        timed=True, here=False, counted=False,
                    )
                    for number, (path, shards) in enumerate(SERVICES)
                ]  # fmt: skip
                yield Measurement(
                    f"together-{writers}w{readers}r-{what}",
                    f"{writers} writers and {readers} readers at once: {what} of all, trajectories of 64 steps",
                    ours, unit=what, calls=1,
                )  # fmt: skip


def member(addresses: str, role: str, number: int) -> None:
    """One process of a crew."""
    given = trajectories(KIND)
    names = list(given[0])
    with contextlib.ExitStack() as stack:
        clients = []
        for one in addresses.split(","):
            path, _, address = one.partition("=")
            clients.append(stack.enter_context(gear.connect(address, path=path)))  # type: ignore[arg-type]
        reused = [client.sample(BATCH) for client in clients]
        place = number * 100

        def write(service: int) -> int:
            nonlocal place
            for _ in range(20):
                clients[service].insert(given[place % len(given)], wait=False)
                place += 1
            return 20

        def read(service: int) -> int:
            clients[service].sample(BATCH, out=reused[service])
            return BATCH

        def flush(service: int) -> None:
            clients[service].flush()

        def check(service: int) -> None:
            check_items(KIND, {name: np.asarray(reused[service][name])[:8] for name in names}, 8)

        serve(*((write, flush) if role == "writer" else (read, check)))


if __name__ == "__main__":
    member(sys.argv[1], sys.argv[2], int(sys.argv[3]))

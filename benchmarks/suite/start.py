"""Starting: the package, a client, the server, the first sample."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np

import gear
from benchmarks.bars import Within
from benchmarks.data import COLUMNS
from benchmarks.measure import Candidate, Finding, Found, Measurement, WrongResult
from benchmarks.service import server, start_and_stop
from benchmarks.workloads import Columns, piece

NAMES = ("import", "client", "ready", "first-sample")

CLIENT = """
import time; start = time.perf_counter()
import sys, gear
with gear.connect(sys.argv[1]) as client:
    client.sample(256)
    print(time.perf_counter() - start, "torch" in sys.modules)
"""


def spoken(code: str, *arguments: str) -> list[str]:
    """What a new Python prints."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.split()


def imported(module: str) -> float:
    return float(spoken(f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)")[0])


def start(data: Columns) -> Iterator[Measurement | Finding]:
    """All of it, each in new processes."""
    yield Measurement(
        "import", "`import gear` in a new process",
        [Candidate("gear", lambda k: imported("gear"), timed=True)],
        [Candidate("numpy alone", lambda k: imported("numpy"), timed=True)],
        unit="imports", bars=[Within(0.15)], calls=1,
    )  # fmt: skip
    table = gear.Table("replay", COLUMNS, gear.Steps(20_000), item=gear.Step(), mean_length=1000)
    with server() as address, gear.connect(address) as client:
        client.create_table(table)
        for start_ in range(0, 20_000, 1000):
            client.insert(piece(data, start_, 1000))

        def ready(k: int) -> float:
            seconds, torch = spoken(CLIENT, address)
            if torch != "False":
                raise WrongResult("a client that wants no tensors has imported torch")
            return float(seconds)

        yield Measurement(
            "client", "a new process: import, connect, first batch of 256",
            [Candidate("gear", ready, timed=True)],
            unit="clients", bars=[Within(0.7)], calls=1,
        )  # fmt: skip
    yield Measurement(
        "ready", "gear-server from its start to its ready line",
        [Candidate("gear-server", lambda k: start_and_stop(), timed=True)],
        unit="starts", bars=[Within(3.0)], calls=1,
    )  # fmt: skip

    def first() -> Found:
        ratios, firsts, medians = [], [], []
        for _ in range(3):
            with server() as address, gear.connect(address) as client:
                client.create_table(table)
                client.insert(piece(data, 0, 1000))
                times = []
                for _ in range(300):
                    begin = time.perf_counter()
                    client.sample(256)
                    times.append(time.perf_counter() - begin)
            firsts.append(times[0] * 1e6)
            medians.append(float(np.median(times)) * 1e6)
            ratios.append(firsts[-1] / medians[-1])
        ratio = float(np.median(ratios))
        values = {"first sample, us": float(np.median(firsts)), "median sample, us": float(np.median(medians))}
        return values | {"first / median": ratio}, [("first sample <= 10 x the median one", ratio, 10)]

    yield Finding("first-sample", "the first sample(256) of a client of a server just started", "", first)

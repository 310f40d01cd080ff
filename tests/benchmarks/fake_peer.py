"""A peer that does nothing, well and badly; run by `benchmarks.peers.serve` in a process of its own."""

from __future__ import annotations

import os
import sys

import numpy as np

from benchmarks.measure import Candidate
from benchmarks.workloads import Expected, transitions

STACK = None
DATA = transitions(50)


def version() -> str:
    sys.stdout.write("what a library prints must not be taken for an answer\n")
    return "fake 1.0"


def work(change: float) -> list[Candidate]:
    batch = {name: column[10:14].copy() for name, column in DATA.items()}
    batch["obs"][2, 3] += np.float32(change)
    return [
        Candidate(
            "fake", lambda k: sys.stdout.write("noise\n"), per_call=5, check=lambda: Expected(DATA).rows(batch, 4)
        )
    ]


def fails() -> list[Candidate]:
    raise RuntimeError("it is out of order")


def ends() -> list[Candidate]:
    sys.stderr.write("no more memory\n")
    sys.stderr.flush()
    os._exit(3)


CASES = {"right": lambda: work(0), "wrong": lambda: work(1), "fails": fails, "ends": ends}

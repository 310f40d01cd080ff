"""`make bench`: speed of GEAR against what the machine can do, as ratios measured in the same run.

    python -m benchmarks.run [--rounds 7] [--only NAME] [--json FILE]

The exit code is 1 only if a result was wrong, never because of a figure. What is measured is in `cases`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import sys
from collections.abc import Iterator
from datetime import datetime, timezone

import numba
import numpy as np

import gear
from benchmarks.cases import GROUPS
from benchmarks.data import STEPS, transitions
from benchmarks.measure import Measurement, WrongResult, show, write

LEAST_ROUNDS = 5


def machine() -> dict[str, object]:
    """Facts every figure needs beside it."""
    model = "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "gear": gear.__version__,
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def wanted(only: str) -> Iterator[Measurement]:
    """The measurements whose name contains `only`; what comes after the last one of a group is not set up."""
    data = transitions(STEPS)
    for names, make in GROUPS:
        left = sum(only in name for name in names)
        if not left:
            continue
        with contextlib.closing(make(data)) as made:  # type: ignore[type-var]
            for measurement in made:
                if only in measurement.name:
                    yield measurement
                    left -= 1
                    if not left:
                        break


def _terminated(*_: object) -> None:
    raise SystemExit(1)


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help=f"interleaved rounds (default 7, least {LEAST_ROUNDS})")
    parser.add_argument("--only", default="", help="only measurements whose name contains this")
    parser.add_argument("--json", default="", help="append the records to this file as JSON lines")
    options = parser.parse_args()
    if options.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds {options.rounds}: fewer than {LEAST_ROUNDS} rounds make no figure")
    names = [name for group, _ in GROUPS for name in group]
    if not any(options.only in name for name in names):
        parser.error(f"--only {options.only}: no such measurement; there are {', '.join(names)}")
    signal.signal(signal.SIGTERM, _terminated)  # so that servers are stopped
    facts = machine()
    print(", ".join(f"{k} {v}" for k, v in facts.items()), flush=True)
    done: list[Measurement] = []
    try:
        for measurement in wanted(options.only):
            measurement.run(options.rounds)
            print(show(measurement), flush=True)
            done.append(measurement)
    except WrongResult as error:
        print(f"WRONG: {error}", flush=True)
        sys.exit(1)
    finally:
        print(f"load at the end {os.getloadavg()[0]:.2f}", flush=True)
        if options.json:
            write(options.json, facts, done)


if __name__ == "__main__":
    main()

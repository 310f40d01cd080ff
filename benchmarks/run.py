"""`make bench`: speed of GEAR against what the machine can do and against its peers, measured in the same run.

    python -m benchmarks.run [--peers reverb,cpprb,...] [--only NAME,...] [--rounds 5] [--json FILE]

The peers are installed in environments of their own first (`benchmarks.peers`); one that cannot be is reported. What is
measured is in `benchmarks.suite`. Records are appended to the file as JSON lines, from which `benchmarks.report` makes
`docs/performance.md`. The exit code is 1 only if a result was wrong, never because of a figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import numba
import numpy as np
import zmq

import gear
from benchmarks.measure import Finding, Measurement, WrongResult
from benchmarks.peers import NAMES
from benchmarks.peers.remote import Peers
from benchmarks.show import show
from benchmarks.suite.groups import GROUPS
from benchmarks.workloads import STEPS, transitions

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
        "pyzmq": zmq.__version__,
        "gear": gear.__version__,
        "cpu": model,
        "cores": os.cpu_count(),
    }


def chosen(only: str, names: tuple[str, ...]) -> list[str]:
    """Those of the names that contain one of the words in `only`, which commas separate."""
    return [name for name in names if any(word in name for word in only.split(","))]


def wanted(only: str, peers: Peers) -> Iterator[Measurement | Finding]:
    """The measurements asked for, with the peers that can do them; what comes after the last one is not set up."""
    data = transitions(STEPS)
    for names, make in GROUPS:
        left = len(chosen(only, names))
        if not left:
            continue
        with contextlib.closing(make(data)) as made:  # type: ignore[type-var]
            for measurement in made:
                if chosen(only, (measurement.name,)):
                    peers.join(measurement)
                    yield measurement
                    left -= 1
                    if not left:
                        break
        peers.rest()


def _terminated(*_: object) -> None:
    raise SystemExit(1)


def options() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help=f"interleaved rounds (default and least {LEAST_ROUNDS})")
    parser.add_argument("--only", default="", help="only measurements whose name contains one of these words (a,b)")
    parser.add_argument("--peers", default="", help=f"peers to measure beside, of {','.join(NAMES)}")
    parser.add_argument("--json", default="", help="append the records to this file as JSON lines")
    given = parser.parse_args()
    if given.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds {given.rounds}: fewer than {LEAST_ROUNDS} rounds make no figure")
    names = tuple(name for group, _ in GROUPS for name in group)
    if not chosen(given.only, names):
        parser.error(f"--only {given.only}: no such measurement; there are {', '.join(names)}")
    given.peers = [name for name in given.peers.split(",") if name]
    if unknown := set(given.peers) - set(NAMES):
        parser.error(f"--peers: no such peer: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return given


def main() -> None:
    """Run what was asked for and print it."""
    given = options()
    signal.signal(signal.SIGTERM, _terminated)  # so that servers are stopped
    began, wrong = time.monotonic(), 0
    peers = Peers(given.peers)
    facts = machine() | {"peers": peers.versions, "missing": peers.missing}
    for name, value in facts.items():
        print(f"{name}: {value}")
    with contextlib.ExitStack() as stack:
        stack.callback(peers.rest)
        file = stack.enter_context(open(given.json or os.devnull, "a"))
        for measurement in wanted(given.only, peers):
            start = time.monotonic()
            load = os.getloadavg()[0]
            try:
                measurement.run(given.rounds)
            except WrongResult as error:
                measurement.wrong.append(f"gear: {error}")
                record = {"measurement": measurement.name, "work": measurement.work, "wrong": measurement.wrong}
            else:
                record = measurement.record()
            record |= {"load": round(load, 2), "seconds": round(time.monotonic() - start, 2)}
            wrong += len(measurement.wrong)
            print(show(record), flush=True)
            file.write(json.dumps({**facts, **record}) + "\n")
            file.flush()
    print(f"{time.monotonic() - began:.0f} s, load at the end {os.getloadavg()[0]:.2f}, {wrong} wrong results")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()

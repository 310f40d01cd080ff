"""What persistence costs inserts and samples: ``python -m benchmarks.persistence --rounds 40``.

GEAR as it is, ready to go on after a crash and with checkpoints configured, beside the same build whose commits write
no journal and no checksums (`unguarded`), each embedded in a process and as a server. Users have no such option: it
would cost more thought than it saves time. Both are asked in turns, for a fifth of a second each, the one that begins
changing; a round's figure is the one's throughput over the other's. The bar is 5 % for the median of all rounds, by
the processor's time per operation, which what else the machine does hardly touches, and by the clock.
"""

from __future__ import annotations

import argparse
import os
import secrets
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BAR = 0.05
SLICE = 0.2
"""Seconds of one kind of work at a time."""

STEPS, MANY = 50, 64
KINDS = ("insert", "insert many", "sample")
TICKS = os.sysconf("SC_CLK_TCK")


def table() -> Any:
    """Windows with priorities, on trajectories so short that their rows cost little: what is kept for them shows."""
    import gear

    columns = [
        gear.Column("obs", (17,)),
        gear.Column("action", (6,)),
        gear.Column("reward"),
        gear.Column("done", (), "bool"),
    ]
    sampler = gear.Prioritized(0.6)
    return gear.Table("t", columns, gear.Steps(200_000), item=gear.Window(16), sampler=sampler, mean_length=STEPS)


def work(client: Any) -> dict[str, Callable[[], int]]:
    """By its name what is done once; how many operations that is."""
    rows = {
        "obs": np.zeros((STEPS, 17), np.float32), "action": np.zeros((STEPS, 6), np.float32),
        "reward": np.zeros(STEPS, np.float32), "done": np.zeros(STEPS, bool),
    }  # fmt: skip
    packed = [rows] * MANY

    def insert() -> int:
        client.insert(rows)
        return 1

    def insert_many() -> int:
        client.insert_many(packed)
        return MANY

    def sample() -> int:
        client.sample(256)
        return 1

    return dict(zip(KINDS, (insert, insert_many, sample), strict=True))


def measured(do: Callable[[], int], cpu: Callable[[], float], seconds: float) -> tuple[float, float]:
    """Operations per second, and seconds of the processor for each."""
    done, began, before = 0, time.perf_counter(), cpu()
    while time.perf_counter() - began < seconds:
        done += do()
    return done / (time.perf_counter() - began), (cpu() - before) / done


def embedded() -> None:
    """A child: does what its standard input names, and says how it went."""
    import gear

    with gear.embedded([table()]) as client:
        todo = work(client)
        for _ in range(2):
            for _ in range(4200 // MANY):  # full, and evicting
                todo["insert many"]()
            for do in todo.values():
                do()
        print("ready", flush=True)
        for line in sys.stdin:
            print(*measured(todo[line.strip()], time.process_time, SLICE), flush=True)


class Embedded:
    """A process with a table of its own; `module`: what is run."""

    def __init__(self, guarded: bool, environment: dict[str, str]) -> None:
        first = "" if guarded else "import benchmarks.unguarded; "
        code = first + "from benchmarks.persistence import embedded; embedded()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ready(self) -> None:
        """Wait until it has compiled and is full."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit("a process of the benchmark ended")

    def measure(self, kind: str) -> tuple[float, float]:
        """See `measured`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(kind + "\n")
        self._process.stdin.flush()
        rate, cpu = self._process.stdout.readline().split()
        return float(rate), float(cpu)

    def close(self) -> None:
        """End it."""
        self._process.communicate()


class Served:
    """A server with checkpoints configured, and a client of it here."""

    def __init__(self, guarded: bool, environment: dict[str, str], folder: Path) -> None:
        module = "gear.server" if guarded else "benchmarks.unguarded"
        options = ["--port", "0", "--discard", "--name", f"bench-{secrets.token_hex(4)}", "--log-level", "warning"]
        command = [sys.executable, "-m", module, "--devices", "cpu", *options]
        command += ["--checkpoint", str(folder), "--checkpoint-every", "1h"] if guarded else []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)

    def ready(self) -> None:
        """Wait for the server, connect and fill the table."""
        import gear

        assert self._process.stdout is not None
        said, deadline = b"", time.monotonic() + 300
        while b"address=" not in said or not said.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise SystemExit(f"the server was not ready; it said {said!r}")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise SystemExit(f"the server ended; it said {said!r}")
            said += more
        self._client = gear.connect(said.decode().split("address=")[1].split()[0])
        self._client.create_table(table())
        self._work = work(self._client)
        for _ in range(2 * 4200 // MANY):
            self._work["insert many"]()
        for do in self._work.values():
            do()
        self._stat = Path(f"/proc/{self._client.info()['pid']}/stat")

    def _cpu(self) -> float:
        """Of the shard; what the client does is the same on both sides."""
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def measure(self, kind: str) -> tuple[float, float]:
        """See `measured`."""
        return measured(self._work[kind], self._cpu, 2 * SLICE)

    def close(self) -> None:
        """End it."""
        if hasattr(self, "_client"):
            self._client.close()
        self._process.terminate()
        self._process.communicate()


def compare(pair: list[Any], rounds: int) -> Iterator[tuple[str, float, float, float]]:
    """By kind of work: throughput with persistence over that without by the clock, by the processor, and the first."""
    rates: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    spent: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS:
            found: list[tuple[float, float]] = [(0.0, 0.0)] * 2
            for which in (0, 1) if number % 2 else (1, 0):
                found[which] = pair[which].measure(kind)
            rates[kind].append((found[0][0], found[1][0]))
            spent[kind].append([found[0][1], found[1][1]])
    for kind in KINDS:
        clock = statistics.median(guarded / bare for guarded, bare in rates[kind])
        cpu = statistics.median(bare / guarded if guarded else 1.0 for guarded, bare in spent[kind])
        yield kind, clock, cpu, statistics.median(one[0] for one in rates[kind])


def main() -> None:
    """Print what was found; the exit code is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    folder, good = Path(tempfile.mkdtemp(prefix="gear-bench-")), True
    bare = os.environ | {"NUMBA_CACHE_DIR": str(folder / "kernels")}
    try:
        for name, make in (
            ("embedded", lambda guarded, env: Embedded(guarded, env)),
            ("server", lambda guarded, env: Served(guarded, env, folder / "saved")),
        ):
            pair = [make(True, dict(os.environ)), make(False, bare)]
            try:
                for one in reversed(pair):
                    one.ready()
                for kind, clock, cpu, rate in compare(pair, options.rounds):
                    ok = cpu >= 1 - BAR and clock >= 1 - BAR
                    good &= ok
                    said = f"{rate:.0f}/s, {clock:.1%} of without by the clock, {cpu:.1%} by the processor"
                    load = f"load {os.getloadavg()[0]:.1f}"
                    print(
                        f"{'reached' if ok else 'MISSED '} {name}, {kind}: {said}; bar {1 - BAR:.0%}; {load}",
                        flush=True,
                    )
            finally:
                for one in pair:
                    one.close()
    finally:
        shutil.rmtree(folder)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

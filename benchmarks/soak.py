"""`make soak`: writers and readers against a real server for a while; every trajectory and every count checked.

    python -m benchmarks.soak [--seconds 30] [--seed 0]

Four writers and two readers, each a process, share three small tables that are full and evict all the time. In
the middle one writer and one reader are stopped past the client timeout and continued. One line per property says
what held; the exit code is 1 if any did not.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import gear
from benchmarks.soak_actors import TABLES

WRITERS = ("insert", "pipelined", "many", "writer")
READERS = ("sample", "select")
STOPPED = 2.5
"""Seconds that a process is stopped; the server's client timeout is 1."""


class Soak:
    """The processes of one run, and its verdicts."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.failed = False
        self.processes: dict[str, subprocess.Popen[str]] = {}
        command = [sys.executable, "-m", "gear.server", "--devices", "cpu", "--port", "0", "--discard"]
        command += ["--name", f"soak-{secrets.token_hex(4)}", "--client-timeout", "1", "--log-level", "warning"]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        self.address = self.server.stdout.readline().split("address=")[1].split()[0]

    def verdict(self, what: str, ok: bool, figures: object = "") -> None:
        """Say whether a property held."""
        self.failed |= not ok
        print(f"{'ok    ' if ok else 'FAILED'} {what}  {figures}", flush=True)

    def start(self, role: str, number: int) -> None:
        """Start one actor; it ends when its standard input closes, with its account as JSON on standard output."""
        command = [sys.executable, "-m", "benchmarks.soak_actors", self.address, role, str(number), str(self.seed)]
        self.processes[role] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def resident(self) -> int:
        """Resident kB of the server's processes, the segments not counted twice."""
        found = subprocess.run(["pgrep", "-P", str(self.server.pid)], capture_output=True, text=True, check=False)
        total = 0
        for pid in (str(self.server.pid), *found.stdout.split()):
            with open(f"/proc/{pid}/status") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith(("RssAnon", "RssShmem")))
        return total

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def pause(self, client: gear.Client, role: str) -> None:
        """Stop a process past the client timeout; what it holds must stay its own until it goes on."""
        process = self.processes[role]
        process.send_signal(signal.SIGSTOP)
        seen = self.wait_for(lambda: silent(client) > 0, 10.0)
        end = time.monotonic() + STOPPED
        while time.monotonic() < end:
            seen |= silent(client) > 0
            time.sleep(0.1)
        process.send_signal(signal.SIGCONT)
        back = self.wait_for(lambda: silent(client) == 0, 10.0)
        self.verdict(f"{role}: quarantined while stopped, back when continued", seen and back)

    def finish(self, role: str) -> dict[str, int]:
        """End an actor and read its account; an actor that found something wrong has a non-zero exit code."""
        process = self.processes.pop(role)
        try:
            out, _ = process.communicate(timeout=60)  # closes its standard input
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.verdict(f"{role}: ends when told to", False)
            return {}
        account: dict[str, int] = json.loads(out.splitlines()[-1]) if out.strip() else {}
        self.verdict(f"{role}: every check held", process.returncode == 0, account)
        return account

    def close(self) -> None:
        """End everything."""
        for process in (*self.processes.values(), self.server):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in (*self.processes.values(), self.server):
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def silent(client: gear.Client) -> int:
    """Clients that are silent now and hold something."""
    tables = client.info()["tables"].values()
    return sum(t["silent_clients"] for t in tables)


def stored_numbers(client: gear.Client, count: int) -> set[int]:
    """Numbers of the trajectories of table "whole", by drawing until all were seen."""
    seen: set[int] = set()
    ids: dict[int, int] = {}
    for _ in range(500):
        batch = client.sample(256, "whole", timeout=10.0)
        for k, item in enumerate(batch.ids.tolist()):
            number = int(batch["number"][k, 0])
            if ids.setdefault(number, item) != item:
                raise SystemExit(f"trajectory {number} is stored twice")
            seen.add(number)
        if len(seen) == count:
            break
    return seen


def run(seconds: float, seed: int) -> bool:
    """One soak; whether every property held."""
    print(f"seed {seed}, {seconds:g} s, {len(WRITERS)} writers, {len(READERS)} readers")
    soak = Soak(seed)
    try:
        with gear.connect(soak.address) as client:
            for table in TABLES:
                client.create_table(table)
            for number, role in enumerate((*WRITERS, *READERS)):
                soak.start(role, number)
            start = time.monotonic()
            filled = soak.wait_for(
                lambda: all(t["evicted_trajectories"] > 0 for t in client.info()["tables"].values()), 60.0
            )
            soak.verdict("every table is full and evicts", filled)
            warm = soak.resident()
            time.sleep(max(0.0, (seconds - (time.monotonic() - start)) / 2 - STOPPED))
            soak.pause(client, "pipelined")
            soak.pause(client, "select")
            time.sleep(max(0.0, seconds - (time.monotonic() - start)))
            end = soak.resident()
            took = time.monotonic() - start
            for role in READERS:
                soak.finish(role)
            accounts = [soak.finish(role) for role in WRITERS]
            info = client.info()["tables"]
            for table in TABLES:
                name, figures = table.name, info[table.name]
                acknowledged = sum(a.get(name, 0) for a in accounts)
                stored, evicted = figures["trajectories"], figures["evicted_trajectories"]
                inserted = figures["inserted_trajectories"]
                soak.verdict(
                    f"{name}: acknowledged = inserted = stored + evicted",
                    acknowledged == inserted == stored + evicted,
                    f"{acknowledged} = {inserted} = {stored} + {evicted}; {inserted / took:.0f} trajectories/s, "
                    f"{figures['sampled_items'] / took:.0f} samples/s",
                )
            count = info["whole"]["trajectories"]
            seen = stored_numbers(client, count)
            soak.verdict("whole: each stored trajectory once", len(seen) == count, f"{len(seen)} of {count}")

            def left() -> dict[str, int]:
                names = ("leased_blocks", "held_blocks", "quarantined_blocks", "pins", "reserved_items")
                return {f"{t}.{n}": f[n] for t, f in client.info()["tables"].items() for n in names if f[n]}

            soak.verdict("nothing is held by clients that ended", soak.wait_for(lambda: not left(), 10.0), left())
            soak.verdict("memory is flat", end - warm < 0.05 * warm + 8192, f"{warm} kB, {end} kB at the end")
    finally:
        soak.close()
    return not soak.failed


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "little"))
    options = parser.parse_args()
    sys.exit(0 if run(options.seconds, options.seed) else 1)


if __name__ == "__main__":
    main()

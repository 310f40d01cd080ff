"""`make soak`: writers and readers against a real server for a while; every trajectory and every count checked.

    python -m benchmarks.soak [--seconds 30] [--seed 0] [--path shm|tcp|mixed] [--devices cpu:2] [--writers 8]

Writers and two readers, each a process, share three small tables that are full and evict all the time. In
the middle one writer and one reader are stopped past the client timeout and continued. One line per property says
what held; the exit code is 1 if any did not.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gear
from benchmarks import service
from benchmarks.soak_actors import TABLES
from benchmarks.soak_audit import Stored, kept, leases, quarantined
from benchmarks.soak_memory import Memory

WRITERS = ("insert", "pipelined", "many", "writer")
READERS = {"sample": 901, "select": 902}
STOPPED = 3.0
"""Seconds that a writer and a reader are stopped together; the server's client timeout is less."""
AFTER = 2.0
"""Seconds that all go on at least after that."""
HOLDINGS = ("leased_blocks", "held_blocks", "quarantined_blocks", "pins", "reserved_items")


class Soak:
    """The processes of one run, and its verdicts."""

    def __init__(self, seed: int, path: str, devices: str) -> None:
        self.seed, self.mixed, self.devices = seed, path == "mixed", devices
        self.path = "shm" if self.mixed else path
        """Of the actors that are stopped."""
        self.failed = False
        self.address = ""
        self.segments: set[str] = set()
        self.ready: set[str] = set()
        self.name = f"soak-{secrets.token_hex(4)}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.memory: Memory | None = None

    def verdict(self, what: str, ok: bool, figures: object = "") -> None:
        """Say whether a property held."""
        self.failed |= not ok
        print(f"{'ok    ' if ok else 'FAILED'} {what}  {figures}", flush=True)

    def serve(self, timeout: float = 60.0) -> None:
        """Start the server and wait for its ready line."""
        # A client over tcp is given up after some of these: not while it is stopped.
        silence = "1" if self.path == "shm" else "2"
        self.server, self.address = service.start(
            self.name, "--client-timeout", silence, "--devices", self.devices, timeout=timeout
        )
        self.processes["server"] = self.server

    def start(self, role: str, index: int) -> None:
        """Start one actor; it ends when its standard input closes, with its account as JSON on standard output."""
        path = "tcp" if self.mixed and role not in ("pipelined", "select") and index % 2 else self.path
        arguments = [self.address, role.partition("-")[0], str(index), str(self.seed), path]
        command = [sys.executable, "-m", "benchmarks.soak_actors", *arguments]
        self.processes[role] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def resident(self) -> dict[str, int]:
        """Size of the shards in kB: all that is resident, and what of it is no file (code that is loaded late is).

        The spare process that waits to take the place of one that dies is none: it maps no table.
        """
        serving = {pid: folders for pid, folders in self._maps().items() if folders}
        assert serving, "the server has no shard process"
        found = {"all": 0, "own": 0}
        for pid in serving:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    found["all"] += int(line.split()[1])
                elif line.startswith(("RssAnon", "RssShmem")):
                    found["own"] += int(line.split()[1])
        return found

    def mapped(self) -> set[str]:
        """Folders of /dev/shm that the shards have mapped: their own, whatever else there is."""
        return set().union(*self._maps().values())

    def _maps(self) -> dict[str, set[str]]:
        """The server's processes, and which folders of /dev/shm each has mapped."""
        found: dict[str, set[str]] = {}
        for pid in Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split():
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            folders = {line.partition("/dev/shm/")[2].split("/")[0] for line in lines}
            found[pid] = {folder for folder in folders if folder.startswith("gear-")}
        return found

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true in time; at once no longer if an actor ended by itself."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self.ended():
                return condition()
            time.sleep(0.05)
        return True

    def begun(self, *roles: str) -> bool:
        """Whether these have said that their first round is over: kernels are loaded, pins are held."""
        for role in set(roles) - self.ready:
            out = self.processes[role].stdout
            if out is not None and select.select([out], [], [], 0)[0]:
                os.read(out.fileno(), 1)  # one byte, see `Rounds`
                self.ready.add(role)
        return self.ready >= set(roles)

    def ended(self) -> list[str]:
        """Processes that should run and do not."""
        return [role for role, process in self.processes.items() if process.poll() is not None]

    def rest(self, until: float) -> None:
        """Wait for a time of the monotonic clock, or until a process ended that should run."""

        def over() -> bool:
            if self.memory is not None:
                self.memory.look()
            return time.monotonic() >= until

        self.wait_for(over, until - time.monotonic() + 1)

    def stop(self, client: gear.Client, writer: str, reader: str) -> None:
        """Stop both past the client timeout; what they hold must stay theirs until they go on."""
        self.processes[reader].send_signal(signal.SIGSTOP)  # first and alone: readers lease nothing
        pinned = self.wait_for(lambda: total(client, "silent_clients") > 0, 10.0)
        self.processes[writer].send_signal(signal.SIGSTOP)
        end = time.monotonic() + STOPPED
        if self.path == "shm":
            self.wait_for(lambda: on_every_shard(quarantined(client)), STOPPED)
        else:
            self.wait_for(lambda: total(client, "silent_clients") > 3, STOPPED)  # in one table at least both
        held, before = quarantined(client), leases(client)
        self.rest(end)
        after, now = leases(client), quarantined(client)
        same = kept(before, after, held) and now == held
        for role in (writer, reader):
            self.processes[role].send_signal(signal.SIGCONT)
        back = self.wait_for(lambda: total(client, "silent_clients") == 0, 10.0)
        self.verdict(f"{reader}: seen silent with its pins while stopped", pinned)
        if self.path == "shm":
            shown = {f"{name} on shard {shard}": blocks for (name, shard), blocks in held.items() if blocks}
            self.verdict(f"{writer}: its blocks are in quarantine while stopped", sum(held.values()) > 0, shown)
            self.verdict(f"{writer}: its blocks went to nobody meanwhile", same)
        else:
            self.verdict(f"{writer}: holds no blocks while stopped", sum(held.values()) == 0, held)
        self.verdict(f"{writer}, {reader}: both are back once continued", back)

    def finish(self, role: str) -> dict[str, Any]:
        """End an actor and read its account; an actor that found something wrong has a non-zero exit code."""
        process = self.processes[role]
        try:
            out, _ = process.communicate(timeout=60)  # closes its standard input
        except subprocess.TimeoutExpired:
            self.verdict(f"{role}: ends when told to", False)
            return {}
        del self.processes[role]
        account: dict[str, Any] = json.loads(out.splitlines()[-1]) if out.strip() else {}
        self.verdict(f"{role}: every check held", process.returncode == 0 and bool(account), account)
        return account

    def ledger(self, info: dict[str, Any], accounts: dict[int, dict[str, Any]], took: float) -> None:
        """What was acknowledged is what was inserted is what is stored or was evicted."""
        for table in TABLES:
            name, figures = table.name, info[table.name]
            claimed = sum(account.get(name, 0) for account in accounts.values())
            inserted, stored = figures["inserted_trajectories"], figures["trajectories"]
            evicted = figures["evicted_trajectories"]
            self.verdict(
                f"{name}: acknowledged = inserted = stored + evicted",
                claimed == inserted == stored + evicted,
                f"{claimed} = {inserted} = {stored} + {evicted}; {inserted / took:.0f} trajectories/s, "
                f"{figures['inserted_steps'] / took:.0f} steps/s, {figures['sampled_items'] / took:.0f} samples/s",
            )

    def read_back(self, client: gear.Client, info: dict[str, Any], accounts: dict[int, dict[str, Any]]) -> None:
        """Read all that each table stores: each row once, each trajectory whole, each acknowledged."""
        for table in TABLES:
            figures = info[table.name]
            stored = Stored(client, table.name, figures["items"], self.seed)
            faults = stored.faults(figures["trajectories"], accounts)
            wrong = {what: found for what, found in faults.items() if found}
            seen = f"{len(stored.ids)} items of {figures['trajectories']} trajectories"
            self.verdict(f"{table.name}: stored once, whole and acknowledged", not wrong, wrong or seen)

    def close(self) -> None:
        """End everything, the server last, whatever else is signalled meanwhile; nothing may be left."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
            service.stop(process)
        left = sorted(name for name in self.segments if Path("/dev/shm", name).exists())
        gone = bool(self.segments) and not left
        self.verdict("nothing is left in shared memory", gone, left or f"folders looked for: {len(self.segments)}")


def on_every_shard(held: dict[tuple[str, int], int]) -> bool:
    """Whether every shard has noticed that the writer is silent: it holds blocks on each."""
    return {shard for (_, shard), blocks in held.items() if blocks} == {shard for _, shard in held}


def total(client: gear.Client, figure: str) -> int:
    """Sum of a figure over the tables."""
    return sum(table[figure] for table in client.info(timeout=10.0)["tables"].values())


def writers_of(count: int) -> dict[str, int]:
    """So many writers, of all kinds in turn: their index by role."""
    kinds = [(WRITERS[k % len(WRITERS)], k // len(WRITERS)) for k in range(count)]
    return {kind + f"-{again + 1}" * bool(again): k + 1 for k, (kind, again) in enumerate(kinds)}


def run(seconds: float, seed: int, path: str = "shm", devices: str = "cpu", count: int = len(WRITERS)) -> bool:
    """One soak; whether every property held."""
    writers = writers_of(count)
    print(f"seed {seed}, {seconds:g} s, {count} writers, {len(READERS)} readers over {path}, {devices}", flush=True)
    soak = Soak(seed, path, devices)
    try:
        soak.serve()
        with gear.connect(soak.address) as client:
            for table in TABLES:
                client.create_table(table)
            soak.segments = soak.mapped()
            for role, index in (READERS | writers).items():
                soak.start(role, index)

            def evicting() -> bool:
                return all(t["evicted_trajectories"] > 0 for t in client.info()["tables"].values())

            soak.verdict("every table is full and evicts", soak.wait_for(evicting, 60.0))
            soak.verdict("every reader reads", soak.wait_for(lambda: soak.begun(*READERS), 60.0))
            start = time.monotonic()  # of the run proper: all have started
            memory = soak.memory = Memory(soak.resident)
            soak.rest(start + seconds / 3)
            soak.rest(start + max(seconds / 3, seconds / 2 - STOPPED))
            soak.stop(client, "pipelined", "select")
            soak.rest(max(start + seconds, time.monotonic() + AFTER))
            flat = memory.verdict()
            soak.verdict("no actor ended by itself", not soak.ended(), soak.ended() or "")
            readings = {role: soak.finish(role) for role in READERS}
            writings = {index: soak.finish(role) for role, index in writers.items()}
            for role, account in (("pipelined", writings[writers["pipelined"]]), ("select", readings["select"])):
                stopped = any(pause >= STOPPED for _, pause in account.get("pauses", []))
                went_on = stopped and account.get("after", 0) > 0
                soak.verdict(f"{role}: went on after it was stopped", went_on, f"{account.get('after', 0)} rounds")
            info, took = client.info()["tables"], time.monotonic() - start
            soak.ledger(info, writings, took)
            soak.read_back(client, info, writings)

            def left() -> dict[str, int]:
                tables = client.info()["tables"].items()
                return {f"{name}.{figure}": f[figure] for name, f in tables for figure in HOLDINGS if f[figure]}

            soak.verdict("nothing is held by clients that ended", soak.wait_for(lambda: not left(), 15.0), left())
            soak.verdict("memory of the shards is flat", *flat)
    finally:
        soak.close()
    return not soak.failed


def _terminated(*_: object) -> None:
    raise SystemExit(1)


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "little"))
    parser.add_argument("--path", choices=("shm", "tcp", "mixed"), default="shm", help="data path of the actors")
    parser.add_argument("--devices", default="cpu", help="of the server: cpu:2 for two shards")
    parser.add_argument("--writers", type=int, default=len(WRITERS), help="writer processes, at least 4")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    ok = run(options.seconds, options.seed, options.path, options.devices, max(len(WRITERS), options.writers))
    what = f"soak of {options.seconds:g} s over {options.path} on {options.devices} with seed {options.seed}"
    print(f"{what}: {'passed' if ok else 'FAILED'}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()

"""A run of `benchmarks.soak` or `benchmarks.killer`: its server, its actors, and its verdicts."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gear
from benchmarks import service
from benchmarks.soak_account import Accounts, Written
from benchmarks.soak_audit import Stored

WRITERS = ("insert", "pipelined", "many", "writer")
HOLDINGS = ("leased_blocks", "held_blocks", "quarantined_blocks", "pins", "reserved_items")


class Run:
    """The processes of one run, and its verdicts."""

    def __init__(self, kind: str, seed: int, path: str, devices: str, tables: Sequence[gear.Table]) -> None:
        self.seed, self.mixed, self.devices, self.tables = seed, path == "mixed", devices, tables
        self.path = "shm" if self.mixed else path
        """Of the actors that are stopped."""
        self.failed = False
        self.address = ""
        self.segments: set[str] = set()
        self.ready: set[str] = set()
        self.name = f"{kind}-{secrets.token_hex(4)}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        """Of the actors' accounts."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lives: dict[str, int] = {}
        """How often each actor was started."""
        self.prefix: list[str] = []
        """What the command of an actor begins with, say to run it somewhere else."""

    @property
    def shards(self) -> int:
        """How many the server has."""
        return int(self.devices.partition(":")[2] or 1)

    def verdict(self, what: str, ok: bool, figures: object = "") -> None:
        """Say whether a property held."""
        self.failed |= not ok
        print(f"{'ok    ' if ok else 'FAILED'} {what}  {figures}", flush=True)

    def start(self, role: str, index: int, tables: Sequence[str]) -> None:
        """Start one actor; it ends when its standard input closes, with its account as JSON on standard output."""
        path = "tcp" if self.mixed and role not in ("pipelined", "select") and index % 2 else self.path
        self.lives[role] = self.lives.get(role, 0) + 1
        self.ready.discard(role)
        kind, life = role.partition("-")[0], str(self.lives[role])
        arguments = [self.address, kind, str(index), life, str(self.seed), path, str(self.account(role)), *tables]
        command = [*self.prefix, sys.executable, "-m", "benchmarks.soak_actors", *arguments]
        self.processes[role] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def account(self, role: str) -> Path:
        """Where an actor's account stands."""
        return self.folder / role

    def written(self, writers: dict[str, int]) -> Accounts:
        """What the writers were acknowledged."""
        return {index: Written(self.account(role)) for role, index in writers.items()}

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true in time; at once no longer if an actor ended by itself."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self.ended():
                return condition()
            time.sleep(0.05)
        return True

    def evicting(self, client: gear.Client) -> bool:
        """Whether the tables that are to be full all evict."""
        figures = client.info(timeout=30.0)["tables"]
        return all(figures[name]["evicted_trajectories"] > 0 for name in ("whole", "windows", "rows"))

    def begun(self, *roles: str) -> bool:
        """Whether these have said that their first round is over: kernels are loaded, pins are held."""
        for role in set(roles) - self.ready:
            out = self.processes[role].stdout
            readable = out is not None and select.select([out], [], [], 0)[0]
            if out is not None and readable and os.read(out.fileno(), 1):  # one byte, see `Rounds`; none from the dead
                self.ready.add(role)
        return self.ready >= set(roles)

    def unheard(self, role: str) -> None:
        """Forget what it has said so far: `begun` is about what it does from now on."""
        self.ready.discard(role)
        out = self.processes[role].stdout
        while out is not None and select.select([out], [], [], 0)[0] and os.read(out.fileno(), 4096):
            pass

    def ended(self) -> list[str]:
        """Processes that should run and do not."""
        return [role for role, process in self.processes.items() if process.poll() is not None]

    def rest(self, until: float) -> None:
        """Wait for a time of the monotonic clock, or until a process ended that should run."""
        self.wait_for(lambda: time.monotonic() >= until, until - time.monotonic() + 1)

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

    def ledger(self, info: dict[str, Any], accounts: Accounts, took: float) -> None:
        """What was acknowledged is what was inserted is what is stored or was evicted."""
        for table in self.tables:
            name, figures = table.name, info[table.name]
            known = [account.acknowledged(name) for account in accounts.values()]
            claimed, begun = sum(int(k.sum()) for k in known), sum(map(len, known))
            inserted, stored = figures["inserted_trajectories"], figures["trajectories"]
            gone = figures["evicted_trajectories"] + figures["consumed_trajectories"]
            unknown = f" to {begun} (unknown: killed before the answer)" * (begun > claimed)
            self.verdict(
                f"{name}: acknowledged = inserted = stored + evicted",
                claimed <= inserted <= begun and inserted == stored + gone and (name != "kept" or not gone),
                f"{claimed}{unknown} = {inserted} = {stored} + {gone}; {inserted / took:.0f} trajectories/s, "
                f"{figures['inserted_steps'] / took:.0f} steps/s, {figures['sampled_items'] / took:.0f} samples/s",
            )

    def read_back(self, client: gear.Client, info: dict[str, Any], accounts: Accounts) -> None:
        """Read all that each table stores: each row once, each trajectory whole, each acknowledged, none missing."""
        for table in self.tables:
            if table.consumers:  # what consumers acknowledged has left it
                continue
            figures = info[table.name]
            stored = Stored(client, table.name, figures["items"], self.seed)
            early = figures["evicted_early"]
            faults = stored.faults(figures["trajectories"], accounts, self.shards, early)
            wrong = {what: found for what, found in faults.items() if found}
            seen = f"{len(stored.ids)} items of {figures['trajectories']} trajectories, {early} left early"
            self.verdict(f"{table.name}: stored once, whole and acknowledged", not wrong, wrong or seen)

    def released(self, client: gear.Client, seconds: float = 15.0) -> None:
        """Nothing is held for anybody any more."""

        def left() -> dict[str, int]:
            tables = client.info(timeout=30.0)["tables"].items()
            return {f"{name}.{figure}": f[figure] for name, f in tables for figure in HOLDINGS if f[figure]}

        self.verdict("nothing is held by clients that ended", self.wait_for(lambda: not left(), seconds), left())

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
        shutil.rmtree(self.folder, ignore_errors=True)


def total(client: gear.Client, figure: str) -> int:
    """Sum of a figure over the tables."""
    return sum(table[figure] for table in client.info(timeout=10.0)["tables"].values())


def writers_of(count: int) -> dict[str, int]:
    """So many writers, of all kinds in turn: their index by role."""
    kinds = [(WRITERS[k % len(WRITERS)], k // len(WRITERS)) for k in range(count)]
    return {kind + f"-{again + 1}" * bool(again): k + 1 for k, (kind, again) in enumerate(kinds)}


def ends(number: int = 1) -> None:
    """End in order at SIGTERM, so that a run ends its own processes."""

    def terminated(*_: object) -> None:
        raise SystemExit(number)

    signal.signal(signal.SIGTERM, terminated)

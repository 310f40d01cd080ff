"""Writers, readers and consumers against a server of which a random process is killed every second.

    python -m benchmarks.killer [--seconds 180] [--seed 0] [--path mixed|shm|tcp] [--devices cpu:2] [--checkpoints]

Supervisor, shards (also those that are just being started), writers, readers and consumers: each may be the next one,
by SIGKILL; now and then a client is stopped instead, and continued when the server has taken it for silent. The
supervisor starts shards again; this program starts the supervisor and the actors again, with the accounts that they
had. At the end, when nothing has been killed for a while: what was acknowledged is stored or was evicted, once, whole;
from the table that is never full nothing is missing; every trajectory of the queue was acknowledged once by each
consumer and none was skipped. One line per property says what held; the exit code is 1 if any did not. What a process
was doing when it was killed is unknown: it may have happened once. With `--checkpoints` the server saves every two
seconds, and every checkpoint that is there at the end is whole.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import gear
from benchmarks import service
from benchmarks.killer_pulse import Pulse
from benchmarks.soak_account import Accounts, Consumed
from benchmarks.soak_actors import GAVE_UP
from benchmarks.soak_audit import queue_faults
from benchmarks.soak_rows import KILLED
from benchmarks.soak_run import WRITERS, Run, ends, writers_of
from gear.server.runtime import runtime_directory
from gear.storage import manifest, shelf

READERS = {"sample": 901, "sample-2": 902, "select": 903}
CONSUMERS = {"trainer": 951, "trainer-2": 952, "reference": 953}
READ = [table.name for table in KILLED if not table.consumers]
QUEUES = [table.name for table in KILLED if table.consumers]
MARK = "GEAR_KILLER"
"""Variable in the environment of every process of a run, by which they are found: whoever started them may be dead."""
EVERY = 1.0
"""Seconds between two kills."""
FORGIVING = 8.0
"""The server's client timeout in seconds: after five of them each end gives the other up, and starts are killed too."""
MERCY = 3.0
"""Seconds that the server may be away until it is left alone: else clients would give it up, as they should."""
STOPS = 0.2
"""How often a client is stopped instead of killed, for up to twice that long: then it is silent, and wakes up."""
QUIET = 60.0
"""Seconds that everything has to work again after the last one."""


class Killer(Run):
    """A run in which processes are killed."""

    def __init__(self, seed: int, path: str, devices: str, writers: int, saving: bool) -> None:
        super().__init__("killer", seed, path, devices, KILLED)
        self.random = Random(seed)
        self.writers = writers_of(writers)
        self.kills: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.pulse: Pulse | None = None
        self.starting = 0.0
        """Since when the supervisor is being started again; 0 if it is ready."""
        self.given_up = 0
        """Clients that ended because the server was away for long."""
        self.asleep: dict[str, float] = {}
        """Clients that are stopped, and until when (`time.monotonic()`)."""
        self.doomed: set[str] = set()
        """Roles whose process was killed here and was not started again yet."""
        self.saved = self.folder / "saved"
        self.saving = ["--checkpoint", str(self.saved), "--checkpoint-every", "2s", "--keep", "3"] if saving else []
        os.environ[MARK] = self.name

    def serve(self) -> None:
        """Start the server, or start it again where it was."""
        port = self.address.rpartition(":")[2] or "0"
        with (self.folder / "log").open("ab") as log:
            self.processes["supervisor"] = service.launch(
                self.name, "--port", port, "--devices", self.devices, "--client-timeout", str(FORGIVING),
                "--max-restarts", "1000000", *self.saving, stderr=log,
            )  # fmt: skip
        self.starting = time.monotonic() if self.address else 0.0
        self.lives["supervisor"] = self.lives.get("supervisor", 0) + 1

    def tables_of(self, role: str) -> list[str]:
        """What an actor works on."""
        if role in CONSUMERS:
            return QUEUES
        return READ if role in READERS else [table.name for table in KILLED]

    def living(self) -> dict[int, str]:
        """Every process of this run but this one, and what it is."""
        mark, found = f"{MARK}={self.name}".encode(), {}
        roles = {process.pid: role for role, process in self.processes.items()}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = mark in (folder / "environ").read_bytes().split(b"\0")
                shard = b"gear.server.shard" in (folder / "cmdline").read_bytes()
            except OSError:  # gone meanwhile, or not ours to read
                continue
            if marked and int(folder.name) != os.getpid():
                found[int(folder.name)] = roles.get(int(folder.name), "shard" if shard else "")
        return {pid: role for pid, role in found.items() if role}

    @property
    def away(self) -> float:
        """Seconds since shards were well, or since a supervisor was started that has not said that it is ready."""
        said = self.processes["supervisor"].stdout
        if self.starting and said is not None and select.select([said], [], [], 0)[0] and os.read(said.fileno(), 4096):
            self.starting = 0.0
        since = time.monotonic() - self.starting if self.starting else 0.0
        return max(since, 0.0 if self.pulse is None else self.pulse.silent)

    def strike(self) -> None:
        """Kill one process, any of them, or stop a client for a while."""
        living = self.living()
        if self.away > MERCY:
            living = {pid: role for pid, role in living.items() if role not in ("supervisor", "shard")} or living
        pid, role = self.random.choice(sorted(living.items()))
        stopped = self.random.random() < STOPS and role in (self.writers | READERS | CONSUMERS)
        try:
            os.kill(pid, signal.SIGSTOP if stopped else signal.SIGKILL)
        except ProcessLookupError:  # it has just ended by itself
            return
        (self.stops if stopped else self.kills)[role.partition("-")[0]] += 1
        if stopped:
            self.asleep[role] = time.monotonic() + self.random.uniform(0, 2 * FORGIVING)
        elif role != "shard":
            self.doomed.add(role)
            self.asleep.pop(role, None)

    def wake(self, all_: bool = False) -> None:
        """Continue the clients whose time has come."""
        for role, until in list(self.asleep.items()):
            if all_ or time.monotonic() >= until:
                self.processes[role].send_signal(signal.SIGCONT)
                del self.asleep[role]

    def mend(self) -> None:
        """Start again what has died; what ended without having been killed is a fault."""
        for role, process in list(self.processes.items()):
            if process.poll() is None:
                continue
            by_itself = role not in self.doomed
            self.doomed.discard(role)
            if process.stdin is not None:
                process.stdin.close()
            assert process.stdout is not None
            process.stdout.close()
            if role == "supervisor":
                if by_itself and process.returncode != 1:  # which says that a shard was killed before it served
                    self.verdict("the server ends only if it or its shard is killed", False, process.returncode)
                self.serve()
            else:
                if by_itself and process.returncode == GAVE_UP and self.pulse is not None and self.pulse.excuses():
                    self.given_up += 1
                elif by_itself:
                    self.verdict(f"{role}: goes on until it is killed", False, f"exit code {process.returncode}")
                self.start(role, (self.writers | READERS | CONSUMERS)[role], self.tables_of(role))

    def disturb(self, seconds: float) -> None:
        """Kill a process every second, at a random instant of it."""
        begin = time.monotonic()
        for second in range(max(1, round(seconds / EVERY))):
            at = begin + (second + self.random.random()) * EVERY
            while time.monotonic() < at:
                time.sleep(0.02)
                self.mend()
                self.wake()
            self.strike()
        self.wake(all_=True)

    def recover(self) -> None:
        """After the last kill everything is started again and works."""
        deadline = time.monotonic() + QUIET
        actors = {*self.writers, *READERS, *CONSUMERS}
        self.ready.clear()
        for role in self.doomed & self.processes.keys():  # what it said before it was killed is no sign of life
            self.processes[role].wait(60)
        self.mend()
        while not self.begun(*actors) and time.monotonic() < deadline:
            time.sleep(0.05)
            self.mend()
        silent = sorted(actors - self.ready)
        self.verdict("everybody works again after the last kill", not silent, silent or "")

    def drained(self, client: gear.Client) -> bool:
        """Whether the queues are empty."""
        figures = client.info(timeout=30.0)["tables"]
        return all(figures[name]["items"] == 0 for name in QUEUES)

    def consumed(self, client: gear.Client, accounts: Accounts) -> None:
        """Each trajectory of a queue was acknowledged by each consumer, once; none is there that nobody wrote."""
        figures = client.info(timeout=30.0)["tables"]
        for name in QUEUES:
            for consumer in ("trainer", "reference"):
                roles = [role for role in CONSUMERS if role.partition("-")[0] == consumer]
                tallies = [Consumed(self.account(role)).tally() for role in roles]
                faults = queue_faults(name, consumer, figures[name], tallies, accounts)
                wrong = {what: found for what, found in faults.items() if found}
                unsure = sum(len(open_) for _, open_ in tallies)
                self.verdict(
                    f"{name}: each acknowledged once by {consumer}, none skipped",
                    not wrong,
                    wrong or f"{figures[name]['inserted_trajectories']}; {unsure} in requests that were not answered",
                )

    def checkpoints(self) -> None:
        """Every checkpoint that counts as complete is whole."""
        if not self.saving:
            return
        there = shelf.listed(self.saved)
        damaged = {}
        for one in there:
            try:
                manifest.verify(one.path)
            except gear.GearError as error:
                damaged[one.path.name] = str(error)
        self.verdict("checkpoints are whole", bool(there) and not damaged, damaged or f"the last is {there[-1].number}")

    def close(self) -> None:
        """End everything that lives, and have what the server kept removed."""
        for pid, role in self.living().items():
            if role != "supervisor":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        record = runtime_directory() / f"{self.name}.record"
        if record.exists():
            self.segments = {Path(json.loads(record.read_bytes())["directory"]).name}
        service.stop(self.processes["supervisor"])
        said = (self.folder / "log").read_text(errors="replace")
        if self.failed:
            print(said[-20_000:], file=sys.stderr)
        service.stop(service.start(self.name)[0])  # --discard
        super().close()


def run(seconds: float, seed: int, path: str, devices: str, writers: int, saving: bool = False) -> bool:
    """One run; whether every property held."""
    print(f"seed {seed}, {seconds:g} s, a kill every {EVERY:g} s, {writers} writers, {len(READERS)} readers, "
          f"{len(CONSUMERS)} consumers over {path}, {devices}", flush=True)  # fmt: skip
    killer = Killer(seed, path, devices, writers, saving)
    try:
        killer.serve()
        killer.address = service.wait_ready(killer.processes["supervisor"])
        with gear.connect(killer.address, timeout=60.0) as client:
            for table in KILLED:
                client.create_table(table)
            for role, index in (READERS | CONSUMERS | killer.writers).items():
                killer.start(role, index, killer.tables_of(role))
            killer.verdict("tables are full and evict", killer.wait_for(lambda: killer.evicting(client), 60.0))
            began = time.monotonic()
            killer.pulse = Pulse(client)
            killer.disturb(seconds)
            took = time.monotonic() - began
            killer.recover()
            killer.verdict("a client that is never killed is always answered in the end", killer.pulse.stop())
            away = ", ".join(f"{seconds:.0f} s" for _, seconds in killer.pulse.away) or "never for long"
            print(f"killed: {dict(killer.kills)}; stopped: {dict(killer.stops)}; the server was away: {away}; "
                  f"{killer.given_up} clients gave it up then", flush=True)  # fmt: skip
            for role in killer.writers:
                killer.finish(role)
            empty = killer.wait_for(lambda: killer.drained(client), QUIET)
            figures = client.info(timeout=30.0)["tables"]
            left = {name: (figures[name]["items"], figures[name]["consumers"]) for name in QUEUES}
            killer.verdict("consumers empty the queues", empty, "" if empty else (left, killer.ended()))
            for role in (*READERS, *CONSUMERS):
                killer.finish(role)
            info, accounts = client.info(timeout=30.0)["tables"], killer.written(killer.writers)
            killer.ledger(info, accounts, took)
            killer.consumed(client, accounts)
            killer.read_back(client, info, accounts)
            killer.released(client, QUIET)
            killer.checkpoints()
    finally:
        killer.close()
    return not killer.failed


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "little"))
    parser.add_argument("--path", choices=("shm", "tcp", "mixed"), default="mixed", help="data path of the actors")
    parser.add_argument("--devices", default="cpu", help="of the server: cpu:2 for two shards")
    parser.add_argument("--writers", type=int, default=len(WRITERS), help="writer processes, at least 4")
    parser.add_argument("--checkpoints", action="store_true", help="save every two seconds meanwhile")
    options = parser.parse_args()
    ends()
    writers = max(len(WRITERS), options.writers)
    ok = run(options.seconds, options.seed, options.path, options.devices, writers, options.checkpoints)
    what = f"killer of {options.seconds:g} s over {options.path} on {options.devices} with seed {options.seed}"
    print(f"{what}: {'passed' if ok else 'FAILED'}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()

"""`make soak`: writers and readers against a real server for a while; every trajectory and every count checked.

    python -m benchmarks.soak [--seconds 30] [--seed 0] [--path shm|tcp|mixed] [--devices cpu:2] [--writers 8]

Writers and two readers, each a process, share three small tables that are full and evict all the time. In
the middle one writer and one reader are stopped past the client timeout and continued. One line per property says
what held; the exit code is 1 if any did not.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import gear
from benchmarks import service
from benchmarks.soak_audit import kept, leases, quarantined
from benchmarks.soak_memory import Memory
from benchmarks.soak_rows import TABLES
from benchmarks.soak_run import WRITERS, Run, ends, total, writers_of

READERS = {"sample": 901, "select": 902}
STOPPED = 3.0
"""Seconds that a writer and a reader are stopped together; the server's client timeout is less."""
AFTER = 2.0
"""Seconds that all go on at least after that."""


class Soak(Run):
    """A run in which one writer and one reader are stopped past the client timeout and continued."""

    def __init__(self, seed: int, path: str, devices: str) -> None:
        super().__init__("soak", seed, path, devices, TABLES)
        self.memory: Memory | None = None

    def serve(self) -> None:
        """Start the server and wait for its ready line."""
        # A client over tcp is given up after some of these: not while it is stopped.
        silence = "1" if self.path == "shm" else "2"
        self.server, self.address = service.start(self.name, "--client-timeout", silence, "--devices", self.devices)
        self.processes["server"] = self.server

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

    def rest(self, until: float) -> None:
        """The same, and look at the server's memory meanwhile."""

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
            self.unheard(role)
            self.processes[role].send_signal(signal.SIGCONT)
        back = self.wait_for(lambda: total(client, "silent_clients") == 0, 10.0)
        back &= self.wait_for(lambda: self.begun(writer, reader), 30.0)
        self.verdict(f"{reader}: seen silent with its pins while stopped", pinned)
        if self.path == "shm":
            shown = {f"{name} on shard {shard}": blocks for (name, shard), blocks in held.items() if blocks}
            self.verdict(f"{writer}: its blocks are in quarantine while stopped", sum(held.values()) > 0, shown)
            self.verdict(f"{writer}: its blocks went to nobody meanwhile", same)
        else:
            self.verdict(f"{writer}: holds no blocks while stopped", sum(held.values()) == 0, held)
        self.verdict(f"{writer}, {reader}: both are back once continued", back)


def on_every_shard(held: dict[tuple[str, int], int]) -> bool:
    """Whether every shard has noticed that the writer is silent: it holds blocks on each."""
    return {shard for (_, shard), blocks in held.items() if blocks} == {shard for _, shard in held}


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
                soak.start(role, index, [table.name for table in TABLES])
            soak.verdict("every table is full and evicts", soak.wait_for(lambda: soak.evicting(client), 60.0))
            soak.verdict("every reader reads", soak.wait_for(lambda: soak.begun(*READERS), 60.0))
            start = time.monotonic()  # of the run proper: all have started
            memory = soak.memory = Memory(soak.resident)
            soak.rest(start + max(seconds / 3, seconds / 2 - STOPPED))
            soak.stop(client, "pipelined", "select")
            soak.rest(max(start + seconds, time.monotonic() + AFTER))
            flat = memory.verdict()
            soak.verdict("no actor ended by itself", not soak.ended(), soak.ended() or "")
            readings = {role: soak.finish(role) for role in READERS}
            writings = {role: soak.finish(role) for role in writers}
            for role, account in (("pipelined", writings["pipelined"]), ("select", readings["select"])):
                after = [rounds for _, pause, rounds in account.get("pauses", []) if pause >= STOPPED]
                soak.verdict(f"{role}: went on after it was stopped", any(after), f"{max(after, default=0)} rounds")
            info, took = client.info()["tables"], time.monotonic() - start
            accounts = soak.written(writers)
            soak.ledger(info, accounts, took)
            soak.read_back(client, info, accounts)
            soak.released(client)
            soak.verdict("memory of the shards is flat", *flat)
    finally:
        soak.close()
    return not soak.failed


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "little"))
    parser.add_argument("--path", choices=("shm", "tcp", "mixed"), default="shm", help="data path of the actors")
    parser.add_argument("--devices", default="cpu", help="of the server: cpu:2 for two shards")
    parser.add_argument("--writers", type=int, default=len(WRITERS), help="writer processes, at least 4")
    options = parser.parse_args()
    ends()
    ok = run(options.seconds, options.seed, options.path, options.devices, max(len(WRITERS), options.writers))
    what = f"soak of {options.seconds:g} s over {options.path} on {options.devices} with seed {options.seed}"
    print(f"{what}: {'passed' if ok else 'FAILED'}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()

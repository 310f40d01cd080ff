"""Writers and a reader are stopped at random instants until others have overwritten the table, and go on after that."""

from __future__ import annotations

import shutil
import signal
import time
from random import Random

import pytest

import gear
from benchmarks.soak_rows import TABLES
from benchmarks.soak_run import Run, total
from tests.transport.helpers import eventually

pytestmark = pytest.mark.faults


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_whoever_is_stopped_finds_nothing_of_others_under_its_hands(start_server, long_only, path):
    """Leases and pins of the silent expire or are quarantined, their blocks are used again only once it is harmless.

    What wakes up goes on: every insert once and whole, every row that is read its trajectory's, a lost pin is named
    `PinLost` (the reader counts those).
    """
    server = start_server("--client-timeout", "0.5" if path == "shm" else "1", "--memory", "256MiB")
    run, choice = Run("stopped", long_only.seed, path, "cpu", TABLES), Random(long_only.seed)
    run.address = server.address
    names = [table.name for table in TABLES]
    writers = {"pipelined": 1, "writer": 2, "many": 3}
    try:
        with gear.connect(server.address, timeout=30.0) as client:
            for table in TABLES:
                client.create_table(table)
            for role, index in (writers | {"select": 901}).items():
                run.start(role, index, names)
            assert run.wait_for(lambda: run.evicting(client) and run.begun("select"), 60.0), "they work"
            for _ in range(30):
                stopped = [run.processes[role] for role in ("pipelined", "writer", "select")]
                for process in stopped:
                    time.sleep(choice.random() * 0.05)  # at a random instant of what it does
                    process.send_signal(signal.SIGSTOP)
                silent = "they are taken for silent"
                eventually(lambda: client.info()["clients"]["silent"] == 3, silent, 30.0)
                before = total(client, "evicted_trajectories")
                full = total(client, "trajectories")
                # Over tcp whoever is silent for five client timeouts is given up: they are to go on before.
                most = time.monotonic() + (60.0 if path == "shm" else 1.5)
                while total(client, "evicted_trajectories") < before + full and time.monotonic() < most:
                    time.sleep(0.02)
                for process in stopped:
                    process.send_signal(signal.SIGCONT)
                eventually(lambda: client.info()["clients"]["silent"] == 0, "they are back", 30.0)
                assert not run.ended()
            readings = run.finish("select")
            for role in writers:
                run.finish(role)
            info, accounts = client.info()["tables"], run.written(writers)
            run.ledger(info, accounts, 1.0)
            run.read_back(client, info, accounts)
            run.released(client)
            assert not run.failed
            assert readings["again"] > 0
    finally:
        for process in run.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()
        shutil.rmtree(run.folder)

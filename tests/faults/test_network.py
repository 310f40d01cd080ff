"""Clients at the far end of a network that loses, delays and cuts: two namespaces, a real server, an exact ledger."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import gear
from benchmarks.soak_rows import NAMES, TABLES
from benchmarks.soak_run import Run
from gear.server.keys import make_keys
from tests.transport.helpers import eventually

from .wire import NotPermitted, Wire

pytestmark = pytest.mark.faults

SILENCE = 3.0
"""The server's client timeout; after five of them it gives a client up that it cannot see."""


@pytest.fixture
def wire(faults) -> Iterator[Wire]:
    try:
        wire = Wire(faults.seed)
    except NotPermitted as error:
        pytest.skip(str(error))
    yield wire
    wire.close()


@pytest.fixture
def far(wire, start_server, tmp_path, monkeypatch, faults) -> Iterator[Run]:
    """A run whose actors are at the far end of the wire; the server and its `client` are at the near one."""
    make_keys(tmp_path / "keys")
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex())
    monkeypatch.setenv("GEAR_TOKEN", token.read_text())
    monkeypatch.setenv("GEAR_CURVE_KEYS", str(tmp_path / "keys"))
    server = start_server(
        "--host", wire.here, "--token-file", str(token), "--curve-keys", str(tmp_path / "keys"),
        "--client-timeout", str(SILENCE), "--memory", "256MiB",
    )  # fmt: skip
    run = Run("network", faults.seed, "tcp", "cpu", TABLES)
    run.prefix, run.address = wire.prefix, server.address
    with gear.connect(server.address, timeout=30.0) as run.client:
        for table in TABLES:
            run.client.create_table(table)
        yield run
    for process in run.processes.values():
        process.kill()
        process.communicate()
    shutil.rmtree(run.folder)


def test_inserts_and_batches_are_exact_over_a_network_that_loses_delays_and_parts(far, wire, faults):
    writers = faults.at({"pipelined": 1}, {"insert": 1, "pipelined": 2, "many": 3, "writer": 4})
    wire.loss, wire.delay = 0.02, (0.002, 0.02)
    names = [table.name for table in TABLES]
    for role, index in writers.items():
        far.start(role, index, names)

    def inserted() -> int:
        return sum(table["inserted_trajectories"] for table in far.client.info()["tables"].values())

    def all_hold() -> bool:
        return all(table["items"] > 0 for table in far.client.info()["tables"].values())

    assert far.wait_for(all_hold, 120.0), "each table gets something: a reader of an empty one would wait"
    far.start("sample", 901, names)
    assert far.wait_for(lambda: far.begun(*writers, "sample"), 60.0), "they work"
    choice = Random(faults.seed)
    for _ in range(faults.at(1, 12)):
        before, lost = inserted(), wire.lost
        wire.cut = True
        time.sleep(choice.uniform(0.1, 1.4 * SILENCE))  # how long it is parted: the fault itself
        wire.cut = False
        eventually(lambda least=before + 20: inserted() > least, "inserts go on", 60.0)
        assert wire.lost > lost
        assert not far.ended()
    wire.loss = 0.0
    for role in (*writers, "sample"):
        far.finish(role)
    info, accounts = far.client.info()["tables"], far.written(writers)
    far.ledger(info, accounts, 1.0)
    far.read_back(far.client, info, accounts)
    far.released(far.client)
    assert not far.failed
    assert wire.passed > 100


HOLDER = """
import sys, time
import gear
with gear.connect(sys.argv[1], timeout=30.0, path="tcp") as client:
    with client.writer("rows") as writer:
        writer.extend({"number": [[1] * 4] * 2, "step": [0, 1], "checksum": [0, 0], "payload": [[0.0] * 16] * 2})
        writer.flush()
        selection = client.select(1, "rows")
        print("holds", flush=True)
        sys.stdin.readline()
        try:
            client.info(timeout=60.0)
        except gear.ConnectionLost as error:
            print("told:", error, flush=True)
"""


def test_a_client_that_is_parted_for_too_long_is_given_up_and_told(long_only, far, wire):
    rows = {"number": [[1] * 4] * 8, "step": list(range(8)), "checksum": [0] * 8, "payload": [[0.0] * 16] * 8}
    far.client.insert(rows, "rows")
    command = [*wire.prefix, sys.executable, "-c", HOLDER, far.address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "holds\n"
        assert far.client.info()["tables"]["rows"]["pins"] == 1
        wire.cut = True
        began = time.monotonic()
        free = "what it held is free"
        eventually(lambda: far.client.info()["tables"]["rows"]["pins"] == 0, free, 5 * SILENCE + 20)
        assert time.monotonic() - began > 4 * SILENCE, "it had its time"
        eventually(lambda: far.client.info()["clients"]["silent"] == 0, "it is forgotten", 20.0)
        wire.cut = False
        process.stdin.write("\n")
        process.stdin.flush()
        assert "connect anew" in process.stdout.readline()
        process.kill()
    assert set(NAMES) >= set(far.client.info()["tables"])

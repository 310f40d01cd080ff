"""Some seconds of `make soak`, on one shard and on two: ledger, bit-exact rows, quarantine, flat memory; processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize(
    "options",
    [
        ("--seconds", "5", "--path", "shm"),
        ("--seconds", "5", "--path", "tcp"),
        ("--seconds", "10", "--path", "mixed", "--devices", "cpu:2", "--writers", "8"),
    ],
    ids=["shm", "tcp", "two-shards"],
)
def test_writers_and_readers_for_some_seconds(options):
    command = [sys.executable, "-m", "benchmarks.soak", "--seed", "7", *options]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its own processes, which a kill would leave behind
            said, _ = process.communicate()
            pytest.fail(f"the soak did not end within 300 s; it said:\n{said}")
    assert process.returncode == 0, said
    assert "FAILED" not in said
    assert said.count("acknowledged = inserted = stored + evicted") == 3

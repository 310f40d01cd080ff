"""Five seconds of `make soak`: ledger, bit-exact rows, quarantine, flat memory; with real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_writers_and_readers_for_five_seconds(path):
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", "5", "--seed", "7", "--path", path]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its own processes, which a kill would leave behind
            said, _ = process.communicate()
            pytest.fail(f"the soak did not end within 100 s; it said:\n{said}")
    assert process.returncode == 0, said
    assert "FAILED" not in said
    assert said.count("acknowledged = inserted = stored + evicted") == 3

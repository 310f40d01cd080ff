"""Five seconds of `make soak`: ledger, bit-exact rows, quarantine, flat memory; with real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_writers_and_readers_for_five_seconds():
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", "5", "--seed", "7"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=160, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout

"""A random process is killed or stopped every second: what was acknowledged is there, once and whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults


def ledger(seconds: int, *options: str) -> None:
    command = [sys.executable, "-m", "benchmarks.killer", "--seconds", str(seconds), *options]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds + 300)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its own processes, which a kill would leave behind
            said, _ = process.communicate()
            pytest.fail(f"the killer did not end; it said:\n{said}")
    assert process.returncode == 0, said
    assert "FAILED" not in said
    assert said.count("acknowledged = inserted = stored + evicted") == 5
    assert said.count("none skipped") == 2


@pytest.mark.timeout(400)
def test_nothing_is_lost_torn_or_twice_whatever_is_killed(faults):
    ledger(faults.at(4, 180), "--seed", str(faults.seed))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_nor_on_one_path_alone_nor_on_two_shards(long_only, path, devices):
    ledger(60, "--seed", str(long_only.seed), "--path", path, "--devices", devices)

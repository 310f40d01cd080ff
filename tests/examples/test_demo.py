"""The demo, shortened: it trains through a real server, ends by itself or on a signal, and leaves nothing."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.demo.policy import Policy
from examples.output import picture

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "examples.demo", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_short_run_reports_the_returns_and_saves_a_plot(tmp_path):
    plot = tmp_path / "demo.png"
    with start("--updates", "200", "--output", str(plot)) as process:
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert "seed 0: mean return of the first 50 episodes" in text
    assert "200 updates" in text
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_all_its_processes(number):
    with start("--updates", "1000000") as process:
        assert process.stdout is not None
        for line in process.stdout:  # the server's log line tells that training is about to start
            if "created table" in line:
                process.send_signal(number)
                break
        text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "interrupted" in text


def test_a_policy_is_the_same_after_it_was_published(tmp_path):
    rng = np.random.default_rng(0)
    layers = [
        (rng.random((4, 8), np.float32), rng.random(8, np.float32)),
        (rng.random((8, 2), np.float32), np.zeros(2, np.float32)),
    ]
    Policy(layers, 0.25).save(tmp_path / "policy.npz")
    loaded = Policy.load(tmp_path / "policy.npz")
    assert loaded.epsilon == 0.25
    for mine, theirs in zip(layers, loaded.layers, strict=True):
        assert np.array_equal(mine[0], theirs[0])
        assert np.array_equal(mine[1], theirs[1])
    assert [p.name for p in tmp_path.iterdir()] == ["policy.npz"]


def test_a_picture_that_cannot_be_saved_is_refused_before_anything_runs(tmp_path):
    for path in (tmp_path / "none" / "x.png", tmp_path):
        with pytest.raises(argparse.ArgumentTypeError, match="does not exist|cannot be written"):
            picture(str(path))
    assert picture(str(tmp_path / "x.png")) == tmp_path / "x.png"

"""Peers are processes; what is wrong with one is said, and costs only its own figure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.measure import Candidate, Measurement
from benchmarks.peers import NAMES, environment, remote


@pytest.fixture
def peers(monkeypatch):
    """The fake peer, run by the Python of the tests; another one cannot be installed."""

    def python_of(name: str) -> Path:
        if name != "fake_peer":
            raise environment.NotInstalled("no wheel for this Python")
        return Path(sys.executable)

    monkeypatch.setattr(remote, "python_of", python_of)
    monkeypatch.setattr(remote, "PACKAGE", "tests.benchmarks")
    made = remote.Peers(["fake_peer", "absent"])
    yield made
    made.rest()


def measured(peers: remote.Peers, name: str) -> dict:
    measurement = Measurement(name, "work", [Candidate("gear", lambda k: None)], calls=3)
    peers.join(measurement)
    measurement.run(5)
    return measurement.record()


def test_a_peer_that_cannot_be_installed_is_reported_and_the_others_go_on(peers):
    assert peers.missing == {"absent": "no wheel for this Python"}
    assert peers.versions == {"fake_peer": "fake 1.0"}


def test_a_peer_takes_part_in_what_it_can_do_and_is_stopped_in_between(peers):
    for _ in range(2):
        rows = measured(peers, "right")["candidates"]
        assert [(row["candidate"], row["role"]) for row in rows] == [("gear", "ours"), ("fake", "peer")]
        peers.rest()
    assert len(measured(peers, "something else")["candidates"]) == 1


def test_one_wrong_value_in_a_peers_batch_makes_its_case_fail(peers):
    record = measured(peers, "wrong")
    assert record["wrong"] == ["fake: item 2 of a batch of 4 is not 1 rows of what was inserted"]
    assert [row["candidate"] for row in record["candidates"]] == ["gear"]


@pytest.mark.parametrize(
    ("case", "said"),
    [("fails", "RuntimeError: it is out of order"), ("ends", "its process ended with 3: no more memory")],
)
def test_a_peer_that_fails_or_ends_is_noted_with_its_last_words(peers, case, said):
    assert measured(peers, case)["wrong"] == [f"fake_peer: {said}"]


def test_every_peer_has_exact_pins_and_a_module():
    for name in NAMES:
        lines = (environment.REQUIREMENTS / f"{name}.txt").read_text().split()
        assert lines
        assert all("==" in line for line in lines)
        assert (environment.REQUIREMENTS.parent / f"{name}.py").exists()


def test_an_environment_is_made_once_and_again_only_for_other_pins(monkeypatch, tmp_path):
    (tmp_path / "thing.txt").write_text("thing==1\n")
    commands: list[list[str]] = []

    def run(command, env=None):
        commands.append(command)
        (tmp_path / "venvs" / "thing").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(environment, "FOLDER", tmp_path / "venvs")
    monkeypatch.setattr(environment, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(environment, "_run", run)
    for _ in range(2):
        environment.python_of("thing")
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"]]
    (tmp_path / "thing.txt").write_text("thing==2\n")
    environment.python_of("thing")
    assert len(commands) == 4


def test_what_pip_says_at_last_is_why_a_peer_is_missing():
    with pytest.raises(environment.NotInstalled, match="no such version"):
        environment._run([sys.executable, "-c", "import sys; sys.exit('some\\nno such version')"])
    with pytest.raises(environment.NotInstalled, match="expected one of .*reverb.*, got 'revreb'"):
        environment.python_of("revreb")

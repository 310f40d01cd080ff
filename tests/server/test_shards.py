"""What becomes of a shard that died, without processes: another in its place, or the reason why there is none."""

from __future__ import annotations

import pytest

from gear.server import restart
from gear.server.config import Options, Ready
from gear.server.restart import Shards
from gear.server.runtime import Claim


class Process:
    """What `Shards` needs of a process."""

    serves, listed, ended, stdout = False, True, False, -1

    def __init__(self, told, expected=None, process=None) -> None:
        self.told, self.index, self.expected, self.ready, self.killed = told, told.index, expected, None, False

    def wait(self) -> int:
        return -9

    def watch(self) -> int:
        return -1

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def make(monkeypatch, tmp_path):
    monkeypatch.setattr(restart, "ShardProcess", Process)
    return lambda most: Shards(
        Options("", "127.0.0.1", 0, "cpu", 1 << 20, "", "info", False, 5.0, max_restarts=most), "s", Claim(tmp_path)
    )


def test_a_shard_that_is_not_started_again_is_said_to_be_refused_for_its_reason(make, caplog):
    """Origin: where none is ever started again, the reason was \"as told\" whatever it was."""
    shards = make(0)
    shards.all[0].ready = Ready(refused="the memory of a table is damaged")
    assert shards.died(shards.all[0]) is None
    assert "not started again (the memory of a table is damaged)" in caplog.text


def test_a_successor_that_never_says_it_serves_is_given_up(make, monkeypatch, caplog):
    """Origin: it was waited for without end, and clients with it."""
    shards = make(5)
    successor = shards.died(shards.all[0])
    shards._spare_at = 1e18
    clock = [100.0]
    monkeypatch.setattr(restart.time, "monotonic", lambda: clock[0])
    assert shards.tend([(successor, 100.0)]) == restart._START_SECONDS
    assert not successor.killed
    clock[0] += restart._START_SECONDS
    shards.tend([(successor, 100.0)])
    assert successor.killed
    assert shards.died(successor) is None
    assert "did not start within 300 s" in caplog.text


def test_without_a_process_to_take_its_place_a_shard_is_given_up_and_the_others_go_on(make, monkeypatch, caplog):
    shards = make(5)

    def fail(*_) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(Process, "__init__", fail)
    assert shards.died(shards.all[0]) is None
    assert "not started again (it cannot be: no more processes)" in caplog.text
    monkeypatch.setattr(restart, "launch", fail)
    shards._spare_at = 0.0
    assert shards.tend() > 0.0

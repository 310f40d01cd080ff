"""What is written down of tables that ended with the memory of their device."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gear.server.lost import RESERVED, Lost, made_good, note, noted


def test_losses_add_up_and_numbers_are_free_again_when_nobody_uses_them(tmp_path):
    """A deploy a day would else use all numbers up."""
    note(tmp_path, Lost("a", 3, 10, 100))
    (path,) = tmp_path.iterdir()
    before = time.time() - RESERVED - 60
    os.utime(path, (before, before))
    note(tmp_path, Lost("a", 3, 5, 50))
    note(tmp_path, Lost("b", 4, 1, 1))
    assert noted(tmp_path).info() == {"tables": 3, "trajectories": 16, "steps": 151}
    assert noted(tmp_path).numbers == {3, 4}
    for path in tmp_path.iterdir():
        os.utime(path, (before, before))
    assert noted(tmp_path).numbers == frozenset()


def test_what_a_checkpoint_brings_back_was_not_lost(tmp_path):
    note(tmp_path, Lost("a", 3, 10, 100))
    (old,) = tmp_path.iterdir()
    os.utime(old, (1, 1))
    note(tmp_path, Lost("a", 5, 8, 80))
    made_good(tmp_path, "a", 7, 90)
    made_good(tmp_path, "b", 1, 1)
    assert noted(tmp_path).info() == {"tables": 2, "trajectories": 11, "steps": 100}


def test_a_shard_that_dies_while_it_writes_a_note_can_be_started_again(tmp_path, monkeypatch):
    note(tmp_path, Lost("a", 3, 10, 100))

    def half(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:5])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="no space"):
        note(tmp_path, Lost("b", 4, 1, 1))
    with pytest.raises(OSError, match="no space"):
        made_good(tmp_path, "a", 7, 90)
    assert noted(tmp_path).info() == {"tables": 1, "trajectories": 10, "steps": 100}


def test_a_table_counts_once_though_the_shard_dies_before_its_segment_is_gone(tmp_path):
    for _ in range(2):
        note(tmp_path, Lost("a", 3, 10, 100), "1f-2e")
    note(tmp_path, Lost("a", 3, 5, 50), "20-2e")
    assert noted(tmp_path).info() == {"tables": 2, "trajectories": 15, "steps": 150}

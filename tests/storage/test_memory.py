"""Segments: refused before a page is touched, 0600, never removed by whoever merely leaves."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gear.errors import InsufficientMemory
from gear.schema import Column, Steps, Table
from gear.storage import memory
from gear.storage.table import StoredTable


@pytest.fixture
def path():
    name = memory.SHARED / f"gear-test-{secrets.token_hex(8)}"
    yield name
    name.unlink(missing_ok=True)


def test_more_than_there_is_is_refused_with_both_numbers_before_a_page_is_touched(path):
    """Origin: pytorch/rl#2065."""
    left, _ = memory.memory_left()
    for call in (
        lambda: memory.anonymous(left * 2, "table 'big'"),
        lambda: memory.create(path, left * 2, "table 'big'"),
    ):
        with pytest.raises(InsufficientMemory, match=rf"table 'big' needs .*\({left * 2} bytes\).*leaves .*; lower"):
            call()
    assert not path.exists()


def test_a_table_that_does_not_fit_is_refused():
    with pytest.raises(InsufficientMemory, match="table 'huge' needs"):
        StoredTable(Table("huge", [Column("x", (1 << 20,))], Steps(10**6)))


def test_a_segment_is_private_reserved_and_shared(path):
    array = memory.create(path, 1 << 20, "test")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_blocks * 512 >= 1 << 20
    other = memory.attach(path, 1 << 20)
    array[7] = 42
    assert other[7] == 42
    assert other.flags.writeable


def test_attaching_to_another_size_is_refused(path):
    memory.create(path, 1 << 20, "test")
    with pytest.raises(OSError, match="has 1048576 bytes, expected 4096"):
        memory.attach(path, 4096)


def test_a_link_is_not_followed(path, tmp_path):
    target = tmp_path / "file"
    target.write_bytes(bytes(4096))
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        memory.attach(path, 4096)


def test_a_process_that_attaches_and_exits_leaves_the_segment(path):
    """Origin: cpython 82300."""
    memory.create(path, 4096, "test")[0] = 5
    code = f"from gear.storage import memory; from pathlib import Path; memory.attach(Path({str(path)!r}), 4096)[1] = 6"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    assert list(memory.attach(path, 4096)[:2]) == [5, 6]


@pytest.mark.faults
def test_no_segment_remains_when_the_filesystem_runs_out(path, monkeypatch):
    monkeypatch.setattr(memory, "check_room", lambda *a, **k: None)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InsufficientMemory, match="ran out while it was reserved"):
        memory.create(path, 4096, "test")
    assert not path.exists()


def test_a_table_directory_is_zeroed_memory_made_valid():
    stored = StoredTable(Table("t", [Column("x")], Steps(100)))
    info = stored.info()
    assert info["free_blocks"] == stored.layout.blocks
    assert (info["items"], info["steps"], info["pins"]) == (0, 0, 0)
    assert bytes(stored.segment[:7]) == b"GEARSEG"
    assert np.all(stored.layout.view(stored.segment, "blocks")[:, 1] == -1)

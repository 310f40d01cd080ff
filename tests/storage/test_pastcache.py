"""Files past the page cache: what is in them does not depend on how they were written."""

from __future__ import annotations

import errno
import fcntl
import os

import numpy as np
import pytest

from gear.storage import pastcache
from gear.storage.pastcache import PAGE, PastCache, Stage


def put(file: PastCache, data: bytes) -> None:
    file.space(len(data))[:] = np.frombuffer(data, np.uint8)
    file.advance(len(data))


def written(path, stage: Stage, sizes: list[int]) -> tuple[bytes, bytes]:
    """What is in a file of so many bytes at a time, and what should be."""
    chance, file = np.random.default_rng(0), PastCache(path, stage)
    parts = [chance.bytes(size) for size in sizes]
    for part in parts:
        put(file, part)
    assert file.nbytes == sum(sizes)
    file.finish(b"head")
    return path.read_bytes(), (b"head" + b"".join(parts)[4:])


SIZES = [[128], [128, 3968], [128, PAGE, 1, PAGE - 1], [128, 3 * PAGE + 5, 0, 17, 9 * PAGE], [PAGE]]


@pytest.mark.parametrize("sizes", SIZES)
def test_all_bytes_are_there_in_order(tmp_path, sizes):
    found, expected = written(tmp_path / "f", Stage(), sizes)
    assert found == expected


@pytest.mark.parametrize("sizes", SIZES)
def test_a_filesystem_that_has_no_direct_writes_gets_others(tmp_path, sizes, monkeypatch):
    def refuse(descriptor: int, what: int, value: int = 0) -> int:
        if what == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "no direct writes here")
        return 0

    monkeypatch.setattr(pastcache.fcntl, "fcntl", refuse)
    found, expected = written(tmp_path / "f", Stage(), sizes)
    assert found == expected


def test_a_filesystem_that_promised_direct_writes_and_refuses_them_gets_others(tmp_path, monkeypatch):
    pwrite, refused = os.pwrite, []

    def refuse(descriptor: int, data: bytes, at: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(at)
            raise OSError(errno.EINVAL, "not like this")
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(pastcache.os, "pwrite", refuse)
    try:
        found, expected = written(tmp_path / "f", Stage(), [128, 3 * PAGE, 5])
    finally:
        monkeypatch.undo()
    assert found == expected
    assert len(refused) <= 1


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(pastcache.os, "pwrite", lambda d, data, at: pwrite(d, data[: max(PAGE, len(data) // 2)], at))
    found, expected = written(tmp_path / "f", Stage(), [128, 8 * PAGE, 70])
    assert found == expected


def test_files_that_share_a_stage_do_not_mix(tmp_path):
    stage = Stage()
    one, two = PastCache(tmp_path / "1", stage), PastCache(tmp_path / "2", stage)
    put(one, b"a" * 100)
    put(two, b"b" * (PAGE + 50))
    put(one, b"c" * 2 * PAGE)
    put(two, b"d" * 10)
    one.finish(b"")
    two.finish(b"")
    assert (tmp_path / "1").read_bytes() == b"a" * 100 + b"c" * 2 * PAGE
    assert (tmp_path / "2").read_bytes() == b"b" * (PAGE + 50) + b"d" * 10


def test_what_is_there_already_is_not_written_over(tmp_path):
    (tmp_path / "f").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        PastCache(tmp_path / "f", Stage())
    assert (tmp_path / "f").read_bytes() == b"mine"

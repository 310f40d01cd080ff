"""The births of tables: one that fails is told to who waits for it, and leaves nothing."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from gear import schema
from gear.errors import GearError
from gear.server.budget import MemoryBudget
from gear.server.saves import Saves, Shelf
from gear.server.tables import Hosted, Place, Tables
from gear.storage.saving_table import TableSave
from tests.transport.helpers import table


class Shard:
    """The tables of a shard, and its loop as far as they need one."""

    def __init__(self, tmp_path) -> None:
        self.woken, self.told = threading.Event(), []
        self.place = Place(tmp_path, 0, 1, 1 << 30)
        self.tables = Tables(self.place, MemoryBudget(1 << 30), self.woken.set)

    def create(self, name: str = "t") -> None:
        self.tables.create(schema.to_bytes(table(name)), False, self.told.append)

    def finish(self) -> None:
        assert self.woken.wait(30.0)
        self.woken.clear()
        self.tables.finish()


@pytest.fixture
def shard(tmp_path) -> Shard:
    return Shard(tmp_path)


def fail(*_) -> None:
    raise MemoryError("no room")


def test_a_table_that_cannot_be_taken_in_is_refused_and_gone(shard, tmp_path, monkeypatch):
    """Origin: what went wrong there ended the shard's loop."""
    with monkeypatch.context() as patched:
        patched.setattr(shard.tables, "adopt", fail)
        shard.create()
        shard.finish()
    assert [type(one) for one in shard.told] == [GearError]
    assert "no room" in str(shard.told[0])
    assert (len(shard.tables), shard.tables.nbytes, list(tmp_path.iterdir())) == (0, 0, [])
    shard.create()
    shard.finish()
    assert isinstance(shard.told[1], Hosted)


def test_who_cannot_be_told_of_a_table_keeps_nobody_else_from_hearing_of_it(shard):
    shard.tables.create(schema.to_bytes(table("t")), False, fail)
    shard.create()
    shard.finish()
    assert isinstance(shard.told[0], Hosted)


def test_a_birth_without_a_thread_is_none(shard, monkeypatch):
    """Origin: who asked again waited for it for ever, and its memory counted as taken."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            shard.create()
    assert shard.tables.nbytes == 0
    shard.create()
    shard.finish()
    assert isinstance(shard.told[0], Hosted)


@pytest.mark.parametrize("while_it_is_written", [False, True])
def test_a_part_that_is_dropped_while_a_save_is_under_way_is_not_in_the_checkpoint(
    shard, tmp_path, monkeypatch, while_it_is_written
):
    """Origin: a restore brought back, hidden, what nobody could find when it was saved, nor afterwards."""
    spec, folder, write = schema.to_bytes(table("t")), tmp_path / "saved", TableSave.write
    shard.tables.create(spec, True, shard.told.append)
    shard.finish()
    weights = SimpleNamespace(parcels=list)
    saves = Saves(Shelf(str(folder)), shard.place, shard.tables, weights, *[lambda *_: None] * 3)
    save = saves._new(f"{1:016x}")
    save.prepare()
    save.take()

    def write_and_drop(one: TableSave, *given):
        saved = write(one, *given)
        shard.tables.drop_hidden(spec)
        return saved

    if while_it_is_written:
        monkeypatch.setattr(TableSave, "write", write_and_drop)
    else:
        shard.tables.drop_hidden(spec)
    assert save.write().tables == []
    assert not list(folder.rglob("table-*"))

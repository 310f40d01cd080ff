"""The thread that saves: what it keeps when a save is over, and what becomes of one when the server ends."""

from __future__ import annotations

import gc
import weakref
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest

from gear.errors import CheckpointError
from gear.server import saves as saves_
from gear.server.saves import Saves, Shelf
from gear.server.tables import Place
from gear.storage import saving, shelf
from gear.storage.saving import Parcel
from gear.transport import messages as m
from tests.transport.helpers import eventually

TOKENS = f"{1:016x}", f"{2:016x}"


class Shard:
    """What saves need of a shard without tables, which has published something."""

    def __init__(self, tmp_path) -> None:
        self.answers, self.woken = [], Event()
        parcels = [Parcel("policy", 1, (), [], np.zeros(5, np.uint8))]
        self.saves = Saves(
            Shelf(str(tmp_path)), Place(tmp_path, 0, 1, 1), [], SimpleNamespace(parcels=lambda: parcels),
            lambda client, request, body, frames: self.answers.append(body),
            lambda client, request, error: self.answers.append(error),
            self.woken.set,
        )  # fmt: skip

    def ask(self) -> None:
        self.saves._on_save(None, 1, m.Save(TOKENS[0]), [])

    def until(self, over) -> None:
        while not over():
            assert self.woken.wait(30.0)
            self.woken.clear()
            self.saves.finish()


@pytest.fixture
def shard(tmp_path) -> Shard:
    return Shard(tmp_path)


def test_a_save_that_failed_keeps_nothing_until_the_next_one(shard, monkeypatch):
    """Origin: its thread waited for the next one with the last one in hand: directories, and blocks copied aside."""
    made = []

    class Failing(saving.PartSave):
        def write(self):
            made.append(weakref.ref(self))
            raise CheckpointError("the disk is full")

    monkeypatch.setattr(saves_, "PartSave", Failing)
    monkeypatch.setattr(saves_.logger, "error", lambda *_: None)  # what captures a log keeps the errors in it
    shard.ask()
    shard.until(lambda: shard.answers)
    said = [str(error) for error in shard.answers]
    assert said == ["the disk is full"]
    shard.answers.clear()  # of the error, whose traceback has the save

    def gone() -> bool:
        gc.collect()
        return made[0]() is None

    eventually(gone, "the thread has let go of it")


def test_a_save_under_way_is_given_up_when_the_server_ends(shard, tmp_path, monkeypatch):
    """Origin: it was written to its end, at its pace, though nobody could complete it; what it wrote stayed."""
    writing, ending, finish = Event(), Event(), shard.saves.finish

    def rest(pace, hurry: bool = False) -> None:
        writing.set()
        shard.woken.set()
        assert ending.wait(30.0)

    def finish_at_the_end() -> None:
        ending.set()
        finish()

    monkeypatch.setattr(saving.Pace, "rest", rest)
    monkeypatch.setattr(saving.arrayfile, "PIECE", 1)
    shard.ask()
    shard.until(writing.is_set)
    monkeypatch.setattr(shard.saves, "finish", finish_at_the_end)
    shard.saves.last(TOKENS[1])
    assert shard.answers == [], "whoever asked asks the shard that takes its place"
    assert [path.name for path in shelf.incomplete(tmp_path)] == [f".partial-{TOKENS[1]}"]
    assert shelf.seal(tmp_path, TOKENS[1], 1, "test", "test", 0.0)[1].parts[0].weights[0].version == 1


def test_a_save_without_an_instant_fails_alone(shard, monkeypatch):
    """Origin: what went wrong there, as for want of memory, ended the shard's loop."""

    def take(save: saving.PartSave) -> None:
        raise MemoryError("no room for the rows")

    monkeypatch.setattr(saving.PartSave, "take", take)
    monkeypatch.setattr(saves_.logger, "exception", lambda *_: None)
    monkeypatch.setattr(saves_.logger, "error", lambda *_: None)
    shard.ask()
    shard.until(lambda: shard.answers)
    assert "no room for the rows" in str(shard.answers)
    assert shard.saves.info()["running"] == 0


def test_a_last_save_that_fails_for_want_of_memory_lets_the_shard_end_in_order(shard, monkeypatch):
    def take(save: saving.PartSave) -> None:
        raise MemoryError("no room for the rows")

    monkeypatch.setattr(saving.PartSave, "take", take)
    shard.saves.last(TOKENS[0])
    assert shard.saves.info()["failures"] == 1

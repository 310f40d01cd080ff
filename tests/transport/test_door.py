"""Doors of shards: taken, taken up after a death, held by the living, looked at by clients."""

from __future__ import annotations

import fcntl
import os
import threading

import pytest

from gear.errors import ServerConflict
from gear.transport import door
from gear.transport.door import Door, holder, is_held, locked_file, take_door


def test_a_door_is_the_same_for_who_comes_next_and_counts_the_eras(tmp_path):
    first, nonce, era = take_door(tmp_path / "door")
    assert era == 0
    mine = Door(str(tmp_path))
    assert (mine.nonce, mine.alive, mine.stands) == (nonce, True, True)
    os.close(first)
    assert (mine.alive, mine.stands) == (False, True)
    second, again, era = take_door(tmp_path / "door")
    assert (again, era) == (nonce, 1)
    assert mine.alive
    os.close(second)
    (tmp_path / "door").unlink()
    assert not mine.stands


def test_a_door_whose_maker_was_killed_before_it_wrote_a_word_gets_its_nonce(tmp_path):
    (tmp_path / "door").touch(0o600)
    taken, nonce, era = take_door(tmp_path / "door")
    assert (len(nonce), era) == (16, 1)
    assert Door(str(tmp_path)).nonce == nonce
    assert holder(tmp_path / "door") == os.getpid()
    os.close(taken)
    assert take_door(tmp_path / "door")[1:] == (nonce, 2)


def test_a_file_that_is_looked_at_before_its_maker_has_locked_it_is_locked_all_the_same(tmp_path, monkeypatch):
    """Origin: a client that entered while a shard that was started again looked at the locks of clients was refused."""
    flock, refused = fcntl.flock, []

    def looked_at(descriptor: int, how: int) -> None:
        if not refused:
            refused.append(how)
            raise BlockingIOError
        flock(descriptor, how)

    monkeypatch.setattr(door.fcntl, "flock", looked_at)
    held = locked_file(tmp_path / "client")
    monkeypatch.undo()
    assert refused
    descriptor = os.open(tmp_path / "client", os.O_RDONLY)
    assert is_held(descriptor)
    os.close(descriptor)
    os.close(held)


def test_a_door_says_which_process_holds_it(tmp_path):
    assert holder(tmp_path / "door") == 0
    for _ in range(2):
        held = take_door(tmp_path / "door")[0]
        assert holder(tmp_path / "door") == os.getpid()
        os.close(held)
        assert holder(tmp_path / "door") == 0


def test_a_door_that_somebody_holds_is_refused(tmp_path, monkeypatch):
    held = take_door(tmp_path / "door")[0]
    monkeypatch.setattr(door, "_LOOKED_AT", 0.01)
    with pytest.raises(ServerConflict, match="another process serves"):
        take_door(tmp_path / "door")
    os.close(held)


def test_clients_that_look_whether_a_door_is_held_do_not_keep_it_from_being_taken(tmp_path):
    os.close(take_door(tmp_path / "door")[0])
    stop = threading.Event()

    def look() -> None:
        descriptor = os.open(tmp_path / "door", os.O_RDONLY)
        while not stop.is_set():
            is_held(descriptor)
        os.close(descriptor)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for era in range(1, 50):
            descriptor, _, there = take_door(tmp_path / "door")
            assert there == era
            os.close(descriptor)
    finally:
        stop.set()
        for thread in threads:
            thread.join()

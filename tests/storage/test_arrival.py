"""Rows that came with their entries: when they get a place, what they hold until then, what is left of them after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gear.errors import DataError, ProtocolError
from gear.schema import Column, SampleToInsertRatio, Steps, Table, Window
from gear.storage import arrival
from gear.storage import fields as f
from gear.storage.arrival import Arrival, Places
from gear.storage.layout import COMMIT_ENTRY
from gear.storage.queue import CommitDone, RequestQueue
from gear.storage.table import StoredTable

WHOLE = f.BEGIN | f.END
STEPS = 4


class Sender:
    """A client whose trajectories all hold their number, in blocks of four steps."""

    def __init__(self, **fields: Any) -> None:
        given = {"capacity": Steps(40), "item": Window(1), "mean_length": 8, "max_length": 20, "block_steps": STEPS}
        columns = (Column("x", (), "int64"), Column("y", (), "int64", per="trajectory"))
        self.stored = StoredTable(Table("t", columns, **{**given, **fields}))
        self.queue = RequestQueue(self.stored)
        self.places = Places(self.stored.layout, self.stored.segment)
        self.client = self.stored.attach(bytes(16))
        self.sequence = 0
        self.results: list[Any] = []

    def send(self, *parts: tuple[int, int, int, int]) -> None:
        """One message of (slot, rows before, rows, flags); the number of a row is its slot's."""
        entries, blocks, values = np.zeros(len(parts), COMMIT_ENTRY), [], []
        for k, (slot, before, length, flags) in enumerate(parts):
            self.sequence += 1
            final = flags & f.HAS_FINAL != 0
            last, first = -(-(before + length + final) // STEPS), before // STEPS
            added = last - -(-before // STEPS)
            entries[k] = (self.sequence, slot, added, length, flags, 0, before, 0)
            images = last - first if length + final else 0
            blocks.append(np.full((images, STEPS), slot, np.int64))
            if flags & f.BEGIN:
                values.append(slot)
        frames = [block.view(np.uint8).reshape(-1) for block in blocks if len(block)]
        values = np.array(values, np.int64).view(np.uint8)
        growing = self.queue.growing(self.client)
        one = Arrival(self.stored, self.places, self.client, growing, entries, np.empty(0), values, frames)
        self.queue.insert(self.client, one, self.results.append)

    def figures(self, *names: str) -> list[int]:
        info = self.stored.info()
        return [info[name] for name in names]

    def rows(self) -> dict[int, list[int]]:
        """The rows of each stored trajectory by its per-trajectory column."""
        slots, blocks = (self.stored.layout.view(self.stored.segment, name) for name in ("slots", "blocks"))
        found = {}
        for slot in np.flatnonzero((slots[:, f.STATE] == f.CLOSED) | (slots[:, f.STATE] == f.OPEN)):
            chain, block = [], int(slots[slot, f.FIRST])
            while block >= 0:
                chain += self.places.blocks[block].view(np.int64)[:STEPS].tolist()
                block = int(blocks[block, f.NEXT])
            value = int(self.places.values[0][slot].copy().view(np.int64)[0])
            found[value] = chain[: slots[slot, f.LENGTH]]
        return found


def test_whole_trajectories_get_their_place_at_once():
    sender = Sender()
    sender.send((7, 0, 5, WHOLE), (8, 0, 1, WHOLE), (9, 0, 8, WHOLE | f.HAS_FINAL))
    assert sender.results == [CommitDone(3, [])]
    assert sender.rows() == {7: [7] * 5, 8: [8], 9: [9] * 8}
    assert sender.figures("leased_blocks", "used_blocks") == [0, 2 + 1 + 3]


def test_a_trajectory_grows_over_messages_and_within_one():
    sender = Sender(publish="rows")
    sender.send((3, 0, 3, f.BEGIN), (3, 3, 2, 0))
    sender.send((3, 5, 0, f.END | f.HAS_FINAL), (3, 0, 2, f.BEGIN))
    sender.send((3, 2, 7, f.END))
    assert [type(result) for result in sender.results] == [CommitDone] * 3
    assert sender.figures("trajectories", "inserted_steps", "leased_blocks") == [2, 14, 0]
    assert sender.queue.growing(sender.client) == {}


def test_more_than_the_share_of_leases_goes_in_parts_and_evicts():
    sender = Sender()
    for number in range(5):
        sender.send(*[(10 * number + k, 0, 20, WHOLE) for k in range(5)])
    assert [type(result) for result in sender.results] == [CommitDone] * 5
    assert set(sender.rows()) == {43, 44}
    assert sender.figures("leased_blocks", "inserted_trajectories", "trajectories") == [0, 25, 2]


def parked() -> Sender:
    sender = Sender(limiter=SampleToInsertRatio(1.0, 1, 2.0))
    sender.send(*[(k, 0, 1, WHOLE) for k in range(12)])
    assert sender.results == []
    return sender


def test_what_the_limiter_holds_back_can_be_withdrawn_whether_or_not_it_has_a_place():
    sender = parked()
    done = sender.stored.committed(sender.client)
    assert 0 < done < 10
    assert sender.queue.withdraw(sender.client, done + 1, 11) == 11 - done
    assert sender.queue.withdraw(sender.client, 1, 12) == 1
    assert sender.results == [CommitDone(done, [])]
    assert sender.figures("leased_blocks", "inserted_trajectories") == [0, done]


def test_nothing_is_evicted_for_rows_that_the_limiter_holds_back():
    sender = parked()
    evicted = sender.figures("evicted_trajectories")
    sender.send(*[(k, 0, 20, WHOLE) for k in range(5)])
    assert sender.figures("evicted_trajectories") == evicted
    assert not sender.queue.starved
    assert sender.queue.unplaced(sender.client) > 0


def test_a_client_that_is_gone_leaves_nothing():
    sender = parked()
    sender.send((5, 0, 20, WHOLE))
    sender.queue.forget(sender.client)
    sender.stored.fence(sender.client)
    assert sender.figures("leased_blocks") == [0]
    assert sender.queue.unplaced(sender.client) == 0
    assert sender.queue.idle


@pytest.fixture
def slow(monkeypatch) -> Sender:
    """A sender of a five-block trajectory of which one block is copied at a time."""
    monkeypatch.setattr(arrival, "TURN", 1)
    sender = Sender()
    sender.send((6, 0, 20, WHOLE), (7, 0, 1, WHOLE))
    assert sender.results == []
    assert sender.queue.copying == {sender.client}
    assert sender.figures("trajectories") == [0]
    return sender


def test_a_long_trajectory_is_copied_in_turns(slow):
    turns = 0
    while slow.queue.copying:
        slow.queue.advance()
        turns += 1
    assert turns >= 2
    assert slow.results == [CommitDone(2, [])]
    assert slow.rows() == {6: [6] * 20, 7: [7]}


def test_it_can_be_withdrawn_while_it_is_copied(slow):
    assert slow.queue.withdraw(slow.client, 1, 1) == 1
    while slow.queue.copying:
        slow.queue.advance()
    assert slow.results == [CommitDone(2, [])]
    assert slow.rows() == {7: [7]}
    assert slow.figures("leased_blocks") == [0]


def test_a_client_that_goes_while_its_rows_are_copied_leaves_nothing(slow):
    slow.queue.forget(slow.client)
    slow.stored.fence(slow.client)
    assert slow.queue.copying == set()
    assert slow.figures("leased_blocks", "trajectories") == [0, 0]


def test_a_lost_trajectory_is_reported_by_the_number_its_client_gave_it():
    sender = Sender(publish="rows", capacity=Steps(20))
    sender.send((3, 0, 3, f.BEGIN))
    sender.stored.reset()
    sender.send((3, 3, 1, 0))
    assert sender.results[-1] == CommitDone(2, [3])
    sender.send((3, 4, 0, f.END))
    assert sender.figures("used_blocks", "held_blocks", "leased_blocks") == [0, 0, 0]


def refused(error: type[Exception], match: str, *parts: Sequence[int]) -> None:
    sender = Sender()
    with pytest.raises(error, match=match):
        sender.send(*parts)  # type: ignore[arg-type]
    assert sender.figures("leased_blocks") == [0]


def test_lengths_that_can_not_be_are_refused():
    refused(DataError, "longer than the 20 steps", (1, 0, 21, WHOLE))
    refused(ProtocolError, "length can not be", (1, 3, 1, WHOLE))

"""Commit entries on their way: what is posted when, without a server."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from gear.storage.fields import BEGIN, END
from gear.storage.layout import COMMIT_ENTRY
from gear.transport import messages as m
from gear.transport.outbox import Outbox


class QuickShard:
    """Stands in for a conversation whose shard answers while the message is still being sent."""

    def __init__(self) -> None:
        self.posted: list[list[int]] = []
        self.held: list = []
        self.quick = False

    def check(self) -> None:
        pass

    def post(self, body: m.Commit, frames, on_answer) -> None:
        sequences = np.frombuffer(frames[0], COMMIT_ENTRY)["sequence"].tolist()
        self.posted.append(sequences)
        leases = np.zeros(body.want_blocks, np.int32).tobytes(), np.zeros(body.want_slots, np.int32).tobytes()
        call = SimpleNamespace(answer=m.Committed(sequences[-1], []), frames=leases)
        self.held.append(lambda: on_answer(call))
        if self.quick:
            self.answer()

    def answer(self) -> None:
        while self.held:
            self.held.pop(0)()


def test_an_answer_that_comes_while_sending_does_not_post_the_same_entries_again():
    shard = QuickShard()
    box = Outbox(shard, SimpleNamespace(layout=SimpleNamespace(index=0), lost=set()))
    box.asked = 4
    for slot in range(4):
        box.add(slot, [slot], 1, BEGIN | END, None)
    assert shard.posted == [[1]]
    shard.quick = True
    shard.answer()
    assert shard.posted == [[1], [2, 3, 4]]
    assert (box.settled, box.committed, box.count, box.flying) == (4, 4, 0, 0)
    assert [len(part) for part in box.spare(10, 10)] == [4, 4]

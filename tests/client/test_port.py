"""What flush and close say is still queued: commits, not numbers. In process and through a server."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator

import numpy as np
import pytest

import gear

COLUMNS = [gear.Column("x")]
ROWS = {"x": np.zeros(4, np.float32)}


LIMITER = gear.SampleToInsertRatio(1.0, 1, (-4.0, 4.0))


@pytest.fixture(params=["inproc", "shm"])
def held(request: pytest.FixtureRequest) -> Iterator[Held]:
    """A client over a table whose limiter holds further inserts back until something is sampled."""
    if request.param == "inproc":
        client = gear.embedded()
    else:
        client = gear.connect(request.getfixturevalue("server").address)
    name = f"held-{uuid.uuid4().hex[:8]}"
    client.create_table(gear.Table(name, COLUMNS, gear.Trajectories(64), item=gear.Whole(), limiter=LIMITER))
    client.insert_many([ROWS] * 4, name)
    client.flush(5.0)
    yield Held(client, name)
    with contextlib.suppress(gear.GearError):
        client.close(0.1)


class Held:
    """A client at its table."""

    def __init__(self, client: gear.Client, name: str) -> None:
        self.client, self.name = client, name

    def queue(self, count: int) -> None:
        """Insert so that it waits for the limiter."""
        for _ in range(count):
            self.client.insert(ROWS, self.name, wait=False)

    def withdraw(self, timeout: float = 0.05) -> None:
        """Insert in vain."""
        with pytest.raises(gear.DeadlineExceeded, match="nothing was inserted"):
            self.client.insert(ROWS, self.name, timeout=timeout)

    def check(self, queued: int) -> None:
        """Flush in vain, and see what it says."""
        with pytest.raises(gear.DeadlineExceeded, match=f"up to {queued} commits of table '{self.name}' are still"):
            self.client.flush(0.1)

    def sample(self, count: int) -> None:
        """Let as many inserts in."""
        self.client.sample(count, self.name, timeout=60.0)


def test_withdrawn_inserts_are_not_queued(held):
    """Origin: every insert that timed out was counted as queued, once another followed it."""
    held.queue(1)
    held.withdraw()
    held.withdraw()
    held.queue(2)
    held.withdraw()
    held.check(3)
    with pytest.raises(gear.DeadlineExceeded, match="0 of 3 trajectories were committed"):
        held.client.insert_many([ROWS] * 3, held.name, timeout=0.05)
    held.queue(1)
    held.check(4)


def test_inserts_withdrawn_in_the_order_in_which_they_came_are_not_queued(held):
    held.queue(1)
    threads = [threading.Thread(target=held.withdraw, args=(timeout,)) for timeout in (0.3, 0.9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    held.check(1)


@pytest.mark.parametrize("held", ["inproc"], indirect=True)  # a server acknowledges whole messages: "up to"
def test_what_was_committed_meanwhile_is_not_queued(held):
    held.queue(3)
    held.withdraw()
    held.queue(3)
    held.withdraw()
    held.queue(3)
    held.check(9)
    held.sample(2)
    held.check(7)
    held.sample(3)
    held.check(4)


def test_what_is_no_longer_waited_for_is_forgotten(held):
    port = held.client._tables.port(held.name, None)
    for _ in range(3):
        held.queue(1)
        held.withdraw()
        held.withdraw()
    assert port._withdrawn == [(6, 7), (9, 10), (12, 13)]
    held.sample(4)
    held.client.flush(5.0)
    assert port._withdrawn in ([], [(12, 13)])  # the flush waited for the last that is not withdrawn


def test_close_counts_alike(server):
    client = gear.connect(server.address)
    client.create_table(gear.Table("held", COLUMNS, gear.Trajectories(64), item=gear.Whole(), limiter=LIMITER))
    held = Held(client, "held")
    held.queue(6)
    held.withdraw()
    held.queue(1)
    with pytest.raises(gear.DeadlineExceeded, match="up to 3 commits of table 'held' are still queued"):
        client.close(0.2)

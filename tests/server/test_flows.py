"""Rows that are gathered while they are sent: whole whatever the kernel takes at a time, and nobody waits for them."""

from __future__ import annotations

import select
from collections import deque

import numpy as np
import pytest

from gear.server import flows
from gear.server.flows import Flow
from gear.server.grains import Grain
from gear.transport.lane import _ONE
from gear.transport.message import BAD, CUT
from tests.server.test_lanes import Shard
from tests.transport.helpers import eventually

GRAIN = 200_000


class Plan:
    """As much of a plan as a flow asks for."""

    nbytes = GRAIN


def number(segment, plan, starts, lengths, neighbours, out):
    """Gathers: writes the number of each grain."""
    if starts[0] < 0:
        raise ValueError("a bug")
    out[:] = starts[0]


@pytest.fixture
def shard(tmp_path):
    shard = Shard(tmp_path / "lane")
    yield shard
    shard.lanes.close()
    shard.poll.close()


def flow(grains: int, good: bool = True, first: int = 0, gather=number) -> Flow:
    cut = [Grain(Plan, k, k + 1, [(0, 10)]) for k in range(grains)]
    starts = np.arange(first, first + grains)
    ones, none = np.ones(grains, np.int32), np.zeros(0, np.int32)
    return Flow(np.zeros(0, np.uint8), cut, starts, ones, none, lambda: good, gather)


def rows(grains: int) -> bytes:
    return b"".join(bytes([k]) * GRAIN for k in range(grains))


def turn(shard: Shard) -> None:
    shard.turn()
    shard.lanes.finish()


def test_flows_and_messages_come_whole_and_in_order(shard):
    lane, client = shard.connect(), shard.known.client
    sent = [flow(40), flow(2, good=False), flow(1), flow(30)]
    for number, one in enumerate(sent):
        shard.lanes.send(client, client.lane, [b"head%d" % number], one)
        shard.lanes.send(client, client.lane, [b"between"])
    assert client.lane.lent, "no thread was needed: this tests nothing"
    came = []

    def all_came() -> bool:
        turn(shard)
        while (parts := lane.receive()) is not None:
            came.append([bytes(part) for part in parts])
        return len(came) == 8

    eventually(all_came, "all messages came", 20.0)
    assert came[1::2] == [[b"between"]] * 4
    for number, (grains, mark) in enumerate([(40, CUT), (2, BAD), (1, CUT), (30, CUT)]):
        assert came[2 * number] == [b"head%d" % number, rows(grains), mark]
    eventually(lambda: turn(shard) or not client.lane.lent, "the lane was given back")
    assert (client.lane.unsent, client.lane.flows, client.lane.kept) == (0, 0, 0)
    assert not select.select([client.lane.socket], [], [], 0)[0]
    lane.close()


@pytest.mark.parametrize("who", ["client", "shard", "bug"])
def test_a_lane_that_ends_in_mid_flow_is_closed_once_its_thread_has_left_it(shard, who):
    lane, client = shard.connect(), shard.known.client
    mine = client.lane
    if who == "bug":
        shard.lanes.send(client, mine, [b"head"], flow(40, first=-20))
    else:
        shard.lanes.send(client, mine, [b"head"], flow(100))
        assert mine.lent
        if who == "client":
            lane.close()
        else:
            shard.lanes.leave(client)
            assert mine.socket.fileno() >= 0, "the thread would write to another's descriptor"
    eventually(lambda: turn(shard) or mine.socket.fileno() < 0, "it was closed")
    assert client.lane is None
    assert client.cut_off
    again = shard.connect()
    shard.lanes.send(client, client.lane, [b"head"], flow(1))
    eventually(lambda: again.receive() == [b"head", rows(1), CUT], "the next one serves")
    again.close()
    lane.close()


def test_nothing_behind_a_goodbye_is_heard_while_a_thread_has_the_lane(shard):
    """Else who is gone would get a place in the tables again."""
    lane, client = shard.connect(), shard.known.client
    shard.lanes.send(client, client.lane, [b"head"], flow(100))
    assert client.lane.lent
    lane.send_bytes(b"".join(_ONE.pack(len(text), 1, len(text)) + text for text in (b"goodbye", b"one thing")))
    shard.turn()
    assert shard.heard == [b"goodbye"]
    lane.close()


def test_what_waits_behind_a_flow_that_failed_is_not_taken_for_its_rows(shard):
    def fails(segment, plan, starts, lengths, neighbours, out):
        if starts[0] == 39:
            raise MemoryError
        out[:] = starts[0]

    lane, client = shard.connect(), shard.known.client
    shard.lanes.send(client, client.lane, [b"head"], flow(40, gather=fails))
    assert client.lane.lent
    shard.lanes.send(client, client.lane, [b"other", bytes(2 * GRAIN)])
    came = []

    def ended() -> bool:
        turn(shard)
        while (parts := lane.receive()) is not None:
            came.append(parts)
        return lane.broken

    eventually(ended, "the lane ended", 20.0)
    assert not came
    lane.close()


def test_the_memory_of_a_huge_item_is_not_kept(shard, monkeypatch):
    monkeypatch.setattr(flows, "_LARGEST_SPARE", GRAIN - 1)
    monkeypatch.setattr(flows, "_spare", deque())
    assert flow(3).send(len, 1 << 30) == flows._DONE
    assert not flows._spare
    monkeypatch.setattr(flows, "_LARGEST_SPARE", GRAIN)
    assert flow(3).send(len, 1 << 30) == flows._DONE
    assert [len(memory) for memory in flows._spare] == [GRAIN]

"""How a shard answers clients that dial, without a device."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gear.errors import DeviceError, InsufficientMemory
from gear.server import peer as server_peer
from gear.server import peers
from gear.transport import messages as m
from gear.transport import rdma_device, rdma_trial
from gear.transport.rdma_queue import End
from gear.transport.rdma_trial import TRUST, Writing

DIAL = m.Dial(17, 5, 18, 6, "::1", 0, 5)


class Peer:
    """Queue pairs at a shard that has no memory left for an inbox."""

    def __init__(self, other: End, back: End) -> None:
        self.end, self.back, self.inbox = other, SimpleNamespace(end=back), None

    def open_inbox(self, windowed: bool) -> None:
        raise InsufficientMemory("4 MiB do not fit")

    def close(self) -> None:
        pass


@pytest.fixture
def dialed(monkeypatch):
    for name, value in (("Peer", Peer), ("enter", lambda: None), ("leave", lambda: None)):
        monkeypatch.setattr(peers, name, value)
    said: list[object] = []
    made = peers.Peers(None, lambda client, request, body, frames: said.append(body), None, None, lambda: None)
    client = SimpleNamespace(peer=None)
    yield lambda: (made._dial(client, 1, DIAL, []), said[-1])[1], client, made
    made.close([client])


def test_a_client_for_whose_inbox_there_is_no_memory_has_queue_pairs_all_the_same(dialed, monkeypatch):
    dial, client, made = dialed
    monkeypatch.setattr(peers, "writing", lambda: Writing.WINDOW)
    answer = dial()
    assert (answer.writes, answer.room, answer.inbox_key) == (False, 0, 0)
    assert client.peer is not None
    assert made.info()["queue_pairs"] == 1


def test_a_dial_that_is_refused_leaves_no_queue_pair(dialed, monkeypatch):
    dial, client, made = dialed
    monkeypatch.setenv(TRUST, "yes")
    with pytest.raises(DeviceError, match="expected 'trusted', 'inbox' or nothing, got 'yes'"):
        dial()
    assert client.peer is None
    assert made.info()["queue_pairs"] == 0


def test_on_a_device_without_windows_writers_get_inboxes(monkeypatch):
    class PyverbsError(Exception):
        pass

    def makes(*_) -> None:
        raise PyverbsError("operation not supported")

    enums = SimpleNamespace(IBV_MW_TYPE_2=2)
    for module in (rdma_device, rdma_trial):
        monkeypatch.setattr(module, "verbs", lambda: SimpleNamespace(MW=makes, PyverbsError=PyverbsError, enums=enums))
    bare = object.__new__(rdma_device.Device)
    bare.name, bare.domain = "siw0", None
    monkeypatch.setattr(rdma_trial, "device", lambda: bare)
    monkeypatch.delenv(TRUST, raising=False)
    assert rdma_trial.writing() is Writing.KEY


def test_windows_that_a_device_does_not_make_leave_none_open(monkeypatch):
    made: list[str] = []
    closed: list[None] = []

    def window() -> SimpleNamespace:
        if len(made) == 2:
            raise DeviceError("no more")
        made.append("open")
        return SimpleNamespace(close=lambda: closed.append(None))

    peer = object.__new__(server_peer.Peer)
    peer._device, peer._open, peer._pair = SimpleNamespace(window=window), {}, None
    monkeypatch.setattr(server_peer, "verbs", lambda: SimpleNamespace(enums=None))
    regions, segment = {"arena": SimpleNamespace(offset=0)}, np.zeros(8, np.uint8)
    layout = SimpleNamespace(block_bytes=8, regions=regions)
    hosted = SimpleNamespace(stored=SimpleNamespace(layout=layout, segment=segment), index=0)
    with pytest.raises(DeviceError, match="no more"):
        peer.open(hosted, None, np.array([1, 3, 5], np.int32))
    assert len(made) == len(closed) == 2
    assert not peer._open

"""What a client makes of a server that it asks for queue pairs, without a device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gear.errors import ConnectionLost, GearError
from gear.transport import messages as m
from gear.transport import rdma
from gear.transport.rdma import NoWay, RdmaSession
from gear.transport.tcp import TcpSession


@pytest.fixture
def enter(monkeypatch):
    monkeypatch.setattr(TcpSession, "_enter", lambda *_: None)
    monkeypatch.setattr(rdma, "enter", lambda: None)

    def entered(answer: object, error: GearError) -> None:
        def fails(*_) -> None:
            raise error

        session = object.__new__(RdmaSession)
        session._way = SimpleNamespace(dial=lambda talk: SimpleNamespace(answer=answer), pair=None)
        session._enter(SimpleNamespace(answer=fails), b"", 0.0)

    return entered


@pytest.mark.parametrize("kind", ["Broken", "GearError", "InsufficientMemory", "DeviceError"])
def test_a_server_that_refuses_queue_pairs_is_spoken_to_over_tcp(enter, kind):
    failed = m.Failed(kind, "a binding failed")
    with pytest.raises(NoWay, match="a binding failed"):
        enter(failed, failed.error())


def test_a_server_that_is_gone_is_not(enter):
    with pytest.raises(ConnectionLost):
        enter(None, ConnectionLost("gone"))

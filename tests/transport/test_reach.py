from __future__ import annotations

import socket

import pytest

from gear.errors import ConnectionLost
from gear.transport.finding import find
from gear.transport.reach import open_lane, refuses


def test_a_port_where_nobody_listens_refuses_and_one_where_somebody_does_not():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert not refuses(endpoint)
    assert refuses(endpoint)


def test_a_host_that_says_nothing_may_be_there(monkeypatch):
    def silent(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    assert not refuses("tcp://127.0.0.1:7400")


def test_a_host_without_a_way_to_it_may_be_there(monkeypatch):
    def unreachable(*_: object) -> None:
        raise OSError(113, "No route to host")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert not refuses("tcp://[::1]:7400")


def test_a_lane_goes_the_way_of_the_connection_though_the_name_has_an_ipv6_address_first(monkeypatch):
    real = socket.getaddrinfo

    def both(host: str, port: int, family: int = 0, *rest: int) -> list:
        found = real("127.0.0.1", port, socket.AF_INET, *rest) if family != socket.AF_INET6 else []
        six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
        return found if family == socket.AF_INET else [six, *found]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5.0)
        lane = open_lane(("localhost", listener.getsockname()[1]), b"hello")
        assert lane is not None
        listener.accept()[0].close()
        lane.close()


def test_a_host_that_cannot_be_is_told_of_to_who_would_wait_forever_too():
    with pytest.raises(
        ConnectionLost, match=r"the host name '-x-' of '-x-:7400' is unknown \(.*\); check its spelling"
    ):
        find("-x-:7400", "", None)

from __future__ import annotations

import socket

from gear.transport.reach import refuses


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

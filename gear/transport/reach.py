"""Whether anybody listens at an address: what tells a server that is gone from a connection that broke."""

from __future__ import annotations

import socket

from gear.transport.discovery import parse_address

PATIENCE = 0.2
"""Seconds that a host has to say so."""


def refuses(endpoint: str) -> bool:
    """Whether the host of ``tcp://host:port`` says that nobody listens there; False where it says nothing."""
    host, port = parse_address(endpoint)
    try:
        socket.create_connection((host.strip("[]"), port), PATIENCE).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # unreachable, silent: it may be there
        return False
    return False

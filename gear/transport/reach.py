"""Reaching a shard beside its ZeroMQ connection: whether anybody listens there, and the lane."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from gear.transport.arriving import NOWHERE, Destination
from gear.transport.discovery import parse_address
from gear.transport.lane import LANE, Lane

if TYPE_CHECKING:
    from gear.transport.messages import Welcome

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


def lane_address(endpoint: str, welcome: Welcome) -> str | tuple[str, int] | None:
    """Where a shard that said welcome at `endpoint` takes lanes: path of a socket, or host and port; None: nowhere."""
    if endpoint.startswith("ipc:"):
        return f"{welcome.directory}/{LANE}"
    return (parse_address(endpoint)[0].strip("[]"), welcome.port) if welcome.port else None


def open_lane(address: str | tuple[str, int], greeting: bytes, destination: Destination = NOWHERE) -> Lane | None:
    """A lane to there that says the greeting as soon as it can; None if there cannot be one now."""
    try:
        if isinstance(address, str):
            one, target = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), address
        else:
            # As the shard listens and as ZeroMQ connects: a name may stand for an IPv6 address first.
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            target = socket.getaddrinfo(*address, family, socket.SOCK_STREAM)[0][4]  # type: ignore[assignment]
            one = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    one.setblocking(False)
    if one.connect_ex(target) not in (0, errno.EINPROGRESS):
        one.close()
        return None
    lane = Lane(one, destination)
    lane.send_bytes(greeting)
    return lane

"""How a client comes to a server: where its shards are, and the best data path to them."""

from __future__ import annotations

import os
import time

from gear.errors import ProtocolError
from gear.transport.discovery import discover, endpoint_of, parse_address
from gear.transport.door import NotShared
from gear.transport.messages import Shard
from gear.transport.remote import deadline_of
from gear.transport.shm import ShmSession
from gear.transport.tcp import TcpSession

PATHS = (None, "shm", "tcp")


def connect(
    address: str, token: str | None = None, timeout: float | None = 10.0, path: str | None = None
) -> ShmSession | TcpSession:
    """A session with the server at ``host:port``; the token defaults to the variable ``GEAR_TOKEN``.

    `path` is None for the best one there is.

    Raises
    ------
    ConnectionLost, AuthenticationError, ProtocolError
    """
    if path not in PATHS:
        raise ProtocolError(f"path: expected 'shm', 'tcp' or None for the better of both, got {path!r}")
    deadline = deadline_of(timeout)
    token = os.environ.get("GEAR_TOKEN", "") if token is None else token
    found = discover(address, token, timeout)
    if len(found.shards) != 1:
        raise ProtocolError(f"the server at {address} has {len(found.shards)} shards; this release connects to one")
    return open_session(found.shards[0], parse_address(address)[0], token, found.heartbeat, deadline, path)


def open_session(
    shard: Shard, host: str, token: str, heartbeat: float, deadline: float, path: str | None = None
) -> ShmSession | TcpSession:
    """A session with one shard: over shared memory if both ends read a nonce through it, else over TCP."""

    def left() -> float:
        return max(1.0, deadline - time.monotonic())

    if path != "tcp":
        try:
            return ShmSession(endpoint_of(shard, host), token, heartbeat, left())
        except NotShared:
            if path == "shm":
                raise
    return TcpSession(f"tcp://{host}:{shard.port}", token, heartbeat, left())

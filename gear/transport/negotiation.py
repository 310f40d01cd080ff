"""How a client comes to a server: where its shards are, and the best data path to them."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from gear.errors import GearError, ProtocolError
from gear.transport.discovery import discover, endpoint_of, parse_address
from gear.transport.door import NotShared
from gear.transport.finding import find
from gear.transport.keys import ClientKeys, client_keys
from gear.transport.messages import Shard
from gear.transport.rdma_verbs import device_names
from gear.transport.remote import deadline_of
from gear.transport.several import Several
from gear.transport.shm import ShmSession
from gear.transport.tcp import TcpSession

if TYPE_CHECKING:
    from gear.transport.keys import KeyPath

logger = logging.getLogger(__name__)

PATHS = (None, "shm", "rdma", "tcp")
_ASKING_SECONDS = 0.5


def connect(
    address: str,
    token: str | None = None,
    timeout: float | None = 10.0,
    path: str | None = None,
    curve_keys: KeyPath | ClientKeys | None = None,
) -> ShmSession | TcpSession | Several:
    """A session with the server at ``host:port``; the token defaults to the variable ``GEAR_TOKEN``.

    `path` is None for the best one there is; `curve_keys` a directory, by default that of ``GEAR_CURVE_KEYS``.

    Raises
    ------
    ConnectionLost, AuthenticationError, ProtocolError
    DeviceError
        If `path` is ``"rdma"`` and rows cannot be moved by RDMA between this host and the server's.
    """
    if path not in PATHS:
        raise ProtocolError(f"path: expected 'shm', 'rdma', 'tcp' or None for the best of them, got {path!r}")
    deadline = deadline_of(timeout)
    token = os.environ.get("GEAR_TOKEN", "") if token is None else token
    keys = curve_keys if isinstance(curve_keys, ClientKeys) else client_keys(curve_keys)
    found, host = find(address, token, timeout, keys), parse_address(address)[0]
    sessions: dict[int, ShmSession | TcpSession] = {}
    try:
        for shard in found.shards:
            session = sessions[shard.index] = open_session(shard, host, token, found.heartbeat, deadline, path, keys)
            session.known_as(address)
            if isinstance(session, TcpSession):
                session.listed = _Listed(address, token, shard, keys)
    except BaseException:
        for session in sessions.values():
            session.close()
        raise
    if found.count == 1:
        return sessions[0]
    return Several(sessions, found.count)


class _Listed:
    """Asks a server whether it still has a shard, when that cannot be reached."""

    def __init__(self, address: str, token: str, shard: Shard, keys: ClientKeys | None) -> None:
        self._address, self._token, self._shard, self._keys = address, token, shard, keys

    def __call__(self) -> bool | None:
        """Whether it has; None if it does not answer."""
        try:
            return self._shard in discover(self._address, self._token, _ASKING_SECONDS, self._keys).shards
        except GearError:
            return None


def open_session(
    shard: Shard,
    host: str,
    token: str,
    heartbeat: float,
    deadline: float,
    path: str | None = None,
    keys: ClientKeys | None = None,
) -> ShmSession | TcpSession:
    """A session with one shard: over shared memory if both ends read a nonce through it, by RDMA if both have a device.

    Else over TCP, and over TCP where there are keys.
    """

    def left() -> float:
        return max(1.0, deadline - time.monotonic())

    if path in (None, "shm"):
        try:
            return ShmSession(endpoint_of(shard, host), token, heartbeat, left(), keys)
        except NotShared:
            if path == "shm":
                raise
    endpoint = f"tcp://{host}:{shard.port}"
    # Keys are there to encrypt, which adapters do not: rows go by them only where that was asked for.
    if path == "rdma" or (path is None and keys is None and device_names()):
        from gear.transport.rdma import NoWay, RdmaSession

        try:
            return RdmaSession(endpoint, token, heartbeat, left(), keys)
        except NoWay as error:
            if path == "rdma":
                raise
            logger.info("rows go over TCP, not by RDMA: %s", error)
    return TcpSession(endpoint, token, heartbeat, left(), keys)

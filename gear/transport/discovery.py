"""Addresses, and the one question asked on a server's public port: where are the shards?"""

from __future__ import annotations

import os
import re
import time

import zmq

from gear.errors import AuthenticationError, ConnectionLost, ProtocolError
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.channel import context

DEFAULT_PORT = 7400
MOST_TOKEN = 4096
"""Characters of a token at most, as messages carry it."""

_ADDRESS = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+)(?::(\d{1,5}))?")


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host[:port]``, with or without ``tcp://``.

    Raises
    ------
    ProtocolError
        If it is no address.
    """
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    port = int(match[2]) if match and match[2] else DEFAULT_PORT
    if match is None or not 0 < port < 65536:
        raise ProtocolError(f"expected an address like 'localhost:{DEFAULT_PORT}', got {address!r}")
    return match[1], port


def endpoint_of(shard: m.Shard, host: str) -> str:
    """Where to connect to a shard that a server at `host` named: its local socket, if that is of this host."""
    local = shard.socket and os.path.exists(shard.socket)
    return f"ipc://{shard.socket}" if local else f"tcp://{host}:{shard.port}"


def check_token(token: str) -> None:
    """Refuse what cannot be a token, before it meets the wire; it is never shown.

    Raises
    ------
    AuthenticationError
        If it is no text, too long, or holds bytes of the environment that are no UTF-8.
    """
    expected = f"token=... or GEAR_TOKEN: expected a text of at most {MOST_TOKEN} characters"
    if not isinstance(token, str):
        raise AuthenticationError(f"{expected}, got {type(token).__name__}; give a str")
    if len(token) > MOST_TOKEN:
        raise AuthenticationError(f"{expected}, got {len(token)}; give what the server's --token-file holds")
    try:
        token.encode()
    except UnicodeEncodeError as error:
        raise AuthenticationError(
            f"{expected} in UTF-8, got one whose character {error.start} is none; "
            "give what the server's --token-file holds"
        ) from None


def discover(address: str, token: str, timeout: float | None) -> m.Discovered:
    """Ask the server at `address` for its shards, waiting for it to come up.

    Raises
    ------
    ConnectionLost
        If nothing answers in time.
    AuthenticationError, ProtocolError
        If the server refuses the token or the protocol version, or is no GEAR server.
    """
    check_token(token)
    host, port = parse_address(address)
    deadline = time.monotonic() + (timeout if timeout is not None else 10 * 365 * 86400.0)
    socket = context().socket(zmq.DEALER)
    try:
        socket.linger = 0
        socket.setsockopt(zmq.IPV6, host.startswith("["))
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        socket.setsockopt(zmq.MAXMSGSIZE, 1 << 20)
        socket.connect(f"tcp://{host}:{port}")
        socket.send(wire.encode(m.Envelope(m.PROTOCOL, 0, 0, [], m.Discover(token))))
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not socket.poll(min(left, 3600.0) * 1000):
                if time.monotonic() < deadline:
                    continue
                raise ConnectionLost(
                    f"no gear-server answered at {host}:{port} within {timeout:g} s; start one with "
                    f"`gear-server --port {port}` or check the address"
                )
            body = wire.decode_answer(socket.recv_multipart()).body
            if isinstance(body, m.Failed):
                raise body.error()
            if isinstance(body, m.Discovered):
                return body
            raise ProtocolError(f"the server at {host}:{port} answered {type(body).__name__} to Discover")
    except zmq.ZMQError as error:
        raise ConnectionLost(f"cannot connect to {host}:{port}: {error}") from None
    finally:
        socket.close(0)

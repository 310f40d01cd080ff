"""Addresses, and the one question asked on a server's public port: where are the shards?"""

from __future__ import annotations

import os
import re
import socket
import time
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from gear.errors import AuthenticationError, ConnectionLost, ProtocolError
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.channel import context, readable
from gear.transport.keys import secure

if TYPE_CHECKING:
    from gear.transport.keys import ClientKeys

DEFAULT_PORT = 7400
MOST_TOKEN = 4096
"""Characters of a token at most, as messages carry it."""

_PATIENCE = 0.5
"""Seconds that an end that hangs up has to say what it speaks."""

_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_OTHER_MECHANISM = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)

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


def _mechanism(host: str, port: int) -> bytes:
    """What the other end speaks as its greeting says (ZMTP 3, RFC 23), b"" if nothing is heard.

    ZeroMQ may be hung up on before it has read that; ours here is never whole, so nobody finds fault with it.
    """
    greeting = b""
    try:
        with socket.create_connection((host.strip("[]"), port), _PATIENCE) as one:
            one.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00")  # signature, version
            while len(greeting) < 32 and (more := one.recv(64)):
                greeting += more
    except OSError:
        return b""
    return greeting[12:32].rstrip(b"\0")


def _heed(monitor: zmq.Socket[bytes], host: str, port: int, keys: bool) -> tuple[str, int]:
    """Take in why connections failed before a word was said, and how many were made.

    The first is what may be the reason if that is not certain.

    Raises
    ------
    AuthenticationError
        If it is the keys.
    """
    hint, where, hung_up, made = "", f"{host}:{port}", False, 0
    while readable(monitor):
        event = recv_monitor_message(monitor)
        if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            raise AuthenticationError(
                f"the server at {where} does not know this client's CURVE key; have its public key put into clients/ "
                "of the server's --curve-keys directory (gear keys client makes one and puts it there)"
            )
        if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and event["value"] == _OTHER_MECHANISM:
            raise _other_mechanism(where, keys)
        made += event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        hung_up |= event["event"] == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    if hung_up:
        speaks = _mechanism(host, port)
        if speaks == (b"NULL" if keys else b"CURVE"):
            raise _other_mechanism(where, keys)
        if keys:
            hint = "; something listens there and hung up: server.pub in the directory of keys may be another server's"
    return hint, made


def _other_mechanism(where: str, keys: bool) -> AuthenticationError:
    return AuthenticationError(
        f"the server at {where} does not use CURVE keys; leave curve_keys= and GEAR_CURVE_KEYS away, or start "
        "it with --curve-keys"
        if keys
        else f"the server at {where} wants CURVE keys and none were given; pass curve_keys=... or set "
        "GEAR_CURVE_KEYS to a directory with client.key and server.pub of those made by gear keys new"
    )


def discover(address: str, token: str, timeout: float | None, keys: ClientKeys | None = None) -> m.Discovered:
    """Ask the server at `address` for its shards, waiting for it to come up; encrypted, with `keys`.

    Raises
    ------
    ConnectionLost
        If nothing answers in time.
    AuthenticationError, ProtocolError
        If the server refuses keys, token or protocol version, or is no GEAR server.
    """
    check_token(token)
    host, port = parse_address(address)
    deadline = time.monotonic() + (timeout if timeout is not None else 10 * 365 * 86400.0)
    asking = context().socket(zmq.DEALER)
    monitor = asking.get_monitor_socket(_REFUSED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    poller = zmq.Poller()
    hint, connections = "", 0
    question = wire.encode(m.Envelope(m.PROTOCOL, 0, 0, [], m.Discover(token)))
    try:
        asking.linger = 0
        asking.setsockopt(zmq.IPV6, host.startswith("["))
        asking.setsockopt(zmq.RECONNECT_IVL, 20)
        asking.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        asking.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        asking.setsockopt(zmq.MAXMSGSIZE, 1 << 20)
        secure(asking, "tcp:", keys)
        asking.connect(f"tcp://{host}:{port}")
        for one in (asking, monitor):
            poller.register(one, zmq.POLLIN)
        asking.send(question)
        while True:
            left = deadline - time.monotonic()
            came = dict(poller.poll(int(min(max(left, 0.0), 3600.0) * 1000)))
            if monitor in came:
                doubt, made = _heed(monitor, host, port, keys is not None)
                hint, connections = doubt or hint, connections + made
                if made and connections > 1:  # who took the question may have ended before it answered
                    asking.send(question, zmq.NOBLOCK)
            if asking not in came:
                if time.monotonic() < deadline:
                    continue
                raise ConnectionLost(
                    f"no gear-server answered at {host}:{port} within {timeout:g} s; start one with "
                    f"`gear-server --port {port}` or check the address{hint}"
                )
            body = wire.decode_answer(asking.recv_multipart()).body
            if isinstance(body, m.Failed):
                raise body.error()
            if isinstance(body, m.Discovered):
                return body
            raise ProtocolError(f"the server at {host}:{port} answered {type(body).__name__} to Discover")
    except zmq.ZMQError as error:
        raise ConnectionLost(f"cannot connect to {host}:{port}: {error}") from None
    finally:
        asking.disable_monitor()
        monitor.close(0)
        asking.close(0)

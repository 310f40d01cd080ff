"""ZeroMQ CURVE keys of a client: its own pair, and the public key that its server must prove to have.

A directory of keys is made by ``gear keys new DIR``. A client needs two files of it, `client.key` (0600) and
`server.pub`; what else lies there is the server's (`gear.server.keys`). Key files are ZeroMQ certificates: text.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from gear.errors import AuthenticationError
from gear.transport.private import MOST_BYTES, read_private

if TYPE_CHECKING:
    from typing import TypeAlias

    KeyPath: TypeAlias = str | os.PathLike[str]

CLIENT_KEY = "client.key"
SERVER_PUBLIC = "server.pub"
VARIABLE = "GEAR_CURVE_KEYS"

_FIELD = re.compile(r'^\s*(public|secret)-key\s*=\s*"([!-~]{40})"\s*$', re.M)


@dataclass(frozen=True)
class KeyPair:
    """A public key and the secret one that belongs to it, each Z85 of 32 bytes."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class ClientKeys:
    """What a client proves who it is with, and the public key of the only server that it speaks to."""

    pair: KeyPair
    server: bytes


def need_curve() -> None:
    """Refuse where ZeroMQ was built without encryption.

    Raises
    ------
    AuthenticationError
    """
    if not zmq.has("curve"):
        raise AuthenticationError("this libzmq was built without CURVE; install pyzmq from its wheels, which have it")


def read_pair(path: Path, what: str) -> KeyPair:
    """The pair in a key file.

    Raises
    ------
    AuthenticationError
        If others may read it, or it holds none.
    """
    found = _fields(read_private(path, f"{what} {path}"))
    if found.keys() != {"public", "secret"}:
        raise AuthenticationError(f"{what} {path}: expected a pair of CURVE keys, got none; make it with gear keys new")
    return KeyPair(found["public"], found["secret"])


def read_public(path: Path, what: str) -> bytes:
    """The key in a file for others.

    Raises
    ------
    AuthenticationError
        If it holds none, or one that is to be kept secret.
    """
    try:
        with open(path, "rb") as file:
            found = _fields(file.read(MOST_BYTES))
    except OSError as error:
        raise AuthenticationError(f"{what} {path}: {error.strerror}; make it with gear keys new") from None
    if found.keys() != {"public"}:
        raise AuthenticationError(f"{what} {path}: expected one public CURVE key; make it with gear keys new")
    return found["public"]


def _fields(content: bytes) -> dict[str, bytes]:
    found = _FIELD.findall(content.decode(errors="replace"))
    return {name: value.encode() for name, value in found}


def client_keys(directory: KeyPath | None) -> ClientKeys | None:
    """Keys in a directory, by default that of ``GEAR_CURVE_KEYS``; None without one.

    Raises
    ------
    AuthenticationError
        If they cannot be used.
    """
    given = directory if directory is not None else os.environ.get(VARIABLE, "")
    if not isinstance(given, (str, os.PathLike)):
        raise AuthenticationError(f"curve_keys: expected the path of a directory, got {type(given).__name__}")
    if not os.fspath(given):
        return None
    need_curve()
    path, what = Path(given), "curve_keys" if directory is not None else VARIABLE
    return ClientKeys(read_pair(path / CLIENT_KEY, what), read_public(path / SERVER_PUBLIC, what))


def secure(socket: zmq.Socket[bytes], endpoint: str, keys: ClientKeys | None) -> None:
    """Have what a socket sends to a TCP endpoint encrypted; local sockets are guarded by the file system."""
    if keys is not None and endpoint.startswith("tcp:"):
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.pair.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret)

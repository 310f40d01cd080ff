"""What a server is told: checked options, and the part of them that its shard gets through a pipe."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import socket
import stat
from pathlib import Path

import msgspec

from gear.errors import AuthenticationError, DeviceError, ServerConflict
from gear.schema import MAX_SHARDS, Table
from gear.storage.memory import SHARED, size_text
from gear.transport.discovery import MOST_TOKEN

LEAST_TOKEN = 8
_MOST_BYTES = 1 << 16
"""Of a token file: far more than a token and the white space around it take."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.I)
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class Options(msgspec.Struct, frozen=True):
    """A server's options, checked."""

    name: str
    host: str
    port: int
    devices: str
    memory: int
    token: str
    log_level: str
    discard: bool
    client_timeout: float
    tables: tuple[Table, ...] = ()
    metrics_port: int | None = None
    max_restarts: int = 5


class ShardOptions(msgspec.Struct, frozen=True):
    """What the supervisor tells a shard on its standard input, the token included: never in arguments.

    It is number `index` of `shards`; `directory` and `memory` are its own part of the server's. `port`: where it
    listened before, 0 if it never did. `encrypted`: nothing may leave the host but by ZeroMQ, which encrypts it.
    """

    name: str
    host: str
    index: int
    shards: int
    directory: str
    memory: int
    token: str
    log_level: str
    discard: bool
    client_timeout: float
    port: int = 0
    encrypted: bool = False


class Ready(msgspec.Struct, frozen=True):
    """What a shard says on its standard output when it serves: its public port and its local socket.

    Of what it has taken up: tables, trajectories, bytes of segments, damaged entries. `refused`: why it does not serve.
    """

    port: int = 0
    socket: str = ""
    tables: int = 0
    trajectories: int = 0
    nbytes: int = 0
    damaged: int = 0
    refused: str = ""


def parse_size(text: str) -> int:
    """Bytes of ``8GiB``, ``500MB``, ``2g`` or ``1048576``.

    Raises
    ------
    ValueError
        If it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a size like 8GiB, 500MB or a number of bytes, got {text!r}")
    number, unit, binary = match.groups()
    base = 1024 if binary or not text.strip().lower().endswith("b") else 1000
    size = int(float(number) * base ** " kmgt".index(unit.lower() or " "))
    if size <= 0:
        raise ValueError(f"expected a size above zero, got {text!r}")
    return size


def default_memory() -> int:
    """80 % of what the shared-memory filesystem can hold."""
    stat_ = os.statvfs(SHARED)
    return stat_.f_blocks * stat_.f_frsize * 8 // 10


def memory_token(nbytes: int) -> str:
    """A size as one word."""
    return size_text(nbytes).replace(" ", "")


def check_name(name: str) -> str:
    """The server's name, refused unless it can be part of a file name.

    Raises
    ------
    ValueError
    """
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise ValueError(f"expected a name of 1 to 64 letters, digits or '_.-', got {name!r}")
    return name


def check_devices(devices: str) -> str:
    """The device list, refused unless it can be served here.

    Raises
    ------
    DeviceError
        Never is another device taken instead.
    """
    if devices == "cpu":
        return devices
    match = re.fullmatch(r"cpu:(\d{1,9})", devices)
    if match and 1 <= int(match[1]) <= MAX_SHARDS:
        return "cpu" if int(match[1]) == 1 else f"cpu:{int(match[1])}"
    if match:
        raise DeviceError(f"--devices {devices}: expected 1 to {MAX_SHARDS} shards")
    if re.fullmatch(r"\d+(,\d+)*", devices):
        there = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit())
        asked = sorted({int(number) for number in devices.split(",")})
        missing = [number for number in asked if number not in there]
        if missing:
            raise DeviceError(
                f"--devices {devices}: GPU {', '.join(map(str, missing))} is not there (found: "
                f"{', '.join(map(str, there)) or 'no GPU'}); use --devices cpu or start on a machine that has it"
            )
        raise DeviceError(f"--devices {devices}: tables in GPU memory come in a later release; use --devices cpu")
    raise DeviceError(f"--devices {devices!r}: expected 'cpu', 'cpu:N' or GPU numbers like '0,1'")


def shard_count(devices: str) -> int:
    """How many shards a checked device list stands for."""
    return int(devices.partition(":")[2] or 1)


def resolve(host: str) -> str:
    """The address to bind to.

    Raises
    ------
    ServerConflict
        If the host is unknown.
    """
    if host in ("*", ""):
        return "0.0.0.0"
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ServerConflict(f"--host {host}: {error.strerror}; give an address of this machine") from None


def read_token(path: str | None, host: str) -> str:
    """A server's token; required unless `host` (an address) is loopback.

    Raises
    ------
    AuthenticationError
        If it is missing, or its file is refused, see `token_of`.
    """
    if path is None:
        if not ipaddress.ip_address(host).is_loopback:
            raise AuthenticationError(
                f"--host {host} is not loopback: a token is required; write one into a file only you can read "
                "(umask 077; python3 -c 'import secrets; print(secrets.token_hex())' > token), --token-file token"
            )
        return ""
    return token_of(path)


def token_of(path: str) -> str:
    """The token in the file of ``--token-file``, white space around it left out.

    Raises
    ------
    AuthenticationError
        If the file cannot be read, others than its owner may use it, or it holds no token. What it holds is
        never shown.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(_MOST_BYTES + 1) if not mode & (stat.S_IRWXG | stat.S_IRWXO) else None
    except OSError as error:
        raise AuthenticationError(f"--token-file {path}: {error.strerror}") from None
    if content is None:
        raise AuthenticationError(
            f"--token-file {path}: its mode is {mode:04o}, expected that only its owner can read it; "
            f"chmod 600 {shlex.quote(path)}"
        )
    wanted = f"expected a token of {LEAST_TOKEN} to {MOST_TOKEN} characters"
    if len(content) > _MOST_BYTES:
        raise AuthenticationError(f"--token-file {path}: {wanted}, got a file of more than {_MOST_BYTES} bytes")
    try:
        token = content.decode().strip()
    except UnicodeDecodeError as error:
        raise AuthenticationError(
            f"--token-file {path}: {wanted} in UTF-8, got a file whose byte {error.start} is none; write a new one "
            "(umask 077; python3 -c 'import secrets; print(secrets.token_hex())' > token)"
        ) from None
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN:
        raise AuthenticationError(f"--token-file {path}: {wanted}, got {len(token)}")
    return token

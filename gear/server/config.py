"""What a server is told: checked options, and the part of them that its shard gets through a pipe."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from typing import Any

import msgspec

from gear.errors import AuthenticationError, CheckpointError, DeviceError, ServerConflict
from gear.schema import MAX_SHARDS, Table
from gear.storage.memory import SHARED, size_text
from gear.transport.discovery import MOST_TOKEN
from gear.transport.message import hidden
from gear.transport.private import MOST_BYTES, read_private

LEAST_TOKEN = 8
_NEW_TOKEN = "umask 077; python3 -c 'import secrets; print(secrets.token_hex())' > token"
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
    curve_keys: str = ""
    checkpoint: str = ""
    checkpoint_every: float = 0.0
    keep: int = 0
    restore: str = ""
    to_host: bool = False
    gpus: tuple[str, ...] = ()
    device_memory: int = 0

    __repr__ = hidden


class ShardOptions(msgspec.Struct, frozen=True):
    """What the supervisor tells a shard on its standard input, the token included: never in arguments.

    It is number `index` of `shards`; `directory` and `memory` are its own part of the server's. `port`: where it
    listened before, 0 if it never did. `curve_keys`: directory of keys, empty without encryption. `checkpoint`: the
    directory of checkpoints, of which `keep` are kept; `last`: the token of the save that the shard makes at its end.
    `restore`: the checkpoint that it begins with. `curve_pair`: the public and secret key that the supervisor read in
    `curve_keys`; one that is started again has the same, whatever lies there. `gpu`: UUID of its device, "" for the
    CPU; `device_memory`: bytes of it that tables may take. `to_host`: columns that were saved on a device come to the
    host; `beside`: memory is kept, and only what was on a device is restored.
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
    curve_keys: str = ""
    checkpoint: str = ""
    keep: int = 0
    last: str = ""
    restore: str = ""
    curve_pair: tuple[str, str] | None = None
    gpu: str = ""
    device_memory: int = 0
    to_host: bool = False
    beside: bool = False

    __repr__ = hidden

    @property
    def encrypted(self) -> bool:
        """Whether nothing may go over the network in the clear: only what ZeroMQ encrypts listens there."""
        return bool(self.curve_keys)


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


_PERIOD = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?")
_UNITS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_period(text: str) -> float:
    """Seconds of ``30s``, ``5m``, ``2h`` or ``90``.

    Raises
    ------
    ValueError
        If it is no period, or shorter than a second.
    """
    match = _PERIOD.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds < 1.0:
        raise ValueError(f"expected a period of at least a second, like 30s, 5m or 2h, got {text!r}")
    return seconds


def check_checkpoints(directory: str, every: float, keep: int, restore: str, to_host: bool) -> dict[str, Any]:
    """The options of checkpoints, as `Options` has them.

    Raises
    ------
    CheckpointError
        If some of them need ``--checkpoint``.
    """
    if not directory and (every or keep or restore == "latest"):
        raise CheckpointError("--checkpoint-every, --keep and --restore latest need --checkpoint DIR")
    if to_host and not restore:
        raise CheckpointError("--restore-to-host says how --restore latest|PATH restores; add that")
    return {
        "to_host": to_host,
        "checkpoint": os.path.abspath(directory) if directory else "",
        "checkpoint_every": every,
        "keep": keep,
        "restore": restore if restore in ("", "latest") else os.path.abspath(restore),
    }


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
    from gear.devices.choice import choose, name_of

    return ",".join(map(name_of, choose(devices)))


def gpus_of(devices: str, device_memory: int | None) -> tuple[tuple[str, ...], int]:
    """UUIDs of the GPUs in a checked list, and the bytes that tables may take on each.

    Raises
    ------
    DeviceError
        If one of them has not that much.
    """
    if devices.startswith("cpu"):
        if device_memory is not None:
            raise DeviceError(f"--device-memory is for GPUs, and --devices {devices} names none; leave it out")
        return (), 0
    from gear.devices.choice import check_budget, choose, default_budget

    chosen = choose(devices)
    if device_memory is None:
        device_memory = min(default_budget(device) for device in chosen)
    for device in chosen:
        check_budget(device, device_memory)
    return tuple(device.uuid for device in chosen), device_memory


def shard_count(devices: str) -> int:
    """How many shards a checked device list stands for."""
    if devices.startswith("cpu"):
        return int(devices.partition(":")[2] or 1)
    return devices.count(",") + 1


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
                f"({_NEW_TOKEN}), --token-file token"
            )
        return ""
    return token_of(path)


def read_keys(directory: str | None, host: str) -> str:
    """The directory of a server's CURVE keys, absolute, "" without; required unless `host` is loopback.

    Raises
    ------
    AuthenticationError
        If it is missing, or the keys cannot be used.
    """
    if directory is not None:
        from gear.server.keys import ServerKeys

        return str(ServerKeys(directory).directory)
    if not ipaddress.ip_address(host).is_loopback:
        raise AuthenticationError(
            f"--host {host} is not loopback: CURVE keys are required, as token and rows would cross the network in the "
            "clear; make a directory of keys (gear keys new keys), give --curve-keys keys, and give its client.key and "
            "server.pub to clients (gear.connect(curve_keys=...) or GEAR_CURVE_KEYS)"
        )
    return ""


def token_of(path: str) -> str:
    """The token in the file of ``--token-file``, white space around it left out.

    Raises
    ------
    AuthenticationError
        If the file cannot be read, others than its owner may use it, or it holds no token. What it holds is
        never shown.
    """
    content = read_private(path, f"--token-file {path}")
    wanted = f"expected a token of {LEAST_TOKEN} to {MOST_TOKEN} characters"
    if len(content) > MOST_BYTES:
        raise AuthenticationError(f"--token-file {path}: {wanted}, got a file of more than {MOST_BYTES} bytes")
    try:
        token = content.decode().strip()
    except UnicodeDecodeError as error:
        raise AuthenticationError(
            f"--token-file {path}: {wanted} in UTF-8, got a file whose byte {error.start} is none; write a new one "
            f"({_NEW_TOKEN})"
        ) from None
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN:
        raise AuthenticationError(f"--token-file {path}: {wanted}, got {len(token)}")
    return token

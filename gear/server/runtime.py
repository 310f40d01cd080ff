"""Where a server leaves its traces: the lock of its name, the record of its memory, its directory there.

The runtime directory (0700) holds per server name a lock file, locked as long as the supervisor lives, and a record
(0600) of the directory in the shared-memory filesystem that holds its segments. That directory has an unguessable name.
A supervisor that finds it takes up what is kept there, and the shards that still serve it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gear.errors import ServerConflict
from gear.storage.memory import SHARED, size_text
from gear.transport.door import CLIENTS, DOOR, holder

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

SEGMENTS = "table-*"
LOST = "lost-"
"""Begins the name of a file that stands for a table which ended with a shard (`gear.server.lost`)."""
SOCKET = "socket"
_DIRECTORY = re.compile(r"gear-[0-9a-f]{32}")


class Record(msgspec.Struct):
    """What is written down about a server."""

    directory: str
    supervisor: int = 0
    shards: list[int] = []
    address: str = ""
    ports: list[int] = []
    restoring: bool = False


class Claim(NamedTuple):
    """A directory in the shared-memory filesystem; of a kept one the ports of its shards, and processes that live."""

    directory: Path
    kept: bool = False
    ports: list[int] = []
    living: dict[int, int] = {}


def runtime_directory() -> Path:
    """The directory for locks and records, made if need be.

    Raises
    ------
    ServerConflict
        If somebody else owns it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base, "gear") if base else Path(tempfile.gettempdir(), f"gear-{os.getuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ServerConflict(f"{path} belongs to somebody else; set XDG_RUNTIME_DIR to a directory of your own")
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


class Place:
    """A server's name, taken for as long as this process lives.

    Raises
    ------
    ServerConflict
        If a server of that name runs.
    """

    def __init__(self, name: str) -> None:
        folder = runtime_directory()
        self.name = name
        self._record = folder / f"{name}.record"
        self._lock = folder / f"{name}.lock"
        while True:
            self.descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self.descriptor)
                record = self.read()
                who = f" (at {record.address}, processes {record.supervisor}, {record.shards})" if record else ""
                raise ServerConflict(
                    f"a server named {name!r} is running{who}; stop it or start this one with another --name"
                ) from None
            if self._still_there():
                break
            os.close(self.descriptor)  # its last owner removed it just now
        self.directory: Path | None = None

    def _still_there(self) -> bool:
        try:
            return self._lock.stat().st_ino == os.fstat(self.descriptor).st_ino
        except FileNotFoundError:
            return False

    def read(self) -> Record | None:
        """The record, None if there is none that can be trusted."""
        try:
            record = msgspec.json.decode(self._record.read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError):
            return None
        path = Path(record.directory)
        return record if path.parent == SHARED and _DIRECTORY.fullmatch(path.name) else None

    def write(self, record: Record) -> None:
        """Replace the record."""
        new = self._record.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(record))
        new.replace(self._record)

    def claim(
        self, discard: bool, count: int, check: Callable[[Claim], list[int]] = lambda claim: claim.ports
    ) -> Claim:
        """The directory of an earlier server of this name, if it keeps anything, else a fresh one, for `count` shards.

        `check` refuses to take over living shards, by raising; nothing of theirs is touched then. It returns the ports.

        Raises
        ------
        ServerConflict
            If what is kept belongs to another number of shards, or is to be discarded while shards serve it; if some
            shards live and others have died before all of a checkpoint was restored.
        """
        record = self.read()
        if record is not None:
            kept = Path(record.directory)
            size = kept_bytes(kept)
            there = len(record.shards) or count
            living = _living(kept, there)
            if record.restoring and not living and size:  # it was killed before all was there
                logger.warning("%s holds a part of a checkpoint that was not restored whole: removed", kept)
                shutil.rmtree(kept, ignore_errors=True)
                size = 0
            if record.restoring and 0 < len(living) < there:
                raise ServerConflict(
                    f"processes {sorted(living.values())} are restoring their parts of a checkpoint into {kept}, but "
                    "their supervisor is gone and others with theirs: end them (SIGTERM) and start again, which "
                    "restores all of it"
                )
            if living and (discard or there != count):
                why = f"it has {there} shards, not {count}" if there != count else "--discard would take their tables"
                raise ServerConflict(
                    f"a server named {self.name!r} is running: its supervisor is gone, processes "
                    f"{sorted(living.values())} still serve {kept}, and {why}; start without --discard and with "
                    "--devices as before to take them over, or stop them (SIGTERM)"
                )
            if size and not discard and there != count:
                raise ServerConflict(
                    f"server {self.name!r} left {size_text(size)} ({size} bytes) of tables of {there} shards in "
                    f"{kept}, and {count} are asked for: start with --devices {'cpu' if there == 1 else f'cpu:{there}'}"
                    ", with --discard to remove them, or keep them with another --name"
                )
            if living or (size and not discard):
                claim = Claim(kept, True, record.ports, living)
                claim = claim._replace(ports=check(claim))
                self.directory = kept
                return claim
            if size:
                logger.warning("discarding %s of tables kept in %s", size_text(size), kept)
            shutil.rmtree(kept, ignore_errors=True)
        path = SHARED / f"gear-{secrets.token_hex(16)}"
        self.write(Record(str(path), os.getpid()))
        path.mkdir(mode=0o700)
        self.directory = path
        return Claim(path)

    def leave(self, discard: bool) -> int:
        """Remove everything but segments that are to be kept; returns their bytes."""
        kept = clear(self.directory, discard) if self.directory is not None else 0
        if not kept and self.directory is not None:
            self._record.unlink(missing_ok=True)
        if self.read() is None:
            self._lock.unlink(missing_ok=True)
        os.close(self.descriptor)
        return kept


def door_of(directory: Path, index: int, shards: int) -> Path:
    """The door of a shard."""
    return shard_directory(directory, index, shards) / DOOR


def _living(directory: Path, count: int) -> dict[int, int]:
    """Shards of an earlier server that still serve: process by number. The record may be older than they are."""
    found = {index: holder(door_of(directory, index, count)) for index in range(count)}
    return {index: pid for index, pid in found.items() if pid}


def kept_bytes(directory: Path) -> int:
    """Bytes of the segments in a server's directory."""
    return sum(path.stat().st_size for path in directory.rglob(SEGMENTS))


def shard_directory(directory: Path, index: int, shards: int) -> Path:
    """The directory of one shard: the server's own if it is the only one."""
    return directory if shards == 1 else directory / f"shard-{index}"


def last_token(directory: Path) -> str:
    """The token of the save that shards make at the end of a server, by its directory: known to who adopts them too."""
    return directory.name[-16:]


def clear(directory: Path, discard: bool) -> int:
    """Remove a directory of a server or shard, or all but the segments to be kept in it; returns their bytes."""
    kept = 0 if discard else kept_bytes(directory)
    if not kept:
        shutil.rmtree(directory, ignore_errors=True)
        return 0
    keep = {*directory.glob(SEGMENTS), *directory.glob(f"{LOST}*")}
    keep |= {directory / DOOR, directory / CLIENTS}  # clients wait for who takes it up
    for path in directory.iterdir():
        if path in keep:
            continue
        if path.is_dir():
            clear(path, False)
        else:
            path.unlink(missing_ok=True)
    return kept

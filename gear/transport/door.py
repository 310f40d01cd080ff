"""The door file: proof that two processes share memory, and that either of them is still alive.

A shard's directory in the shared-memory filesystem holds a `door` (16 random bytes, how often the shard was started
before, and its process; locked by the shard as long as it lives) and one locked file per client. A door that nobody
holds is that of a shard which may be started again; it goes with the directory. A lock ends when the last process that
holds it dies, also by SIGKILL, never while a process is merely stopped; a fork inherits it as it inherits the mapping.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
import time
import weakref
from pathlib import Path

from gear.errors import ConnectionLost, ServerConflict

DOOR = "door"
CLIENTS = "clients"
NONCE_BYTES = 16
_LOOKED_AT = 5.0
"""Seconds after which a door that is held is somebody's: looking at it takes microseconds."""

_HOLDER = struct.Struct("<qq")
"""How often the shard was started before, and the process that holds the door, or held it last."""


def locked_file(path: Path, content: bytes = b"") -> int:
    """Create a file that is locked as long as this process (or a fork of it) lives; its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not _taken(descriptor):
        os.close(descriptor)
        raise BlockingIOError(errno.EWOULDBLOCK, "another process holds what was just made", str(path))
    if content:
        os.write(descriptor, content)
    return descriptor


def take_door(path: Path) -> tuple[int, bytes, int]:
    """The door of a shard: made, or that of one that has died. Its descriptor, nonce, and how many came before.

    Raises
    ------
    ServerConflict
        If a living process holds it.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    try:
        return locked_file(path, nonce + _HOLDER.pack(0, os.getpid())), nonce, 0
    except FileExistsError:
        pass
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    if not _taken(descriptor):
        os.close(descriptor)
        raise ServerConflict(f"another process serves what lies in {path.parent}")
    content = os.pread(descriptor, NONCE_BYTES + _HOLDER.size, 0)
    if len(content) < NONCE_BYTES:  # whoever made it was killed before it wrote a word
        content = nonce
        os.pwrite(descriptor, nonce, 0)
    era = _HOLDER.unpack(content[NONCE_BYTES:])[0] + 1 if len(content) == NONCE_BYTES + _HOLDER.size else 1
    os.pwrite(descriptor, _HOLDER.pack(era, os.getpid()), NONCE_BYTES)
    return descriptor, content[:NONCE_BYTES], era


def _taken(descriptor: int) -> bool:
    """Lock an open file that nobody holds for good: whoever looks whether it is held does so for a moment."""
    deadline = time.monotonic() + _LOOKED_AT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)  # a wait that ends by itself: the system offers a lock, or a deadline, not both


def is_held(descriptor: int) -> bool:
    """Whether somebody else holds the lock of this open file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def holds(path: Path) -> bool:
    """Whether a living process holds the door there (it may be stopped)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return is_held(descriptor)
    finally:
        os.close(descriptor)


def holder(path: Path) -> int:
    """The process that holds the door there (it may be stopped); 0 if none does."""
    deadline = time.monotonic() + _LOOKED_AT
    while holds(path) and time.monotonic() < deadline:
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # it ended just now, and took it along
            return 0
        if len(content) == NONCE_BYTES + _HOLDER.size:
            pid = int(_HOLDER.unpack(content[NONCE_BYTES:])[1])
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 0)
                return pid
        time.sleep(0.001)  # whoever has locked it just now says next who it is
    return 0


class NotShared(ConnectionLost):
    """The shard's shared memory cannot be reached from here."""


class Door:
    """A client's view of a shard's directory.

    Raises
    ------
    NotShared
        If the shard's shared memory cannot be reached from here.
    """

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self._opened: list[int] = []
        self._closing = weakref.finalize(self, _close, self._opened)
        self._closing.atexit = False  # the lock lasts as long as the process
        try:
            self._descriptor = os.open(self.directory / DOOR, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._opened.append(self._descriptor)
            self.nonce = os.read(self._descriptor, NONCE_BYTES)
        except OSError as error:
            raise NotShared(
                f"the server's shared memory {directory} cannot be opened here ({error.strerror}): path='shm' needs "
                "a client on the server's host, with the same user and the same /dev/shm; leave path= away"
            ) from None

    @property
    def alive(self) -> bool:
        """Whether the shard's process lives (it may be stopped)."""
        return is_held(self._descriptor)

    @property
    def stands(self) -> bool:
        """Whether the door is still there: what it led to is kept, and the shard may be started again."""
        try:
            there = os.stat(self.directory / DOOR)
        except OSError:
            return False
        return there.st_ino == os.fstat(self._descriptor).st_ino

    def enter(self, client: bytes) -> None:
        """Hold this client's lock file."""
        try:
            self._opened.append(locked_file(self.directory / CLIENTS / client.hex()))
        except OSError as error:
            raise NotShared(f"cannot write to {self.directory}: {error.strerror}; use the server's user") from None

    def leave(self) -> None:
        """Close the files; only for a client that touches the shared memory no more."""
        self._closing()


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())

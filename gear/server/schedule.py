"""Checkpoints by the clock, and the last one of a server: asked for as any client would, or put together from parts.

The thread has a connection of its own to the server for each save. What fails is logged and tried again when the next
one is due.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gear
from gear.errors import CheckpointError, GearError, ServerConflict
from gear.storage import arrayfile, shelf
from gear.storage.memory import size_text

if TYPE_CHECKING:
    from gear.transport.keys import ClientKeys

logger = logging.getLogger(__name__)


class Checkpoints:
    """The directory of a server's checkpoints.

    Parameters
    ----------
    directory : str
    keep : int
        How many complete ones stay, 0 for all.
    server : str
        The server's name.

    Raises
    ------
    ServerConflict
        If another server writes there, or nobody can.
    """

    def __init__(self, directory: str, keep: int, server: str) -> None:
        self.directory, self._keep, self._server = Path(directory), keep, server
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        try:
            arrayfile.make_folder(self.directory)
            self._lock = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ServerConflict(f"--checkpoint {directory}: {(error.strerror or str(error)).lower()}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ServerConflict(
                f"--checkpoint {directory}: another server writes there; use another directory"
            ) from None

    def tidy(self) -> None:
        """Remove what saves of before have left that did not come to their end; nobody may be saving there."""
        for path in shelf.incomplete(self.directory):
            shelf.abandon(path)
            what = "it counts for nothing, remove it yourself" if path.exists() else "removed"
            logger.warning("%s was never completed: %s", path, what)

    def start(self, every: float, address: str, token: str, keys: ClientKeys | None) -> None:
        """Save every so many seconds."""
        told = every, address, token, keys
        self._thread = threading.Thread(target=self._run, args=told, name="checkpoints", daemon=True)
        self._thread.start()

    def _run(self, every: float, address: str, token: str, keys: ClientKeys | None) -> None:
        due = time.monotonic() + every
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due = max(due + every, time.monotonic())
            self._save(address, token, keys)

    def _save(self, address: str, token: str, keys: ClientKeys | None) -> None:
        from gear.transport.negotiation import connect

        try:
            session = connect(address, token, curve_keys=keys or "")
            try:
                done = session.checkpoint(None)
            finally:
                session.close()
        except GearError as error:
            if not self._over.is_set():
                logger.error("no checkpoint: %s", error)
            return
        logger.info(
            "checkpoint %s: %s, %s of it new, %d trajectories%s, %.2f s (%s/s)", done.path, size_text(done.nbytes),
            size_text(done.written), done.trajectories, f" ({done.left_out} left out)" * bool(done.left_out),
            done.seconds, size_text(done.written / max(done.seconds, 1e-9)),
        )  # fmt: skip

    def stop(self) -> None:
        """Begin no more."""
        self._over.set()

    def complete(self, token: str, shards: int) -> None:
        """Put together what the shards have saved at their end."""
        try:
            path, whole = shelf.seal(self.directory, token, shards, gear.__version__, self._server, time.time())
        except (CheckpointError, OSError) as error:
            logger.error("no checkpoint of the end: %s", error)
            shelf.abandon(shelf.partial(self.directory, token))
            return
        logger.info("checkpoint %s: %s, %s of it new", path, size_text(whole.nbytes), size_text(whole.written))
        shelf.keep(self.directory, self._keep)

    def close(self) -> None:
        """Let others write there."""
        self.stop()
        os.close(self._lock)

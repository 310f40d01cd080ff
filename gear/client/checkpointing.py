"""A client's verb for checkpoints of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gear.client import arguments as check
from gear.client.state import State

if TYPE_CHECKING:
    from gear.checkpoint import Checkpoint


class Checkpointing(State):
    """Saves what a server holds to its disk."""

    def checkpoint(
        self, *, progress: Callable[[int, int], None] | None = None, timeout: float | None = None
    ) -> Checkpoint:
        """Save a checkpoint of all tables, in the directory that the server was started with (``--checkpoint DIR``).

        It holds each shard as it was at one instant. Inserts, samples and evictions go on meanwhile.

        Parameters
        ----------
        progress : (bytes done, bytes in all) -> None, optional
            Called a few times a second while it is written.
        timeout : float, optional
            Seconds that it may take.

        Returns
        -------
        Checkpoint
            Its ``path`` on the server's host, bytes and seconds.

        Raises
        ------
        CheckpointError
            If the server keeps none, or it could not be written (the disk is full, say). What was written of it is
            removed; the server goes on.
        ConnectionLost
            If a shard is gone.
        DeadlineExceeded
            Nothing was saved.
        """
        return self._session.checkpoint(check.seconds(timeout), progress)

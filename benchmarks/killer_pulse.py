"""Whether the server that `benchmarks.killer` maltreats is well, and since when it is not."""

from __future__ import annotations

import threading
import time

import gear

LONG = 12.0
"""Seconds away from which on they may: over tcp after 15 in which nobody listens at the shard's port."""


class Pulse:
    """Asks the server again and again how it is, and knows when it was last well.

    Attributes
    ----------
    well : when all shards last answered (`time.monotonic()`).
    away : when that began, and how many seconds it took, each time that they did not for long.
    """

    def __init__(self, client: gear.Client) -> None:
        self._client, self._over = client, threading.Event()
        self.well, self.away = time.monotonic(), list[tuple[float, float]]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.2):
            shards = self._client.info(timeout=300.0).get("shards", {})
            if all(shard["ready"] for shard in shards.values()):
                now = time.monotonic()
                if now - self.well > LONG:
                    self.away.append((self.well, now - self.well))
                self.well = now

    @property
    def silent(self) -> float:
        """Seconds since the server was well."""
        return time.monotonic() - self.well

    def excuses(self) -> bool:
        """Whether the server is, or just was, away for so long that clients may give it up."""
        return self.silent > LONG or any(time.monotonic() - begin - took < LONG for begin, took in self.away)

    def stop(self) -> bool:
        """Ask no more; whether it was always answered in the end."""
        answered = self._thread.is_alive()
        self._over.set()
        self._thread.join(300)
        return answered

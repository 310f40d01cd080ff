"""What a shard does by the clock: deadlines, expired pins, revocations, leases called back.

One number says when the next of it is due, so that a message costs no look at anything but the table it was about:
whoever may have made something due sooner says so, of one table by `touch`, of anything by `stir`.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from gear.transport import messages as m

if TYPE_CHECKING:
    from gear.server.bulk import Send
    from gear.server.lending import Lending
    from gear.server.tables import Hosted, Tables
    from gear.server.weights import Weights

logger = logging.getLogger(__name__)

_RECLAIM_SECONDS = 0.05
_AGAIN_SECONDS = 1.0
"""After which what has failed is tried again."""

_NEVER = float("inf")


class Timers:
    """The clock of a shard.

    Parameters
    ----------
    tables, weights, lending : of the shard.
    send : see `bulk.Send`.

    Attributes
    ----------
    due : `time.monotonic()` at which `tick` has something to do, as of its last call; infinity for never.
    touched : tables with which something was done since.
    """

    def __init__(self, tables: Tables, weights: Weights, lending: Lending, send: Send) -> None:
        self._tables, self._weights, self._lending, self._send = tables, weights, lending, send
        self.due = 0.0
        self.touched: set[Hosted] = set()

    def stir(self) -> None:
        """Anything may be due sooner than was known."""
        self.due = 0.0

    def tick(self, now: float) -> None:
        """Do what is due by `time.monotonic()`; to be called after whatever has happened."""
        touched = self.touched
        if touched:
            for hosted in touched:
                due = _due(hosted, now)
                if due < self.due:
                    self.due = due
            touched.clear()
        if now >= self.due or self._lending.active:
            self._all(now)

    def _all(self, now: float) -> None:
        ill: set[object] = set()
        clock = time.time()
        for hosted in self._tables:
            try:
                self._look_at(hosted, now, clock)
            except Exception:  # a bug of ours with one table must not take down all others
                logger.exception("what was due of table number %d failed", hosted.index)
                ill.add(hosted)
        others = (self._weights, self._weights.expire), (self._lending, self._lending.tick)
        for part, do in others:
            try:
                do(now)
            except Exception:
                logger.exception("what was due of %s failed", type(part).__name__)
                ill.add(part)
        due = [now + _AGAIN_SECONDS] if ill else []
        due += [_due(hosted, now) for hosted in self._tables if hosted not in ill]
        if self._weights not in ill and (deadline := self._weights.next_deadline) is not None:
            due.append(deadline)
        if self._lending not in ill and (next_due := self._lending.next_due(now)) is not None:
            due.append(next_due)
        self.due = min(due, default=_NEVER)

    def _look_at(self, hosted: Hosted, now: float, clock: float) -> None:
        hosted.queue.expire(now)
        if hosted.queue.copying or hosted.stored.growing.expire(clock):
            hosted.queue.advance()
        if hosted.stored.pins.next_expiry <= clock:
            self.revoke(hosted, hosted.stored.pins.expire(clock))
            hosted.queue.advance()
        if hosted.queue.starved and now >= hosted.reclaim_at:
            hosted.reclaim_at = now + _RECLAIM_SECONDS
            self.revoke(hosted, hosted.stored.reclaim())
            hosted.queue.advance()  # pins that nobody had joined are gone at once
            self.recall(hosted)

    def recall(self, hosted: Hosted) -> None:
        """Ask for leases beyond a client's share."""
        for row, blocks in hosted.stored.recall_leases():
            if row in hosted.clients:
                self._send(hosted.clients[row], 0, m.Recall(hosted.index, min(blocks, m.MAX_ROWS)), [])

    def revoke(self, hosted: Hosted, told: list[tuple[int, int]]) -> None:
        """Tell clients that pins have ended."""
        by_client: dict[int, list[int]] = {}
        for row, pin in told:
            by_client.setdefault(row, []).append(pin)
        for row, pins in by_client.items():
            client = hosted.clients.get(row)
            if client is not None:
                client.told.update((hosted.index, pin) for pin in pins)
                if not client.reaches:  # it reads nothing by itself
                    for pin in pins:
                        hosted.stored.pins.release(row, pin, False)
                self._send(client, 0, m.Revoke(hosted.index, pins), [])


def _due(hosted: Hosted, now: float) -> float:
    """When something of a table is due, by `time.monotonic()`."""
    queue, stored = hosted.queue, hosted.stored
    if queue.copying:
        return now
    due = queue.next_deadline()
    soonest = _NEVER if due is None else due
    expiry = min(stored.pins.next_expiry, stored.growing.next_expiry)
    if expiry != _NEVER:
        soonest = min(soonest, expiry - time.time() + now)
    return min(soonest, hosted.reclaim_at) if queue.starved else soonest

"""Waiting for the first of several shards: a request to each, and sleep until one is answered.

A shard is asked once, however many threads wait and however often: a request that nobody waits for any more is
answered when its event comes, and the next to wait finds it. Nothing polls.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gear.errors import ConnectionLost

if TYPE_CHECKING:
    from gear.transport.conversation import Call
    from gear.transport.session import RemoteSession


class Watch:
    """A request that is answered when a shard has more than `above` items, and who sleeps until then."""

    def __init__(self, session: RemoteSession, above: int) -> None:
        self.session, self.above = session, above
        self._bells: set[int] = set()
        self.call: Call | None = None

    def answered(self, call: Call) -> None:
        """Wake who sleeps; another thread may be the one that receives the answer."""
        for bell in list(self._bells):
            with contextlib.suppress(OSError):
                os.eventfd_write(bell, 1)

    @property
    def over(self) -> bool:
        """Whether the answer has come, as far as was received."""
        return self.call is not None and self.call.done

    def look(self) -> bool:
        """Receive what has come; whether the answer is there, or the shard is gone."""
        try:
            return self.over or self.call is None or self.session.look(self.call)
        except ConnectionLost:
            return True

    def hang(self, bell: int) -> None:
        """Ring that eventfd at the answer."""
        self._bells.add(bell)

    def take_down(self, bell: int) -> None:
        """Do not ring it any more."""
        self._bells.discard(bell)


def first_of(watches: Mapping[int, Watch], deadline: float) -> bool:
    """Sleep until any of them is over; False at the deadline (`time.monotonic()`)."""
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        for watch in watches.values():
            watch.hang(bell)
        while True:
            poll = select.poll()
            poll.register(bell, select.POLLIN)
            over = False
            for watch in watches.values():
                over |= watch.look()
                for descriptor in watch.session.descriptors():
                    poll.register(descriptor, select.POLLIN)
            if over:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            poll.poll(min(left, 1.0) * 1000)  # a connection that broke is made anew meanwhile
    finally:
        for watch in watches.values():
            watch.take_down(bell)
        os.close(bell)

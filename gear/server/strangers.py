"""Connections of a ZeroMQ socket on which nobody has said yet who he is: so many at most, the oldest gives way.

ZeroMQ takes in whoever connects, and turns in a circle once the process has no descriptor left for the next one.
"""

from __future__ import annotations

import contextlib
import logging
import socket

logger = logging.getLogger(__name__)


class Strangers:
    """Known by the descriptors of their connections, as ZeroMQ's monitor tells them.

    Parameters
    ----------
    most : int
        Of them that may be there.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._there: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._there)

    def came(self, descriptor: int) -> None:
        """Somebody has connected."""
        self._there.pop(descriptor, None)
        self._there[descriptor] = None
        if len(self._there) > self._most:
            oldest = next(iter(self._there))
            del self._there[oldest]
            logger.info("more than %d connections on which nobody says who he is: the oldest is cut off", self._most)
            cut_off(oldest)

    def left(self, descriptor: int) -> None:
        """That connection is gone, or somebody has said who he is."""
        self._there.pop(descriptor, None)


def cut_off(descriptor: int) -> None:
    """End a connection that ZeroMQ has: it notices, and closes the descriptor.

    The descriptor may be another's by now, as ZeroMQ closes in threads of its own. That one's connection then breaks,
    and is made anew.
    """
    with contextlib.suppress(OSError):
        one = socket.socket(fileno=descriptor)
        try:
            one.shutdown(socket.SHUT_RDWR)
        finally:
            one.detach()

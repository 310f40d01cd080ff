"""The ZeroMQ side of a shard: a ROUTER socket, and the monitor that tells who connected and whose connection broke.

Knows neither clients nor messages. Its calls never wait; whoever owns it waits on its descriptors.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from gear.server.keys import Gate
from gear.transport.channel import readable
from gear.transport.messages import MAX_FRAME

if TYPE_CHECKING:
    from gear.server.keys import ServerKeys

logger = logging.getLogger(__name__)

_MONITORED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


class Router:
    """The socket.

    Parameters
    ----------
    path : str
        Of the local socket.
    host : str
        Where it listens too.
    silence : float
        Seconds without a sign of life after which a connection counts as broken.
    port : int
        Where clients look for it; 0 for any, which it takes too if that one is not free any more.
    keys : ServerKeys, optional
        That clients must know who come over TCP. The local socket is guarded by its mode and its directory's.

    Attributes
    ----------
    port : where it listens.
    descriptor : signals that something may have arrived since `arrived` said no.
    monitor_descriptor : signals that `events` may have something.
    used : whether the socket was used since `arrived` said no: then its descriptor may have been silenced.
    """

    def __init__(self, path: str, host: str, silence: float, port: int = 0, keys: ServerKeys | None = None) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._monitor = _configured(self.socket, int(silence * 1000))
        self.socket.bind(f"ipc://{path}")
        os.chmod(path, 0o600)
        if keys is not None:  # options count for what is bound later
            Gate(self._context, keys)
            keys.guard(self.socket)
        self.port = self._bind(host, port)
        self.descriptor, self.monitor_descriptor = int(self.socket.fd), int(self._monitor.fd)
        self.used = True

    def _bind(self, host: str, port: int) -> int:
        if port:
            try:
                self.socket.bind(f"tcp://{host}:{port}")
            except zmq.ZMQError as error:
                logger.warning("cannot listen on port %d again, as before: %s", port, error)
            else:
                return port
        return int(self.socket.bind_to_random_port(f"tcp://{host}"))

    def events(self) -> Iterator[tuple[bool, int]]:
        """Connections made (True) and broken (False) since, by descriptor."""
        while readable(self._monitor):
            event = recv_monitor_message(self._monitor)
            yield event["event"] == zmq.EVENT_ACCEPTED, event["value"]

    def arrived(self) -> bool:
        """Whether there is a message."""
        self.used = readable(self.socket)
        return self.used

    def send(self, route: bytes, parts: Sequence[bytes | memoryview | zmq.Frame]) -> bool:
        """Send to a connection; False if it is gone, or does not read."""
        self.used = True
        try:
            self.socket.send_multipart([route, *parts], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self, linger: int = 0) -> None:
        """Drop every connection; within `linger` milliseconds `end` waits for what has been sent to leave."""
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(linger)

    def end(self) -> None:
        """Wait for the threads of ZeroMQ to end; other sockets of them must be closed."""
        self._context.term()


def _configured(router: zmq.Socket[bytes], silence: int) -> zmq.Socket[bytes]:
    """Set the options of a router; its monitor."""
    router.linger = 0
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
    router.setsockopt(zmq.SNDHWM, 100_000)
    router.setsockopt(zmq.RCVHWM, 10_000)
    router.setsockopt(zmq.BACKLOG, 1024)
    router.setsockopt(zmq.HANDSHAKE_IVL, max(1000, silence))
    router.setsockopt(zmq.HEARTBEAT_IVL, max(1, silence // 3))
    router.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(1, silence))
    return router.get_monitor_socket(_MONITORED)

"""Finding a server for a user: what nobody answered is told apart from a host whose name nobody knows."""

from __future__ import annotations

import socket

from gear.errors import ConnectionLost
from gear.transport import messages as m
from gear.transport.discovery import discover, parse_address
from gear.transport.keys import ClientKeys


def find(address: str, token: str, timeout: float | None, keys: ClientKeys | None = None) -> m.Discovered:
    """As `discover`, which waits for a server to come up; looked up at the end, as a name may come up with its host.

    Raises
    ------
    ConnectionLost
        Saying so if the host's name is unknown.
    AuthenticationError, ProtocolError
    """
    try:
        return discover(address, token, timeout, keys)
    except ConnectionLost:
        host, port = parse_address(address)
        try:
            socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            since = "" if timeout is None else f", {timeout:g} s after the first try"
            raise ConnectionLost(
                f"the host name {host!r} of {address!r} is unknown ({error.strerror}){since}; check its spelling"
            ) from None
        except (OSError, UnicodeError):
            pass
        raise

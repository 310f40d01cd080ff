"""Before shards that outlived their supervisor are taken over: they must take the new one for one of theirs.

A supervisor speaks to clients with a token and keys, its shards with theirs. Each living shard is asked something, with
the new supervisor's token; it answers who knows its own, and says where it listens and with which key.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gear.errors import AuthenticationError, ConnectionLost, GearError, ServerConflict
from gear.server.figures import measure
from gear.server.runtime import SOCKET, door_of, shard_directory
from gear.transport import messages as m
from gear.transport.door import holds

if TYPE_CHECKING:
    from gear.server.config import Options
    from gear.server.runtime import Claim

PATIENCE = 10.0
"""Seconds that a living shard has to answer."""


def check_shards(claim: Claim, options: Options, count: int, key: str) -> list[int]:
    """Refuse to take over shards that were started with another token, key or host.

    Returns the ports of all shards as the living ones say; a supervisor that was killed while they started knew none.

    Parameters
    ----------
    claim : Claim
        Which shards live, and where.
    options : Options
    count : int
        Of all shards.
    key : str
        The server's public key, "" without encryption.

    Raises
    ------
    ServerConflict
        What differs, and what to do.
    """
    ports = [*claim.ports, *[0] * (count - len(claim.ports))]
    for index, pid in claim.living.items():
        socket, door = shard_directory(claim.directory, index, count) / SOCKET, door_of(claim.directory, index, count)
        deadline = time.monotonic() + PATIENCE
        while (says := _ask(m.Shard(index, 1, str(socket)), options, pid)) is None and holds(door):
            if time.monotonic() > deadline:
                raise _conflict(pid, f"does not answer within {PATIENCE:g} s")
            time.sleep(0.02)  # it is starting: it takes its door before it listens
        if says is None:
            continue  # it has died meanwhile
        for what, theirs, ours in (
            ("--curve-keys", says["curve_key"], key),
            ("--host", says["host"], options.host),
        ):
            if theirs != ours:
                raise _conflict(pid, f"was started with another {what} ({theirs or 'none'}, not {ours or 'none'})")
        ports[index] = int(says.get("port") or ports[index])
    return ports


def _ask(shard: m.Shard, options: Options, pid: int) -> dict[str, Any] | None:
    """What a shard says of itself, None if it says nothing."""
    if not Path(shard.socket).exists():
        return None
    try:
        return measure([shard], options.host, options.token, PATIENCE).get(shard.index)
    except AuthenticationError:
        raise _conflict(pid, "was started with another token") from None
    except ConnectionLost:
        return None
    except GearError as error:
        raise _conflict(pid, f"cannot be asked ({error})") from None


def _conflict(pid: int, why: str) -> ServerConflict:
    return ServerConflict(
        f"process {pid} still serves tables of this name: its supervisor is gone, and it {why}; start with the options "
        "it was started with to take it over, or end it first (SIGTERM)"
    )

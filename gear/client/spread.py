"""One client's way into a table that lies on several shards: which part gets the next trajectory.

A trajectory goes to one part from its first row to its last, pieces included; whatever has to be sent again is sent to
the same shard. Shards that died are passed over. Everything else is done by the ports of the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gear.client.deadline import left, until
from gear.client.port import id_keys
from gear.errors import ConnectionLost, DataError, GearError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from gear.client.encode import Encoded
    from gear.client.port import Port, Priority
    from gear.grouping import Key
    from gear.transport.base import OpenTable, Service


class Spread:
    """The ports of a table's parts.

    Parameters
    ----------
    session, table
        The table as a whole, for what is not inserted.
    ports : the parts, which differ in nothing but their capacity.
    """

    def __init__(self, session: Service, table: OpenTable, ports: Sequence[Port]) -> None:
        self.session, self.open, self.table, self.name = session, table, table.table, table.table.name
        self._ports = list(ports)
        self._turn = 0
        for port in ports:
            port.shard = port.layout.shard
        self.id_keys = id_keys(table)
        first = ports[0]
        self.codec, self.rows, self.layout, self.max_length = first.codec, first.rows, first.layout, first.max_length

    def living(self) -> list[Port]:
        """The ports whose shards are not known to have died, the next in turn first; none that is being started again.

        Raises
        ------
        ConnectionLost
            If there is none.
        """
        living = [port for port in self._ports if not port.session.lost]
        if not living:
            raise ConnectionLost(f"every shard that held table {self.name!r} is gone; start the server again")
        living = [port for port in living if not port.session.away] or living
        self._turn = turn = (self._turn + 1) % len(living)
        return living[turn:] + living[:turn]

    def on(self, shard: int) -> Port:
        """The part on a shard.

        Raises
        ------
        DataError
            If there is none.
        """
        for port in self._ports:
            if port.shard == shard:
                return port
        raise DataError(f"table {self.name!r} has no part on shard {shard}")

    def choose(self) -> Port:
        """Where the next trajectory goes: to the shards in turn, but to one with the fewest commits under way."""
        return min(self.living(), key=lambda port: port.session.pending(port.open))

    def encode(
        self,
        trajectory: Mapping[str, Any],
        priority: Priority,
        final: Mapping[str, Any] | None,
        group: Key | None = None,
    ) -> tuple[Encoded, float | npt.NDArray[np.float64] | None, list[np.ndarray | None] | None]:
        """Check a trajectory; see `Port.encode`."""
        return self._ports[0].encode(trajectory, priority, final, group)

    def group_key(self, group: Key | None) -> npt.NDArray[np.uint8]:
        """The key of a trajectory's group; see `Port.group_key`."""
        return self._ports[0].group_key(group)

    def insert(
        self,
        encoded: Encoded,
        priority: float | npt.NDArray[np.float64] | None,
        final: list[np.ndarray | None] | None,
        terminated: bool,
        timeout: float | None,
        version: int | None = None,
    ) -> tuple[Port, list[int]]:
        """Write and submit one trajectory; the port that took it, and the sequence numbers there."""
        while True:
            port = self.choose()
            before = port.last
            try:
                return port.insert(encoded, priority, final, terminated, timeout, version)
            except ConnectionLost:
                if port.last != before:  # some of it may have been committed
                    raise port.lost_with(1) from None

    def flush(self, timeout: float | None) -> None:
        """Return once everything submitted so far is committed, on every shard.

        Raises
        ------
        DeadlineExceeded
            Saying how many commits are still queued; they stay so.
        ConnectionLost
            If a shard died, once: how many commits are lost with it or unknown.
        """
        deadline = until(timeout)
        errors: list[GearError] = []
        for port in self._ports:
            try:
                port.flush(left(deadline))
            except GearError as error:
                errors.append(error)
        if errors:
            raise next((error for error in errors if isinstance(error, ConnectionLost)), errors[0])

    def forget(self) -> None:
        """Drop everything without a word, in the child of a fork."""
        for port in self._ports:
            port.forget()

"""The sessions of one client with all shards of a server: which live, and one question asked of many at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeAlias

from gear.errors import ConnectionLost, GearError
from gear.transport.client_verbs import verb
from gear.transport.remote import deadline_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gear.transport import messages as m
    from gear.transport.conversation import Call
    from gear.transport.shm import ShmSession
    from gear.transport.spread import SpreadTable
    from gear.transport.tcp import TcpSession

    Path: TypeAlias = ShmSession | TcpSession


class Each:
    """Sessions by their shards.

    Parameters
    ----------
    sessions : by the numbers of their shards, those that died left out.
    """

    def __init__(self, sessions: dict[int, Path]) -> None:
        self._sessions = sessions

    @property
    def living(self) -> dict[int, Path]:
        """The sessions of the shards that are not known to have died.

        Raises
        ------
        ConnectionLost
            If none is left.
        """
        living = {shard: session for shard, session in self._sessions.items() if not session.lost}
        if not living:
            raise ConnectionLost("every shard of the server is gone; start it again and connect anew")
        return living

    def keeping(self, table: SpreadTable) -> dict[int, Path]:
        """The sessions of the living shards that hold a part of the table; those being started again are waited for.

        Raises
        ------
        ConnectionLost
            If none is left.
        """
        living = {shard: session for shard, session in self.living.items() if shard in table.opened}
        if not living:
            raise ConnectionLost(f"every shard that held table {table.table.name!r} is gone; start the server again")
        return living

    def holding(self, table: SpreadTable) -> dict[int, Path]:
        """The same without those being started again, as long as there are others: a draw does without them."""
        living = self.keeping(table)
        return {shard: session for shard, session in living.items() if not session.away} or living

    def hear_all(self, table: str, asked: Iterable[int], answers: dict[int, Call | GearError]) -> None:
        """Make sure that of these shards all have answered but those that are gone for good.

        One that cannot be reached by a child of a fork, which has greeted nobody yet, is left out of the answers too.

        Raises
        ------
        ConnectionLost
        """
        for shard in asked:
            silent = isinstance(answers.get(shard), ConnectionLost | None)
            if silent and shard in self._sessions and not self._sessions[shard].lost:
                raise ConnectionLost(
                    f"shard {shard}, which holds a part of table {table!r}, cannot be reached now; try again"
                )

    def session(self, shard: int) -> Path:
        """The session with a shard, alive or not."""
        return self._sessions[shard]

    def post_each(
        self, bodies: dict[int, m.Message], frames: dict[int, tuple[bytes, ...]] | None = None
    ) -> dict[int, Call]:
        """Send a request to each of some shards; those that are gone are left out."""
        calls = {}
        for shard, body in bodies.items():
            with contextlib.suppress(ConnectionLost):
                calls[shard] = self._sessions[shard].post(body, frames[shard] if frames else ())
        return calls

    def answers(self, calls: dict[int, Call], what: str, deadline: float) -> dict[int, Call | GearError]:
        """The answer of each shard, or the error that it is."""
        found: dict[int, Call | GearError] = {}
        for shard, call in calls.items():
            try:
                found[shard] = self._sessions[shard].answer(call, what, deadline)
            except GearError as error:
                found[shard] = error
        return found

    def ask_each(self, bodies: dict[int, m.Message], timeout: float | None) -> dict[int, Call | GearError]:
        """Send and wait for the answers."""
        what = next((verb(body) for body in bodies.values()), "")
        return self.answers(self.post_each(bodies), what, deadline_of(timeout))

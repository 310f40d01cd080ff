"""A client's presence at one shard: identity, conversation, background thread, and what is pushed.

It lasts until `close`, over any number of connections. A fork's child starts afresh at its first call:
identity, connection, leases and pins are the parent's. What is asked of the tables is the session's business.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gear.errors import Closed, ConnectionLost, GearError, ProtocolError
from gear.storage.fields import ERA_SHIFT, ERAS
from gear.transport import messages as m
from gear.transport.attendant import PROMPT, Attendant
from gear.transport.base import OpenTable
from gear.transport.conversation import Call, Conversation
from gear.transport.outbox import Outbox

if TYPE_CHECKING:
    from gear.transport.keys import ClientKeys

FOREVER = float("inf")
LEAST = 10.0
"""Seconds for calls that have no timeout of their own."""

_REVOKED = 1 << 16

_remotes: weakref.WeakSet[Remote] = weakref.WeakSet()
_inherited: list[object] = []
"""What a child got from its parent and must neither use nor close."""


def deadline_of(timeout: float | None) -> float:
    """`time.monotonic()` at which a timeout ends."""
    return FOREVER if timeout is None else time.monotonic() + timeout


def left_of(deadline: float) -> float | None:
    """Seconds until a deadline, as a timeout."""
    return None if deadline == FOREVER else max(0.0, deadline - time.monotonic())


def expect(call: Call, kind: Any) -> Any:
    """The answer, if it is of that kind."""
    if type(call.answer) is not kind:
        raise ProtocolError(f"expected {kind.__name__} from the server, got {type(call.answer).__name__}")
    return call.answer


class Remote(ABC):
    """A client at the shard behind `endpoint`.

    Parameters
    ----------
    endpoint : str
        ``ipc://`` or ``tcp://`` address of the shard.
    token : str
    heartbeat : float
        Seconds of silence after which a connection counts as broken.
    timeout : float, optional
        For the connection.
    keys : ClientKeys, optional
        With which it is encrypted, if it goes over TCP.
    """

    bulk = False
    """Whether rows travel over the connection."""

    def __init__(
        self, endpoint: str, token: str, heartbeat: float, timeout: float | None, keys: ClientKeys | None = None
    ) -> None:
        self._endpoint, self._token, self._heartbeat, self._keys = endpoint, token, heartbeat, keys
        self._server = endpoint
        self._closed = False
        self._opened: dict[str, OpenTable] = {}
        self._start_afresh()
        _remotes.add(self)
        self._begin(timeout)

    def _start_afresh(self) -> None:
        self._talk: Conversation | None = None
        self._attendant: Attendant | None = None
        self._recalled: dict[int, int] = {}
        self._beginning = threading.Lock()
        self._boxes: dict[int, Outbox] = {}
        self._revoked: dict[tuple[int, int], bool] = {}
        for opened in self._opened.values():
            opened.lost.clear()
            opened.reading.clear()

    def _begin(self, timeout: float | None) -> Conversation:
        """Greet the shard under a new identity."""
        with self._beginning:
            if self._talk is not None:
                return self._talk
            if self._closed:
                raise Closed("this client is closed; make a new one")
            deadline = deadline_of(timeout)
            identity = secrets.token_bytes(16)
            weak = weakref.ref(self)

            def pushed(body: Any) -> None:
                if (session := weak()) is not None:
                    session._pushed(body)

            def alive() -> bool:
                session = weak()
                return session is None or session._alive()

            talk = Conversation(
                self._endpoint, self._heartbeat, identity, self._token, alive, pushed, self.bulk, True, self._keys
            )
            talk.link.server = self._server
            try:
                with talk.lock:
                    if not talk.until(lambda: talk.link.up, deadline):
                        raise ConnectionLost(f"the shard at {self._endpoint} did not answer within {timeout:g} s")
                    self._enter(talk, identity, deadline)
            except BaseException:
                with talk.lock:
                    talk.close()
                self._leave()
                raise
            self._boxes = {t.layout.index: self._box(talk, t) for t in self._opened.values()}
            self._talk = talk
            self._attendant = Attendant(self)
            talk.on_stuck = self._attendant.wake
            return talk

    def known_as(self, address: str) -> None:
        """Have errors name the server by the address that the user gave."""
        self._server = address
        if self._talk is not None:
            self._talk.link.server = address

    @property
    def away(self) -> bool:
        """Whether the shard cannot be reached now and may be back soon: it is being started again."""
        talk = self._talk
        return talk is not None and not talk.link.up and talk.link.down_since is not None and not self._present()

    def _present(self) -> bool:
        """Whether the shard is known to be there though the connection is broken."""
        return False

    def _outlived(self, pin: int) -> bool:
        """Whether the shard was started anew since it gave out a pin."""
        welcome = None if self._talk is None else self._talk.link.welcome
        return welcome is not None and pin >> ERA_SHIFT != welcome.era % ERAS

    @property
    def lost(self) -> bool:
        """Whether the shard is known to be gone."""
        return self._talk is not None and self._talk.lost

    # What differs from path to path

    def _enter(self, talk: Conversation, identity: bytes, deadline: float) -> None:  # noqa: B027 - a path may need nothing
        """Make ready for this path once the shard has said welcome."""

    def _leave(self) -> None:  # noqa: B027
        """Undo `_enter`; nothing of the shard's is touched any more."""

    @abstractmethod
    def _alive(self) -> bool:
        """Whether the shard may still be there though the connection is broken."""

    @abstractmethod
    def _box(self, talk: Conversation, table: OpenTable) -> Outbox:
        """The outbox of a table."""

    # Life

    @contextlib.contextmanager
    def _talking(self) -> Iterator[Conversation]:
        talk = self._talk or self._begin(LEAST)
        with talk.lock:
            yield talk

    def close(self) -> None:
        """Send what is gathered, give everything back and end."""
        if self._closed:
            return
        self._closed = True
        talk, attendant = self._talk, self._attendant
        if attendant is not None:
            attendant.stop()
        if talk is None:
            return
        with talk.lock:
            with contextlib.suppress(GearError):
                for box in self._boxes.values():
                    box.post()
                talk.until(lambda: not any(b.flying for b in self._boxes.values()), time.monotonic() + 1.0)
                talk.ask(m.Goodbye(), time.monotonic() + 1.0)
            talk.close()
        self._leave()

    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when `look` may find something."""
        return () if self._talk is None else self._talk.link.descriptors()

    def attend(self) -> bool:
        """Called by the attendant: send what no call has taken along, hear what came."""
        talk = self._talk
        if talk is None:
            return False
        while self._recalled:
            index, blocks = self._recalled.popitem()
            box = self._boxes[index]
            if blocks > 0 and box.table.recall is not None:
                grant = box.table.recall(blocks)
                with talk.lock:
                    box.give_back(grant.blocks, grant.slots)
        with talk.lock:
            if not talk.led:
                talk.look()
            if talk.releases and time.monotonic() - talk.used >= PROMPT and talk.link.up:
                talk.post(m.Releases())
            return bool(talk.releases) or talk.link.stuck or any(box.count for box in self._boxes.values())

    def _pushed(self, body: m.Recall | m.Revoke) -> None:
        assert self._talk is not None
        box = self._boxes.get(body.table)
        if box is None:
            return
        if isinstance(body, m.Recall):
            blocks, slots = box.spare(body.blocks, body.blocks)
            box.asked = 0
            box.give_back(blocks, slots)
            # The pool's lock is held by threads that wait for this one: the attendant asks it, without ours.
            self._recalled[body.table] = body.blocks - len(blocks)
            return
        for pin in body.pins:
            reading = pin in box.table.reading
            if (body.table, pin) not in self._revoked:
                # Marked before it is let go of: who gathers now asks `revoked` afterwards.
                self._revoked[body.table, pin] = not reading
                if not reading:
                    self._talk.releases.append((body.table, pin, False))
        while len(self._revoked) > _REVOKED:
            del self._revoked[next(iter(self._revoked))]


def _close_all() -> None:
    for remote in list(_remotes):
        remote.close()


def _after_fork() -> None:
    for remote in list(_remotes):
        _inherited.append(dict(vars(remote)))
        remote._start_afresh()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

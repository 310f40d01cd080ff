"""Requests and answers over a link that may break: each request is done once, each answer found.

Calling threads drive the link themselves under one lock: the first that waits leads (it sleeps on the
connection), the others follow and are woken when their answer was received by whoever looked. When the link
was made anew, everything unanswered is sent again under its old number; the shard knows the numbers it has
seen. Nothing here knows tables.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gear.errors import Closed, ConnectionLost, DeadlineExceeded, GearError, ProtocolError
from gear.transport import messages as m
from gear.transport.channel import Buffer
from gear.transport.client_verbs import verb
from gear.transport.link import Link
from gear.transport.wire import decode_answer, encode, request_number

if TYPE_CHECKING:
    from gear.transport.keys import ClientKeys

GRACE = 1.0
"""Seconds past a deadline that the shard's own word on it is waited for."""


class Call:
    """A request until its answer came. `undo` is called with an answer that nobody waits for any more."""

    __slots__ = ("answer", "done", "frames", "into", "number", "on_answer", "parts", "sent", "undo")

    def __init__(self, number: int, parts: list[Buffer], on_answer: Callable[[Call], None] | None) -> None:
        self.number, self.parts, self.on_answer = number, parts, on_answer
        self.undo: Callable[[Call], None] | None = None
        self.into: Sequence[memoryview] | None = None  # where rows of the answer may go at once
        self.answer: Any = None
        self.frames: list[Buffer] = []
        self.done = self.sent = False

    def over(self) -> bool:
        """Whether the answer has come."""
        return self.done


class _Waiter:
    __slots__ = ("bell", "ready")

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.ready = ready
        self.bell: threading.Event | None = None  # a leader needs none


def _ring(follower: _Waiter) -> None:
    assert follower.bell is not None
    follower.bell.set()


class Conversation:
    """A client's conversation with one shard.

    `lock` guards everything; methods expect it to be held unless they say otherwise.

    Parameters
    ----------
    endpoint, heartbeat, identity, token, alive, bulk, lanes, keys
        See `Link`.
    on_push : Recall, Revoke or Lend -> None
        Called with what the shard says unasked.
    """

    def __init__(
        self,
        endpoint: str,
        heartbeat: float,
        identity: bytes,
        token: str,
        alive: Callable[[], bool],
        on_push: Callable[[Any], None],
        bulk: bool = False,
        lanes: bool = False,
        keys: ClientKeys | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self.used = time.monotonic()
        self.releases: list[m.Release] = []
        self.link = Link(endpoint, heartbeat, identity, token, alive, self.used, bulk, lanes, keys)
        weak = weakref.ref(self)  # nothing that is dropped unclosed waits for the collector of cycles
        self.link.destination = lambda header, nbytes: (
            None if (me := weak()) is None else me._destination(header, nbytes)
        )
        self._on_push = on_push
        self._error: GearError | None = None
        self._calls: dict[int, Call] = {}
        self._number = 0
        self.on_stuck: Callable[[], None] = lambda: None
        """Called when something could not be sent whole and no thread waits; `look` goes on with it."""
        self._waiters: list[_Waiter] = []
        self._leader: _Waiter | None = None
        self._asleep = False

    # Sending

    def post(
        self,
        body: m.Message,
        frames: Sequence[Buffer] = (),
        on_answer: Callable[[Call], None] | None = None,
        into: Sequence[memoryview] | None = None,
    ) -> Call:
        """Send a request, with the releases gathered so far; its answer comes to `Call.answer`.

        Rows of the answer may be received straight to `into`, until it has come or was abandoned: their frame is then
        `PLACED`.
        """
        self.check()
        self._number = self.link.sent = number = self._number + 1
        calls = self._calls
        answered = next(iter(calls)) if calls else number
        header = encode(m.Envelope(m.PROTOCOL, number, answered, self.releases, body))  # type: ignore[arg-type]
        if self.releases:
            self.releases = []
        call = calls[number] = Call(number, [header, *frames], on_answer)
        call.into = into
        link = self.link
        if link.up:
            if link.send(call.parts):
                self._stuck()
            call.sent = True
            if self._leader is not None and not link.laned:  # sending may have consumed the signal that it sleeps for
                self._receive()
        return call

    def _stuck(self) -> None:
        """There was no room for a message: have somebody send the rest."""
        if self._leader is None:
            self.on_stuck()
        elif self._asleep:
            self.link.ring()

    def ask(
        self,
        body: m.Message,
        deadline: float,
        frames: Sequence[Buffer] = (),
        undo: Callable[[Call], None] | None = None,
        into: Sequence[memoryview] | None = None,
    ) -> Call:
        """Send a request and wait for its answer.

        Raises
        ------
        DeadlineExceeded
            If no answer came; one that comes later is given to `undo`.
        GearError
            What the shard answered, if it refused.
        """
        return self.answer(self.post(body, frames, None, into), verb(body), deadline, undo)

    def answer(self, call: Call, what: str, deadline: float, undo: Callable[[Call], None] | None = None) -> Call:
        """Wait for the answer to a request that was sent, as `ask` does; `what`: the verb that errors name."""
        try:
            answered = self.until(call.over, deadline)
            if not answered and self.link.up:
                answered = self.until(call.over, deadline + GRACE)
        except BaseException:
            self.abandon(call, undo)
            raise
        self.used = time.monotonic()
        if not answered:
            self.abandon(call, undo)
            state = "" if self.link.up else "; the connection is broken and is being made anew"
            raise DeadlineExceeded(f"{what}: no answer of the server in time{state}")
        if type(call.answer) is m.Failed:
            raise call.answer.error()
        return call

    def abandon(self, call: Call, undo: Callable[[Call], None] | None) -> None:
        """Nobody waits for this answer any more; one that has come or comes later is given to `undo`."""
        if call.into is not None:
            self.link.forget(call.into)
            call.into = None
        if call.done:
            if undo is not None and type(call.answer) is not m.Failed:
                undo(call)
        elif not call.sent:
            self._calls.pop(call.number, None)
        else:
            call.undo = undo

    # Waiting

    def until(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Drive the link until `ready()` (True) or the deadline (False). The lock is let go meanwhile.

        Raises
        ------
        ConnectionLost
            If the shard is gone.
        """
        waiter: _Waiter | None = None
        look = not self.link.laned  # a lane signals what is there already
        try:
            while True:
                if look:
                    self._receive()
                if ready():
                    return True
                now = time.monotonic()
                if not look and now >= deadline:
                    look = True
                    continue
                look = True
                if not self.link.up:
                    self._tend(now)
                self.check()
                if now >= deadline:
                    return False
                if waiter is None:
                    waiter = _Waiter(ready)
                    self._waiters.append(waiter)
                if self._leader is None:
                    self._leader = waiter
                elif self._leader is not waiter and waiter.bell is None:
                    waiter.bell = threading.Event()
                self._sleep(waiter, min(deadline - now, self.link.patience(now)))
        finally:
            if waiter is not None:
                self._waiters.remove(waiter)
                if self._leader is waiter:
                    self._leader = None
                if self._leader is None and self._waiters:  # also if this one was to lead, and is done
                    _ring(self._waiters[0])

    def _sleep(self, waiter: _Waiter, seconds: float) -> None:
        leads = waiter.bell is None or self._leader is waiter
        sleep = self.link.sleeper() if leads else waiter.bell.wait  # type: ignore[union-attr]
        ask = False
        self._asleep |= leads
        self.lock.release()
        try:
            ask = sleep(seconds)
        finally:
            self.lock.acquire()
            self._asleep &= not leads
        if waiter.bell is not None:
            waiter.bell.clear()
        if ask and self._leader is waiter:
            self._tend(time.monotonic())

    def _wake(self) -> None:
        """Wake the threads whose wait is over."""
        for waiter in self._waiters:
            if self._error is not None or waiter.ready():
                if waiter is self._leader:
                    if self._asleep:
                        self.link.ring()
                else:
                    _ring(waiter)

    # Receiving

    def look(self) -> None:
        """Take in what has arrived and tend the link, without waiting."""
        self.link.heed()
        self._receive()
        self._tend(time.monotonic())

    def _tend(self, now: float) -> None:
        self._receive()
        self.link.tend(now)
        if self.link.lost is not None:
            self.fail(self.link.lost)

    def _receive(self) -> None:
        """Take in everything that has arrived."""
        link, any_came = self.link, False
        while (parts := link.receive()) is not None:
            any_came = True
            try:
                answer = decode_answer(parts)
            except ProtocolError as error:
                self._garbled(parts, error)
                continue
            if answer.request == 0:
                self._unasked(answer.body)
            else:
                call = self._calls.pop(answer.request, None)
                if call is not None:
                    self._finish(call, answer.body, parts[1:])
        if any_came and self._waiters:
            self._wake()

    def _finish(self, call: Call, answer: Any, frames: list[Buffer]) -> None:
        call.answer, call.frames, call.done = answer, frames, True
        if call.on_answer is not None:
            call.on_answer(call)
        if call.undo is not None and type(answer) is not m.Failed:
            call.undo(call)

    def _destination(self, header: Buffer, nbytes: int) -> Sequence[memoryview] | None:
        """Where rows are to go that are on their way in; see `arriving.Destination`."""
        number = request_number(header)
        call = self._calls.get(number) if number else None
        into = None if call is None else call.into
        return into if into is not None and sum(map(len, into)) == nbytes else None

    def _garbled(self, parts: list[Buffer], error: ProtocolError) -> None:
        """An answer that cannot be read fails its request; before the welcome it ends the conversation."""
        number = request_number(parts[0]) if parts else None
        call = self._calls.pop(number, None) if number else None
        if call is not None:
            self._finish(call, m.Failed("ProtocolError", str(error)), [])
        elif self.link.greeting and number == 0:
            self.fail(error)

    def _unasked(self, body: Any) -> None:
        if isinstance(body, m.Welcome):
            self.link.welcomed(body)
            if self.link.lost is not None:
                self.fail(self.link.lost)
            if not self.link.up:  # a lane is being opened first
                return
            if self.link.restarted:
                self.releases.clear()  # of pins that ended with the shard
            for call in self._calls.values():
                if self.link.send(call.parts):
                    self._stuck()
                call.sent = True
            if self.link.restarted and self._error is None:
                self.post(m.Releases())  # the shard is to hear that we know
        elif isinstance(body, m.Ending):
            self.link.ending = body.kept
            if not body.kept:
                self.fail(ConnectionLost("the server has ended and keeps nothing; start it again and connect anew"))
        elif isinstance(body, (m.Recall, m.Revoke, m.Lend)):
            self._on_push(body)
        elif isinstance(body, m.Failed) and self.link.greeting:
            self.fail(body.error())

    # The end

    def check(self) -> None:
        """Raise what ended the conversation, if anything did."""
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    @property
    def lost(self) -> bool:
        """Whether the shard is gone."""
        return isinstance(self._error, ConnectionLost)

    def fail(self, error: GearError) -> None:
        """End the conversation: every wait, now and later, raises `error`."""
        if self._error is None:
            self._error = error
            self._wake()

    @property
    def led(self) -> bool:
        """Whether some thread sleeps on the link."""
        return self._leader is not None

    def close(self) -> None:
        """Drop the link; waiting threads raise `Closed`."""
        self.fail(Closed("this client is closed; make a new one"))
        self.link.close()

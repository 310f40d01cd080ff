"""Requests and answers over connections that may break: each request is done once, each answer found.

Calling threads drive the socket themselves under one lock: the first that waits leads (it sleeps on the
socket), the others follow and are woken when their answer was received by whoever looked. When a connection
breaks, another one resumes the client and everything unanswered is sent again under its old number; the
shard knows the numbers it has seen. Nothing here knows tables.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gear.errors import Closed, ConnectionLost, DeadlineExceeded, GearError, ProtocolError
from gear.transport import messages as m
from gear.transport.channel import Channel

GRACE = 1.0
"""Seconds past a deadline that the shard's own word on it is waited for."""

_GREETING, _UP, _DOWN = range(3)
_FIRST_BACKOFF, _LONGEST_BACKOFF, _GREETING_SECONDS = 0.01, 0.5, 2.0


class Call:
    """A request until its answer came. `undo` is called with an answer that nobody waits for any more."""

    __slots__ = ("answer", "done", "frames", "number", "on_answer", "parts", "sent", "undo")

    def __init__(self, number: int, parts: list[bytes], on_answer: Callable[[Call], None] | None) -> None:
        self.number, self.parts, self.on_answer = number, parts, on_answer
        self.undo: Callable[[Call], None] | None = None
        self.answer: Any = None
        self.frames: list[bytes] = []
        self.done = self.sent = False


class _Waiter:
    __slots__ = ("bell", "ready")

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.ready = ready
        self.bell = threading.Event()


class Conversation:
    """A client's conversation with one shard.

    `lock` guards everything; methods expect it to be held unless they say otherwise.

    Parameters
    ----------
    endpoint, heartbeat
        Where the shard is, see `Channel`.
    identity, token : bytes, str
        Who speaks.
    alive : () -> bool
        Whether the shard's process still lives, as far as one can know.
    on_push : Recall or Revoke -> None
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
    ) -> None:
        self.lock = threading.Lock()
        self.endpoint, self.identity = endpoint, identity
        self.welcome: m.Welcome | None = None
        self.error: GearError | None = None
        self.releases: list[m.Release] = []
        self.reconnects = 0
        self._heartbeat, self._token, self._alive, self._on_push = heartbeat, token, alive, on_push
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: dict[int, Call] = {}
        self._number = 0
        self._waiters: list[_Waiter] = []
        self._leader: _Waiter | None = None
        self._wait_for = 0.0
        self._backoff = _FIRST_BACKOFF
        self.used = time.monotonic()
        self._greet(self.used)

    # Sending

    def post(
        self, body: m.Message, frames: Sequence[bytes] = (), on_answer: Callable[[Call], None] | None = None
    ) -> Call:
        """Send a request, with the releases gathered so far; its answer comes to `Call.answer`."""
        self.check()
        self._number = number = self._number + 1
        calls = self._calls
        answered = next(iter(calls)) if calls else number
        header = m.encode(m.Envelope(m.PROTOCOL, number, answered, self.releases, body))  # type: ignore[arg-type]
        if self.releases:
            self.releases = []
        call = Call(number, [header, *frames], on_answer)
        calls[number] = call
        if self._state == _UP:
            self._channel.send(call.parts)
            call.sent = True
            if self._leader is not None:  # sending may have consumed the signal that the leader sleeps for
                self._receive()
        return call

    def ask(
        self,
        body: m.Message,
        deadline: float,
        frames: Sequence[bytes] = (),
        undo: Callable[[Call], None] | None = None,
    ) -> Call:
        """Send a request and wait for its answer.

        Raises
        ------
        DeadlineExceeded
            If no answer came; one that comes later is given to `undo`.
        GearError
            What the shard answered, if it refused.
        """
        call = self.post(body, frames)
        try:
            answered = self.until(lambda: call.done, deadline)
            if not answered and self._state == _UP:
                answered = self.until(lambda: call.done, deadline + GRACE)
        except BaseException:
            self._abandon(call, undo)
            raise
        self.used = time.monotonic()
        if not answered:
            self._abandon(call, undo)
            state = "" if self._state == _UP else "; the connection is broken and is being made anew"
            raise DeadlineExceeded(f"{type(body).__name__.lower()}: no answer of the server in time{state}")
        if type(call.answer) is m.Failed:
            raise call.answer.error()
        return call

    def _abandon(self, call: Call, undo: Callable[[Call], None] | None) -> None:
        if call.done:
            if undo is not None and type(call.answer) is not m.Failed:
                undo(call)
        elif not call.sent:
            self._calls.pop(call.number, None)
        else:
            call.undo = undo

    # Waiting

    def until(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Drive the connection until `ready()` (True) or the deadline (False). The lock is let go meanwhile.

        Raises
        ------
        ConnectionLost
            If the shard is gone.
        """
        waiter: _Waiter | None = None
        try:
            while True:
                self._receive()
                if ready():
                    return True
                now = time.monotonic()
                if self._state != _UP:
                    self.tend(now)
                self.check()
                if now >= deadline:
                    return False
                if waiter is None:
                    waiter = _Waiter(ready)
                    self._waiters.append(waiter)
                if self._leader is None:
                    self._leader = waiter
                self._sleep(waiter, min(deadline - now, self._patience(now)))
        finally:
            if waiter is not None:
                self._waiters.remove(waiter)
                if self._leader is waiter:
                    self._leader = None
                    if self._waiters:
                        self._waiters[0].bell.set()

    def _sleep(self, waiter: _Waiter, seconds: float) -> None:
        channel, leads, ask = self._channel, self._leader is waiter, False
        self.lock.release()
        try:
            if leads:
                ask = channel.wait(seconds)
            else:
                waiter.bell.wait(seconds)
        finally:
            self.lock.acquire()
        waiter.bell.clear()
        if ask:
            self.tend(time.monotonic())

    def _patience(self, now: float) -> float:
        return 1.0 if self._state == _UP else min(max(self._wait_for - now, 1e-3), 0.05)

    def _wake(self) -> None:
        """Wake the threads whose wait is over."""
        for waiter in self._waiters:
            if self.error is not None or waiter.ready():
                if waiter is self._leader:
                    os.eventfd_write(self._bell, 1)
                else:
                    waiter.bell.set()

    # Receiving

    def _receive(self) -> None:
        """Take in everything that has arrived."""
        channel, any_came = self._channel, False
        while self._state != _DOWN and (parts := channel.receive()) is not None:
            any_came = True
            try:
                answer = m.decode_answer(parts)
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

    def _finish(self, call: Call, answer: Any, frames: list[bytes]) -> None:
        call.answer, call.frames, call.done = answer, frames, True
        if call.on_answer is not None:
            call.on_answer(call)
        if call.undo is not None and type(answer) is not m.Failed:
            call.undo(call)

    def _garbled(self, parts: list[bytes], error: ProtocolError) -> None:
        """An answer that cannot be read fails its request; before the welcome it ends the conversation."""
        number = m.request_number(parts[0]) if parts else None
        call = self._calls.pop(number, None) if number else None
        if call is not None:
            self._finish(call, m.Failed("ProtocolError", str(error)), [])
        elif self._state == _GREETING and number == 0:
            self.fail(error)

    def _unasked(self, body: Any) -> None:
        if isinstance(body, m.Welcome):
            self._welcomed(body)
        elif isinstance(body, (m.Recall, m.Revoke)):
            self._on_push(body)
        elif isinstance(body, m.Failed) and self._state == _GREETING:
            self.fail(body.error())

    # The connection

    def tend(self, now: float) -> None:
        """Notice a broken connection, and take the next step towards a new one."""
        if self.error is not None:
            return
        if self._state == _UP:
            if self._channel.broken:
                self._receive()
                self._channel.close()
                self._backoff, self._wait_for = _FIRST_BACKOFF, now
                self._state = _DOWN
                self._give_up_if_gone()
        elif self._state == _GREETING:
            if self._channel.broken or now >= self._wait_for:
                self._channel.close()
                self._state, self._wait_for = _DOWN, now + self._backoff
                self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF)
                self._give_up_if_gone()
        elif now >= self._wait_for:
            self._give_up_if_gone()
            if self.error is None:
                self._greet(now)

    def _give_up_if_gone(self) -> None:
        if not self._alive():
            self.fail(ConnectionLost(f"the server behind {self.endpoint} is gone; start it again and connect anew"))

    def _greet(self, now: float) -> None:
        self._channel = Channel(self.endpoint, self._heartbeat, self._bell)
        self._state, self._wait_for = _GREETING, now + _GREETING_SECONDS
        hello = m.Envelope(m.PROTOCOL, 0, 0, [], m.Hello(self.identity, self._token))
        self._channel.send([m.encode(hello)])
        if self._leader is not None:  # it sleeps on the connection before
            os.eventfd_write(self._bell, 1)

    def _welcomed(self, welcome: m.Welcome) -> None:
        before, self.welcome = self.welcome, welcome
        if before is not None and (before.server != welcome.server or not welcome.resumed):
            self.fail(
                ConnectionLost(
                    "the server was started anew or has given this client up; what was not acknowledged may be lost: "
                    "connect anew"
                )
            )
            return
        self.reconnects += before is not None
        self._state, self._backoff = _UP, _FIRST_BACKOFF
        for call in self._calls.values():
            self._channel.send(call.parts)
            call.sent = True

    def check(self) -> None:
        """Raise what ended the conversation, if anything did."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)

    def fail(self, error: GearError) -> None:
        """End the conversation: every wait, now and later, raises `error`."""
        if self.error is None:
            self.error = error
            self._wake()

    @property
    def up(self) -> bool:
        """Whether the shard has welcomed this connection."""
        return self._state == _UP

    @property
    def led(self) -> bool:
        """Whether some thread sleeps on the connection."""
        return self._leader is not None

    def look(self) -> None:
        """Take in what has arrived and tend the connection, without waiting."""
        self._receive()
        self.tend(time.monotonic())

    def close(self) -> None:
        """Drop the connection; waiting threads raise."""
        self.fail(Closed("this client is closed; make a new one"))
        if self._state != _DOWN:
            self._state = _DOWN
            self._channel.close()

"""A client's link to a shard: a channel, and another one when it broke, greeted as the same client.

The link decides when to try again and when to give up; what is sent anew is its owner's business. It never
waits, and the owner serialises its calls; only `sleep` runs without the owner's lock.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gear.errors import ConnectionLost, GearError
from gear.transport import messages as m
from gear.transport import reach
from gear.transport.arriving import NOWHERE
from gear.transport.channel import Buffer, Channel
from gear.transport.lane import GREETING
from gear.transport.wire import encode

if TYPE_CHECKING:
    from gear.transport.keys import ClientKeys

logger = logging.getLogger(__name__)

_GREETING, _UP, _DOWN = range(3)
_FIRST_BACKOFF, _LONGEST_BACKOFF, _GREETING_SECONDS = 0.01, 0.5, 2.0
_LANE_SECONDS = 2.0


class Link:
    """The link of the client `identity`.

    Parameters
    ----------
    endpoint, heartbeat
        Where the shard is, see `Channel`.
    identity, token : bytes, str
        Who greets.
    alive : () -> bool
        Whether the shard's process still lives, as far as one can know.
    bulk : bool
        Whether bulk may come.
    lanes : bool
        Whether to send by a lane, where the shard takes one. Where it cannot be reached, by ZeroMQ.
    keys : ClientKeys, optional
        See `Channel`.

    Attributes
    ----------
    server : its address as the user gave it, for errors.
    welcome : what the shard answered to the first greeting.
    attempts : how often a connection was tried.
    reconnects : how often the link was made anew.
    lost : why it will not be made again.
    down_since : when it broke; None while it is up or was not yet.
    restarted : whether another process serves the memory since the last welcome.
    ending : the shard has ended in order, and what it holds is kept for the one that takes its place.
    sent : number of the last request.
    laned : whether messages go by a lane: its descriptor signals as long as there is something to receive.
    destination : see `arriving.Destination`.
    void : entries of unanswered commits that were withdrawn, which a shard that was started anew does not know.
    """

    def __init__(
        self,
        endpoint: str,
        heartbeat: float,
        identity: bytes,
        token: str,
        alive: Callable[[], bool],
        now: float,
        bulk: bool = False,
        lanes: bool = False,
        keys: ClientKeys | None = None,
    ) -> None:
        self.endpoint, self.server, self._bulk, self._lanes, self._keys = endpoint, endpoint, bulk, lanes, keys
        self.destination = NOWHERE
        self.down_since: float | None = None
        self.restarted = self.ending = False
        self.sent, self.void = 0, list[m.Void]()
        self.welcome: m.Welcome | None = None
        self.lost: GearError | None = None
        self.reconnects = 0
        self._heartbeat, self._alive = heartbeat, alive
        self._identity, self._token, self.attempts = identity, token, 0
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell).atexit = False
        self._state, self._due, self._backoff = _DOWN, now, _FIRST_BACKOFF
        self._offered: m.Welcome | None = None  # while the lane that it offers is being opened
        self._without, self._warned = False, False
        self.laned = False
        self._greet(now)

    @property
    def up(self) -> bool:
        """Whether the shard has welcomed the present connection."""
        return self._state == _UP

    @property
    def encrypted(self) -> bool:
        """Whether nothing may go to the shard in the clear: no other connection than this one may be made to it."""
        return self._keys is not None

    @property
    def greeting(self) -> bool:
        """Whether the welcome is being waited for."""
        return self._state == _GREETING

    def _open_lane(self, offer: m.Welcome) -> bool:
        """Begin to open a lane, on which the shard is to say welcome again; False if there is none."""
        address = reach.lane_address(self.endpoint, offer) if self._lanes and offer.key and not self._without else None
        self._without = False
        if address is None or (self.encrypted and not isinstance(address, str)):  # a lane over TCP is in the clear
            return False
        greeting = GREETING.pack(self._identity, self.attempts, offer.key)
        opened = reach.open_lane(address, greeting, self.destination)
        if opened is None:
            self._warn("cannot be reached", offer)
            return False
        self._offered, self._due = offer, time.monotonic() + _LANE_SECONDS
        self._channel.take(opened)
        self.ring()  # whoever sleeps does not hear it yet
        return True

    def _warn(self, what: str, offer: m.Welcome) -> None:
        if not self._warned:
            self._warned = True
            port = f" (TCP port {offer.port})" if self.endpoint.startswith("tcp:") else ""
            logger.warning(
                "the lane of the shard at %s%s %s: everything goes by ZeroMQ, which is slower; is the port open?",
                self.endpoint, port, what,
            )  # fmt: skip

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Queue a message; only when `up`. Whether something waits for `receive` or a sleeper to send it."""
        return self._channel.send(parts)

    @property
    def stuck(self) -> bool:
        """Whether something waits to be sent."""
        return self.laned and self._channel.lane is not None and self._channel.lane.unsent > 0

    def forget(self, into: Sequence[memoryview]) -> None:
        """Have nothing come there any more."""
        self._channel.forget(into)

    def heed(self) -> None:
        """Have `receive` look at everything, whoever was told that something came."""
        if self.laned:
            self._channel.heed()

    def receive(self) -> list[Buffer] | None:
        """The next message, None if there is none now."""
        return None if self._state == _DOWN else self._channel.receive()

    def patience(self, now: float) -> float:
        """Seconds until `tend` should be called."""
        return 1.0 if self._state == _UP else min(max(self._due - now, 1e-3), 0.05)

    def sleeper(self) -> Callable[[float], bool]:
        """Sleeps until something may have arrived; True asks for `tend`. To be called without the lock."""
        return self._channel.wait

    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when something may have arrived, after `receive` has found nothing."""
        return () if self._state == _DOWN else self._channel.descriptors

    def ring(self) -> None:
        """End the sleep."""
        os.eventfd_write(self._bell, 1)

    def tend(self, now: float) -> None:
        """Notice a broken connection, and take the next step towards a new one."""
        if self.lost is not None:
            return
        if self._state == _UP:
            if self._channel.broken:
                self._drop(now)
        elif self._state == _GREETING:
            if self._offered is not None and (self._channel.lane_broken or now >= self._due):
                what = "was refused" if self._channel.lane_broken else f"did not answer within {_LANE_SECONDS:g} s"
                self._warn(what, self._offered)
                self._without = True  # the shard may have taken it: greet anew, this time without
                self._drop(now)
            elif self._channel.broken or now >= self._due:
                self._drop(now + self._backoff)
                self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF)
        elif now >= self._due:
            self._give_up_if_gone()
            if self.lost is None:
                self._greet(now)

    def welcomed(self, welcome: m.Welcome) -> None:
        """The shard answered the greeting; once more on the lane, if it offers one and that can be had."""
        if self._offered is not None:
            self.laned = True
            self._come_up(self._offered)
            return
        before = self.welcome
        if before is not None and (before.server != welcome.server or not welcome.resumed):
            self.lost = ConnectionLost(
                "the server was started with other memory or has given this client up; what was not acknowledged may "
                "be lost: connect anew"
            )
            return
        if not self._open_lane(welcome):
            self._come_up(welcome)

    def _come_up(self, welcome: m.Welcome) -> None:
        before, self.welcome, self._offered = self.welcome, welcome, None
        self.reconnects += before is not None
        self.restarted = before is not None and before.era != welcome.era
        self._state, self._backoff, self.down_since = _UP, _FIRST_BACKOFF, None
        self.ending = False

    def close(self) -> None:
        """Drop the connection for good."""
        if self._state != _DOWN:
            self._drop(float("inf"))
        self.ring()

    def _greet(self, now: float) -> None:
        self._channel = Channel(self.endpoint, self._heartbeat, self._bell, self._bulk, self._keys)
        self._state, self._due = _GREETING, now + _GREETING_SECONDS
        self.attempts += 1
        hello = m.Hello(self._identity, self._token, self.attempts, self.sent, self.void)
        self._channel.send([encode(m.Envelope(m.PROTOCOL, 0, 0, [], hello))])
        self.ring()  # whoever sleeps does so on the connection before

    def _drop(self, due: float) -> None:
        self._channel.close()
        self.laned, self._offered = False, None
        if self._state == _UP:
            self.down_since = time.monotonic()
        self._state, self._due = _DOWN, due
        self._give_up_if_gone()

    def _give_up_if_gone(self) -> None:
        if self.lost is None and not self._alive():
            silent = 0.0 if self.down_since is None else time.monotonic() - self.down_since
            since = f" (waited {silent:.0f} s for it)" if silent >= 1 else ""
            self.lost = ConnectionLost(f"the server at {self.server} is gone{since}; start it again and connect anew")

"""A client's way to a shard's memory and back: queue pairs, and others when one broke.

The way decides when to try again: soon after a first failure, later and later after more, and after `TRIES` of them in
a row rarely, while everything goes over TCP. It never waits for the shard; the lock of the conversation guards it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from gear.errors import DeviceError, GearError
from gear.transport import messages as m
from gear.transport.rdma_device import device
from gear.transport.rdma_inbox import Inbox
from gear.transport.rdma_inlet import Inlet
from gear.transport.rdma_queue import End, QueuePair
from gear.transport.rdma_verbs import verbs

if TYPE_CHECKING:
    from gear.transport.conversation import Call, Conversation

logger = logging.getLogger(__name__)

TRIES = 5
"""Failures in a row after which the way is given up for `LATER` seconds."""

FIRST, LATER = 0.05, 30.0
"""Seconds before the second attempt, each time twice as many; and those once it was given up."""


_FIGURES = ("broken", "dialed", "read_bytes", "pushed_bytes", "written_bytes")


class Way:
    """The way of one client.

    Attributes
    ----------
    pair : the queue pair while it can be used, else None.
    back : the one over which rows are pushed to this client; it comes and goes with `pair`.
    writes : whether rows may be written to blocks that are leased.
    inbox : where they may be written else, if anywhere.
    failures : failures since something went well.
    figures : counts of what happened, plain data.
    """

    def __init__(self) -> None:
        self.pair: QueuePair | None = None
        self.back: Inlet | None = None
        self.writes, self.inbox = False, Inbox(0, 0, 0, 0)
        self.failures, self.figures = 0, dict.fromkeys(_FIGURES, 0)
        self._due, self._era, self._dialing = 0.0, -1, False

    def dial(self, talk: Conversation) -> Call:
        """Ask the shard for a queue pair; `pair` is there when it has answered.

        Raises
        ------
        DeviceError
            If this end has none to offer.
        """
        pair, back = QueuePair(device()), Inlet(device())
        self._dialing = True
        self._era = -1 if talk.link.welcome is None else talk.link.welcome.era
        end = pair.end
        body = m.Dial(end.number, end.sequence, back.end.number, back.end.sequence, end.gid, end.lid, end.mtu)
        return talk.post(body, (), lambda call: self._dialed(pair, back, call))

    def _dialed(self, pair: QueuePair, back: Inlet, call: Call) -> None:
        self._dialing, answer = False, call.answer
        try:
            if not isinstance(answer, m.Dialed):
                raise answer.error() if isinstance(answer, m.Failed) else DeviceError("the shard answered nonsense")
            e, far = verbs().enums, (answer.gid, answer.lid, answer.mtu)
            pair.connect(End(answer.number, answer.sequence, *far), e.IBV_ACCESS_LOCAL_WRITE)
            back.connect(
                End(answer.back, answer.back_sequence, *far), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
            )
        except GearError as error:
            pair.close()
            back.close()
            self._failed(str(error))
            return
        self.close()
        self.pair, self.back, self.writes = pair, back, answer.writes
        self.inbox = Inbox(answer.number, answer.inbox, answer.inbox_key, answer.room)
        self.figures["dialed"] += 1

    def ready(self, talk: Conversation) -> QueuePair | None:
        """The queue pair; where there is none and it is time for it, one is asked for and None is returned."""
        pair, welcome = self.pair, talk.link.welcome
        if pair is not None and welcome is not None and welcome.era != self._era:
            self.broke(pair, "the shard was started again")  # the other end died with the shard before
            pair = None
        if pair is None and not self._dialing and talk.link.up and time.monotonic() >= self._due:
            try:
                self.dial(talk)
            except DeviceError as error:
                self._failed(str(error))
        return pair

    def broke(self, pair: QueuePair, why: str) -> None:
        """A request of the pair or the one back failed: both are destroyed; until there are others rows go over TCP."""
        pair.close()
        if self.pair is not pair:
            return
        self.close()
        self.figures["broken"] += 1
        self._failed(why)

    def went_well(self) -> None:
        """A request completed."""
        self.failures = 0

    def _failed(self, why: str) -> None:
        self.failures += 1
        given_up = self.failures >= TRIES
        wait = LATER if given_up else FIRST * 2 ** (self.failures - 1)
        self._due = time.monotonic() + wait
        if self.failures == 1 or self.failures == TRIES:
            logger.warning("RDMA: %s; rows go over TCP, next attempt in %.2g s", why, wait)

    def close(self) -> None:
        """Destroy the pairs."""
        pairs, self.pair, self.back = (self.pair, self.back), None, None
        for pair in pairs:
            if pair is not None:
                pair.close()

    def info(self) -> dict[str, Any]:
        """Figures of this end."""
        up = {"up": int(self.pair is not None), "writes": int(self.writes), "inbox": self.inbox.nbytes}
        return {**self.figures, **up, "failures": self.failures}

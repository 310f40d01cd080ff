"""Batches that are pushed to readers: gathered into a staging buffer, and written from there to the reader's memory.

So go rows of which a reader would have to fetch many short runs. Staging is bounded, for all readers and for each: what
does not fit goes over TCP. A reader that is dead or takes nothing in ends its queue pair after a while, and with it
whatever is staged for it. One thread waits for all of them; the shard's loop never does.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.errors import DeviceError, GearError, InsufficientMemory, ProtocolError
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.rdma_chains import runs
from gear.transport.rdma_device import device
from gear.transport.rdma_inlet import RECEIVES
from gear.transport.rdma_pool import Buffer, Pool
from gear.transport.rdma_queue import Broken, Key, QueuePair
from gear.transport.rdma_verbs import verbs

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.server.bulk import Bulk, Refuse, Rows, Send
    from gear.server.clients import Client
    from gear.server.flows import Flow
    from gear.server.peer import Peer
    from gear.server.tables import Hosted
    from gear.transport.channel import Buffer as Bytes

logger = logging.getLogger(__name__)

STAGING = 64 << 20
"""Bytes of staging that are in use at most; half of it is kept registered when nothing is pushed."""

LARGEST = 16 << 20
"""Bytes of one push at most."""

EACH = 8
"""Pushes to one reader that are under way at most; it can take in more, and a queue pair's requests are as many."""

PATIENCE = 15.0
"""Seconds in which a reader's adapter has to take in what is written to it."""

_NAPS = (50e-6, 1e-3)

assert EACH < RECEIVES


@dataclass(eq=False)
class _Push:
    """Rows that are staged for a client: where they go, and the request that is answered when they are there."""

    client: Client
    request: int
    hosted: Hosted
    row: int
    peer: Peer
    staged: Buffer
    nbytes: int
    far: Key
    immediate: int
    over: bool = False


class Pushes:
    """Those of one shard.

    Parameters
    ----------
    row, send, refuse, bulk : see `Stores`
    wake : () -> None
        Called from the thread when `finish` has something to do.
    """

    def __init__(
        self,
        row: Callable[[Client, int], tuple[Hosted, int]],
        send: Send,
        refuse: Refuse,
        bulk: Bulk,
        wake: Callable[[], None],
    ) -> None:
        self._row, self._send, self._refuse, self._bulk, self._wake = row, send, refuse, bulk, wake
        self._pool = Pool(_register, STAGING // 2)
        self._number = 0
        self._thread: threading.Thread | None = None
        self._posted: queue.SimpleQueue[_Push | None] = queue.SimpleQueue()
        self._finished: deque[tuple[_Push, str]] = deque()
        self.figures = dict.fromkeys(("pushed", "pushed_bytes", "staged_bytes"), 0)

    def push(self, client: Client, request: int, body: m.Push, parts: list[Bytes]) -> None:
        """Gather items of a pin and write them to the client's memory."""
        hosted, row = self._row(client, body.table)
        peer = client.peer
        if peer is None:
            raise DeviceError("this client has no queue pair here; dial first")
        starts = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Push starts")
        lengths = wire.array(parts[2], np.int32, m.MAX_ITEMS, "Push lengths")
        if not len(starts) or len(starts) != len(lengths):
            raise ProtocolError(f"Push: expected as many starts as lengths, got {len(starts)} and {len(lengths)}")
        plan = self._bulk.plan(hosted, body.shape, lengths)
        self._begin()
        staged = self._stage(peer, plan.nbytes)
        if staged is None:
            self._send(client, request, m.Pushed(0), [])
            return
        self._number = self._number % (2**32 - 1) + 1
        far = Key(body.address, body.key)
        made = _Push(client, request, hosted, row, peer, staged, plan.nbytes, far, self._number)

        def then(rows: list[Rows] | Flow | GearError) -> None:
            if isinstance(rows, GearError):
                self._unstage(made)
                if client.rows.get(hosted.index) == row:
                    self._refuse(client, request, rows)
                return
            self._posted.put(made)

        try:
            self._bulk.gather(client, hosted, row, body.pin, plan, starts, lengths, then, staged.memory[: plan.nbytes])
        except Exception:  # memory may be short, too
            self._unstage(made)
            raise

    def _stage(self, peer: Peer, nbytes: int) -> Buffer | None:
        """Memory for so many bytes, unless it would be too much."""
        if not 0 < nbytes <= LARGEST or peer.pushes == EACH or self.figures["staged_bytes"] + nbytes > STAGING:
            return None
        try:
            staged = self._pool.take(nbytes)
        except (DeviceError, InsufficientMemory):  # so much is not there, or may not be locked
            return None
        if self.figures["staged_bytes"] + len(staged.memory) > STAGING:  # a buffer may be larger than what is asked for
            self._pool.put(staged)
            return None
        peer.pushes += 1
        self.figures["staged_bytes"] += len(staged.memory)
        return staged

    def _unstage(self, push: _Push) -> None:
        if push.over:  # it was refused, and that failed
            return
        push.over = True
        push.peer.pushes -= 1
        self.figures["staged_bytes"] -= len(push.staged.memory)
        self._pool.put(push.staged)

    def finish(self) -> None:
        """Answer what has been written, or has failed."""
        while self._finished:
            push, why = self._finished.popleft()
            self._unstage(push)
            if push.client.rows.get(push.hosted.index) != push.row:
                continue  # given up meanwhile
            if why:
                self._refuse(push.client, push.request, DeviceError(why))
                continue
            self.figures["pushed"] += 1
            self.figures["pushed_bytes"] += push.nbytes
            self._send(push.client, push.request, m.Pushed(push.immediate), [])

    def close(self) -> None:
        """Nothing is pushed any more."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._posted.put(None)
            thread.join()
        for push, _ in self._finished:
            self._unstage(push)
        self._finished.clear()
        self._pool.close()

    # The thread

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="push", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        going: dict[QueuePair, deque[tuple[_Push, float]]] = {}
        nap, ending = _NAPS[0], False
        while not ending or going:
            try:
                push = self._posted.get(timeout=nap) if going else self._posted.get()
            except queue.Empty:
                nap = min(2 * nap, _NAPS[1])
            else:
                nap = _NAPS[0]
                ending |= push is None
                if push is not None:
                    self._post(push, going)
            ended = sum(self._look(pair, going, ending) for pair in [*going])
            if ended:
                nap = _NAPS[0]
                self._wake()

    def _post(self, push: _Push, going: dict[QueuePair, deque[tuple[_Push, float]]]) -> None:
        pair, whole = push.peer.back, np.zeros(1, np.int64)
        going.setdefault(pair, deque()).append((push, time.monotonic() + PATIENCE))
        near = push.staged.memory.ctypes.data, push.staged.region.lkey
        try:
            pair.send(runs(whole, whole, push.nbytes), near, push.far, push.immediate)
        except Broken:
            pass  # it says so when it is looked at
        except Exception:  # a bug of ours must not end the thread: nobody's push would ever be answered
            logger.exception("a push of %d bytes failed", push.nbytes)
            pair.close()

    def _look(self, pair: QueuePair, going: dict[QueuePair, deque[tuple[_Push, float]]], ending: bool) -> int:
        """Take in what has completed; how many have ended."""
        line, why = going[pair], ""
        try:
            count = pair.reap()
            if count < len(line) and (ending or time.monotonic() > line[count][1]):
                pair.close()  # before its staging is anybody else's
                why = f"the reader's adapter did not take in what was written to it within {PATIENCE:g} s"
        except Broken as error:
            count, why = 0, str(error)
        except Exception as error:
            logger.exception("pushes cannot be looked at")
            pair.close()
            count, why = 0, f"internal error of the server: {error!r}; see its log"
        for _ in range(count):
            self._finished.append((line.popleft()[0], ""))
        if why:
            count += len(line)
            self._finished.extend((push, why) for push, _ in line)
            line.clear()
        if not line:
            del going[pair]
        return count


def _register(memory: npt.NDArray[np.uint8]) -> Any:
    return device().register(memory, verbs().enums.IBV_ACCESS_LOCAL_WRITE)

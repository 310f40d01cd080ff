"""Requests of clients that map no memory: rows come with their commit entries, and go out in flows or in pieces.

Whatever such a client says about rows is checked or made here anew: it names columns and items, never places in
memory. What is kept for one client is bounded, whether or not it plays by the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from gear.errors import GearError, PinLost, ProtocolError
from gear.plan import Plan, item_length, late_columns, make_plan
from gear.server.clients import Client
from gear.server.flows import Flow
from gear.server.gatherer import COPIED, TRACKED, Gatherer, Job
from gear.server.grains import Grains
from gear.server.tables import Hosted
from gear.storage.arrival import Arrival
from gear.storage.layout import COMMIT_ENTRY, Layout
from gear.storage.presence import Presence
from gear.storage.queue import CommitDone
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.pieces import too_large
from gear.transport.stage import AHEAD
from gear.views import as_views

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import zmq

    from gear.batch import Selection
    from gear.transport.channel import Buffer

logger = logging.getLogger(__name__)

MOST_PIECES = 64
"""Pieces of one client that are gathered or not sent yet; a client of ours has a few dozen under way at most."""

_PLANS = 1024

Rows: TypeAlias = "zmq.Frame | memoryview | bytes"
"""Gathered bytes on their way out; ZeroMQ copies a memoryview and sends a frame from where it is."""

Gathered: TypeAlias = "npt.NDArray[np.uint8] | GearError | None"
"""What has become of a piece; None: it is under way."""


class Send(Protocol):
    """Sends an answer, or what is said unasked (request 0).

    `rows` are sent last, behind `frames` and kept by nobody: a client that asks again gets an answer without them, or,
    if `kept` is false, is served again. A `Flow` goes by the client's lane.
    """

    def __call__(
        self,
        client: Client,
        request: int,
        body: m.Message,
        frames: list[bytes],
        rows: Sequence[Rows] | Flow = (),
        kept: bool = True,
    ) -> None:
        """Send it."""
        ...


class Refuse(Protocol):
    """Answers a request with an error; of a Commit, entries up to `sequence` are committed."""

    def __call__(self, client: Client, request: int, error: GearError, sequence: int = 0) -> None:
        """Send it."""
        ...


class Bulk:
    """The rows of a shard's clients.

    Parameters
    ----------
    send, refuse : see `Send`; `refuse` takes (client, request, error, highest sequence committed).
    wake : () -> None
        Called from another thread when `finish` has something to do.
    """

    def __init__(self, send: Send, refuse: Refuse, wake: Callable[[], None]) -> None:
        self._send, self._refuse = send, refuse
        self._gatherer, self._grains = Gatherer(wake), Grains()

    def finish(self) -> None:
        """Send what has been gathered."""
        self._gatherer.finish()

    # In

    def insert(self, client: Client, request: int, hosted: Hosted, row: int, parts: list[Buffer]) -> None:
        """Commit entries whose rows came with them."""
        stored, queue = hosted.stored, hosted.queue
        entries = wire.array(parts[1], COMMIT_ENTRY, m.MAX_ENTRIES, "Insert entries")
        if not len(entries):
            raise ProtocolError("Insert: expected at least one entry, got none")
        priorities = wire.array(parts[2], np.float64, m.MAX_ROWS, "Insert priorities")
        values, *frames = (np.frombuffer(part, np.uint8) for part in parts[3:])
        arrival = Arrival(stored, hosted.places, row, queue.growing(row), entries, priorities, values, frames)
        for index, first, last in client.void if request <= client.before else ():
            if index == hosted.index:  # withdrawn before the restart
                arrival.drop(first, last)
        waiting, most = queue.unplaced(row), most_unplaced(stored.layout)
        if waiting and waiting + arrival.nbytes > most:
            raise ProtocolError(
                f"Insert: {waiting} bytes of rows wait for a place, {arrival.nbytes} more would be beyond the {most} "
                "that a client may send ahead"
            )

        def done(result: CommitDone | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result, stored.committed(row))
            else:
                self._send(client, request, m.Committed(result.sequence, result.lost), [b"", b""])

        queue.insert(row, arrival, done)

    # Out

    def collect(
        self, client: Client, request: int, body: m.Collect, hosted: Hosted, row: int, parts: list[Buffer]
    ) -> None:
        """Gather items of a pin."""
        starts = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Collect starts")
        lengths = wire.array(parts[2], np.int32, m.MAX_ITEMS, "Collect lengths")
        if not len(starts) or len(starts) != len(lengths):
            raise ProtocolError(f"Collect: expected as many starts as lengths, got {len(starts)} and {len(lengths)}")
        plan = self.plan(hosted, body.shape, lengths)

        def then(rows: list[Rows] | Flow | GearError) -> None:
            if isinstance(rows, GearError):
                self._refuse(client, request, rows, 0)
            else:
                self._send(client, request, m.Gathered(), [], rows, kept=False)

        self.gather(client, hosted, row, body.pin, plan, starts, lengths, then)

    def selected(
        self,
        client: Client,
        request: int,
        hosted: Hosted,
        row: int,
        shape: m.Shape | None,
        selection: Selection,
        answer: m.Selected,
    ) -> None:
        """Send a selection, with its rows if they are wanted."""
        frames = [items_of(selection)]
        answer.versioned = selection.versions is not None
        answer.near = len(selection.neighbours)
        if shape is None or client.silent or not len(selection):
            self._send(client, request, answer, frames)
        else:
            self._send_along(client, request, hosted, row, shape, selection, answer, frames)

    def _send_along(
        self,
        client: Client,
        request: int,
        hosted: Hosted,
        row: int,
        shape: m.Shape,
        selection: Selection,
        answer: m.Selected,
        frames: list[bytes],
    ) -> None:
        """Send a selection together with its rows; alone if they cannot be had now: it may ask for them later."""

        def then(rows: list[Rows] | Flow | GearError) -> None:
            self._send(client, request, answer, frames, [] if isinstance(rows, GearError) else rows)

        try:
            plan = self.plan(hosted, shape, selection.lengths)
            self.gather(client, hosted, row, selection.pin, plan, selection.starts, selection.lengths, then)
        except GearError as error:
            then(error)

    def check(self, hosted: Hosted, shape: m.Shape, size: int) -> None:
        """Refuse rows that are to come along with a selection of `size` items, if they cannot."""
        if shape.packed:
            raise ProtocolError("packed rows do not come along with a selection; collect them")
        if (shape, size) not in hosted.plans:
            self.plan(hosted, shape, np.ones(size, np.int32))

    def plan(self, hosted: Hosted, shape: m.Shape, lengths: npt.NDArray[np.int32]) -> Plan:
        """The plan of a piece of items of these lengths.

        Raises
        ------
        ProtocolError, SchemaError
            If there are no such items or columns, or the piece is too large.
        """
        size = len(lengths)
        plan = None if shape.packed else hosted.plans.get((shape, size))
        if plan is None:
            layout = hosted.stored.layout
            fixed = item_length(layout.table)
            if not 1 <= shape.length <= (fixed or layout.max_length) or (fixed and shape.length != fixed):
                raise ProtocolError(f"items of table {hosted.name!r} have no {shape.length} steps")
            total = int(np.clip(lengths, 0, shape.length).sum(dtype=np.int64)) if shape.packed else -1
            plan = make_plan(layout, as_views(shape.views), size, shape.length, total)
            if too_large(plan):
                raise ProtocolError(f"a piece of {size} items has {plan.nbytes} bytes; ask for fewer at a time")
            if not shape.packed:
                if len(hosted.plans) >= _PLANS:
                    hosted.plans.clear()
                hosted.plans[shape, size] = plan
        return plan

    def gather(
        self,
        client: Client,
        hosted: Hosted,
        row: int,
        pin: int,
        plan: Plan,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        then: Callable[[list[Rows] | Flow | GearError], None],
        into: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """Gather items of a pin that the client holds, and still holds afterwards: else they may be anything.

        If it has a lane they are gathered while they are sent there, unless they are few. `into` is where they are to
        be, part of a larger array: then they are not sent from here, and `then` is told whatever happens.

        Raises
        ------
        PinLost, ProtocolError
        DataError
            If a late column of an item is not there.
        """
        pins = hosted.stored.pins
        neighbours = pins.held(row, pin)
        client.sending = [tracker for tracker in client.sending if not tracker.done]
        lane = client.lane
        if client.gathering + len(client.sending) + (lane.flows if lane is not None else 0) >= MOST_PIECES:
            raise ProtocolError(f"{MOST_PIECES} pieces are under way to this client; take them in before asking again")
        names = late_columns(hosted.stored.table, plan.views) if hosted.stored.layout.late else ()
        presence = Presence(hosted.stored.layout, hosted.stored.segment, names, starts) if names else None
        if presence is not None:
            neighbours = presence.near(neighbours)
        if plan.nbytes <= COPIED and into is None:
            out = np.zeros(plan.nbytes, np.uint8)
            while True:
                hosted.stored.collect(hosted.stored.segment, plan, starts, lengths, neighbours, out)
                if presence is None or presence.unchanged:  # else overwritten meanwhile
                    break
            then(self._frames(client, out))
            return
        if lane is not None and plan.nbytes <= m.MAX_FRAME and into is None:

            def good() -> bool:
                kept = client.rows.get(hosted.index) == row and pins.holds(row, pin)
                return kept and (presence is None or presence.unchanged)

            grains = self._grains.of(hosted.stored.layout, plan, lengths)
            then(Flow(hosted.stored.segment, grains, starts, lengths, neighbours, good, hosted.stored.collect))
            return

        def start() -> Gathered:
            outcome = self._gatherer.gather(job)
            client.gathering += outcome is None  # once it is under way: before, memory for it may be short
            return outcome

        def judge(outcome: Gathered) -> list[Rows] | GearError | None:
            """What is said of what was gathered, if it is what was asked for; None if it is gathered anew."""
            while isinstance(outcome, np.ndarray):
                pins.held(row, pin)
                if presence is None or presence.unchanged:
                    return self._frames(client, outcome) if into is None else []
                outcome = start()  # overwritten meanwhile
            return outcome

        def tell(outcome: Gathered) -> None:
            said: list[Rows] | GearError | None
            try:
                said = judge(outcome)
            except GearError as error:
                said = error
            except Exception as error:  # it ends this request, not whatever else has been gathered
                logger.exception("gathered items of table %s cannot be sent", hosted.name)
                said = GearError(f"internal error of the server: {error!r}; see its log")
            if said is not None:
                then(said)

        def gathered(outcome: Gathered) -> None:
            client.gathering -= 1
            if client.rows.get(hosted.index) == row:
                tell(outcome)
            elif into is not None:  # given up meanwhile
                then(PinLost("the client was given up"))

        stored = hosted.stored
        job = Job(stored.segment, plan, starts, lengths, neighbours, gathered, stored.collect, into)
        tell(start())

    def _frames(self, client: Client, rows: npt.NDArray[np.uint8]) -> list[Rows]:
        """Gathered bytes as buffers of a message; how much of it waits for the client is known within `TRACKED`."""
        if len(rows) <= COPIED:
            client.untracked += 0 if client.lane is not None else len(rows)
            if client.untracked <= TRACKED:
                return [rows.data, m.GOOD]
        client.untracked = 0
        frames = self._gatherer.frames(rows)
        client.sending += [frame.tracker for frame in frames]
        return [*frames, m.GOOD]


def items_of(selection: Selection) -> bytes:
    """The arrays of a selection, one behind the other."""
    parts = [selection.ids.tobytes(), selection.probabilities.tobytes(), selection.starts.tobytes()]
    if selection.versions is not None:
        parts.append(selection.versions.tobytes())
    parts.append(selection.lengths.tobytes())
    if len(selection.neighbours):
        parts.append(selection.neighbours.tobytes())
    return b"".join(parts)


def most_unplaced(layout: Layout) -> int:
    """Bytes of rows that a client may have sent ahead: twice what its stage can lend."""
    return 2 * (AHEAD + layout.blocks_for(layout.max_length + 1) * (layout.block_bytes + layout.device_block_bytes))

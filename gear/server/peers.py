"""Clients that read and write rows by RDMA: their queue pairs, what they may read, what they may write and how long.

Whoever has a queue pair may read the rows of every table, as every client may by asking. It may write to nothing but
what it has leased: a window over each run of leased blocks is bound for its queue pair and invalidated before the lease
ends. Where windows do not hold it may write to an inbox of its own alone. A client's queue pairs are destroyed before
anything that it held is free.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.errors import DeviceError, GearError, InsufficientMemory, ProtocolError
from gear.server.peer import Peer, Regions
from gear.server.pushes import Pushes
from gear.storage import fields as f
from gear.storage.arrival import Places
from gear.storage.extent import Extent
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.rdma_device import enter, leave
from gear.transport.rdma_mirror import short_columns
from gear.transport.rdma_queue import Broken, End
from gear.transport.rdma_trial import Writing, writing

if TYPE_CHECKING:
    from gear.server.bulk import Bulk, Refuse, Send
    from gear.server.clients import Client
    from gear.server.tables import Hosted
    from gear.storage.commit_lines import CommitDone
    from gear.storage.layout import Grant
    from gear.transport.channel import Buffer

logger = logging.getLogger(__name__)

Handler = Callable[["Client", int, Any, "list[Buffer]"], None]

ALLOWED = "GEAR_RDMA"
"""Variable of the server: ``clear`` allows rows by RDMA though all else is encrypted."""

_FIGURES = ("dialed", "located", "placed", "landed", "unloaded", "copied_bytes")
_WHOLE = f.BEGIN | f.END
_NEVER = float("inf")


class Peers:
    """Answers them.

    Parameters
    ----------
    row : (client, table number) -> the table and the client's number in it
    send, refuse : see `bulk`
    bulk : for rows that clients do not move by themselves.
    wake : () -> None
        Called from another thread when `finish` has something to do.
    """

    def __init__(
        self,
        row: Callable[[Client, int], tuple[Hosted, int]],
        send: Send,
        refuse: Refuse,
        bulk: Bulk,
        wake: Callable[[], None],
    ) -> None:
        self._row, self._send, self._refuse, self._bulk = row, send, refuse, bulk
        self._regions, self._pushes = Regions(), Pushes(row, send, refuse, bulk, wake)
        self._figures = dict.fromkeys(_FIGURES, 0)
        self._count, self._entered = 0, False
        self._writing: Writing | None = None  # not known yet
        self.encrypted = False
        """Whether what goes over the network is to be encrypted: adapters do not do that."""

    def handlers(self) -> dict[type, Handler]:
        """What it answers of tables."""
        answers: dict[type, Handler] = {m.Locate: self._locate, m.Place: self._place, m.Land: self._land}
        return answers | {m.Forgo: self._forgo, m.Unload: self._unload, m.Push: self._pushes.push}

    def others(self) -> dict[type, Handler]:
        """What it answers of the client alone."""
        return {m.Dial: self._dial}

    def info(self) -> dict[str, int]:
        """Queue pairs there are, requests so far, and bytes of rows that this process copied for them."""
        writes = int(self._writing is Writing.LEASES)
        return {"queue_pairs": self._count, "writes": writes, **self._figures, **self._pushes.figures}

    def finish(self) -> None:
        """Take in what other threads have done."""
        self._pushes.finish()

    def drop(self, client: Client) -> None:
        """Destroy the client's queue pair: when this returns it reads and writes nothing any more."""
        peer, client.peer = client.peer, None
        if peer is not None:
            self._count -= 1
            peer.close()

    def close(self, clients: Iterable[Client]) -> None:
        """Destroy every queue pair and unregister the tables' memory."""
        self._pushes.close()
        for client in clients:
            self.drop(client)
        self._regions.close()
        if self._entered:
            self._entered = False
            leave()

    def _dial(self, client: Client, request: int, body: m.Dial, parts: list[Buffer]) -> None:
        if self.encrypted and os.environ.get(ALLOWED, "") != "clear":
            raise DeviceError(
                "this server has CURVE keys, and rows by RDMA are not encrypted; leave path= away, or start it with "
                f"{ALLOWED}=clear if only hosts that you trust share its network"
            )
        if client.peer is not None:
            self.drop(client)
        if not self._entered:
            enter()
            self._entered = True
        writes, way = self._to_leases(), (body.gid, body.lid, body.mtu)
        peer = Peer(End(body.number, body.sequence, *way), End(body.back, body.back_sequence, *way))
        client.peer = peer
        self._count += 1
        self._figures["dialed"] += 1
        end, back = peer.end, peer.back.end
        answer = m.Dialed(end.number, end.sequence, back.number, back.sequence, end.gid, end.lid, end.mtu, writes)
        if not answer.writes:
            try:
                peer.open_inbox(self._writing is Writing.WINDOW)
            except (DeviceError, InsufficientMemory) as error:  # so much is not there, or may not be locked
                logger.warning("RDMA: a client gets no inbox, its rows go over TCP: %s", error)
            except Broken:
                self.drop(client)
                raise
        if peer.inbox is not None:
            answer.inbox, answer.room, answer.inbox_key = peer.inbox.address, len(peer.inbox.memory), peer.inbox.key
        self._send(client, request, answer, [])

    def _to_leases(self) -> bool:
        """Whether clients write rows to their leases."""
        if self._writing is None:
            self._writing = writing()
            if self._writing is not Writing.LEASES:
                logger.info("RDMA: writers are not held to what they leased here, so each gets an inbox")
        return self._writing is Writing.LEASES

    def _peer(self, client: Client, hosted: Hosted) -> Peer:
        if hosted.stored.arena is not None:
            raise DeviceError("some columns of this table lie on a GPU: its rows go over TCP")
        if client.peer is None:
            raise DeviceError("this client has no queue pair here; dial first")
        return client.peer

    # Readers

    def _locate(self, client: Client, request: int, body: m.Locate, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        self._peer(client, hosted)
        stored = hosted.stored
        starts = wire.array(parts[1], np.int64, m.MAX_ITEMS, "Locate starts")
        lengths = wire.array(parts[2], np.int32, m.MAX_ITEMS, "Locate lengths")
        if not len(starts) or len(starts) != len(lengths):
            raise ProtocolError(f"Locate: expected as many starts as lengths, got {len(starts)} and {len(lengths)}")
        neighbours = stored.pins.held(row, body.pin)
        layout, segment = stored.layout, stored.segment
        region = self._regions.readable(hosted)
        reach = (min(body.before, layout.max_length), min(body.after, layout.max_length))
        length = min(body.length, layout.max_length)
        blocks, records, slots, slot_records = Extent(layout, segment).of(starts, lengths, length, reach, neighbours)
        values = []
        base = layout.regions["trajectories"].offset
        for place in short_columns(layout):
            column = segment[base + place.offset :][: layout.slots * place.stride].reshape(layout.slots, place.stride)
            values.append(column[slots].tobytes())
        frames = [blocks.tobytes(), records.tobytes(), slots.tobytes(), slot_records.tobytes(), b"".join(values)]
        self._figures["located"] += 1
        self._figures["copied_bytes"] += len(frames[-1])
        origin = segment.ctypes.data
        answer = m.Located(origin + layout.regions["arena"].offset, origin + base, region.rkey)
        self._send(client, request, answer, frames)

    # Writers

    def _place(self, client: Client, request: int, body: m.Place, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        peer, stored = self._peer(client, hosted), hosted.stored
        if not self._to_leases():
            raise ProtocolError("Place: this server's device does not confine writers; write to the inbox")
        grant = stored.lease(row, body.blocks, body.slots)
        if len(grant.blocks) >= body.least and len(grant.slots):
            self._placed(client, request, hosted, row, peer, grant)
            return
        stored.end_leases(row, grant.blocks, grant.slots)

        def done(result: Grant | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result)
            else:
                self._placed(client, request, hosted, row, peer, result)

        hosted.queue.allocate(row, body.least, 1, _NEVER, done)

    def _placed(self, client: Client, request: int, hosted: Hosted, row: int, peer: Peer, grant: Grant) -> None:
        """Answer with leases, and windows over them."""
        try:
            if client.peer is not peer:
                raise DeviceError("the queue pair for which blocks were leased is gone; dial again")
            windows = peer.open(hosted, self._regions.writable(hosted), grant.blocks)
        except GearError as error:  # a failed binding has broken the pair
            hosted.stored.end_leases(row, grant.blocks, grant.slots)
            if client.peer is peer and isinstance(error, Broken):
                self.drop(client)
            self._refuse(client, request, DeviceError(str(error)))
            return
        self._figures["placed"] += 1
        frames = [grant.blocks.tobytes(), grant.slots.tobytes(), windows.tobytes()]
        self._send(client, request, m.Placed(), frames)

    def _land(self, client: Client, request: int, body: m.Land, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        stored = hosted.stored
        entries, blocks, priorities = wire.commit_arrays(parts)
        if request <= client.before:  # its leases ended with the shard that granted them
            raise DeviceError("the shard was started again; send the rows along")
        if (entries["flags"] & _WHOLE != _WHOLE).any():
            raise ProtocolError("Land: expected whole trajectories")
        slots, places = entries["slot"], hosted.places
        given = wire.array(parts[4], np.uint8, m.MAX_FRAME, "Land values")
        if len(given) != len(entries) * places.width:
            raise ProtocolError(
                f"Land: expected {places.width} bytes of per-trajectory columns for each of {len(entries)} "
                f"trajectories, got {len(given)} bytes"
            )
        self._revoke(client, hosted, blocks)
        if places.width and _leased(hosted, row, slots):  # of others the commit says what is wrong
            _write(places, slots, given.reshape(len(entries), places.width))

        def done(result: CommitDone | GearError) -> None:
            if isinstance(result, GearError):
                self._refuse(client, request, result, stored.committed(row))
            else:
                self._send(client, request, m.Committed(result.sequence, result.lost), [b"", b""])

        self._figures["landed"] += 1
        self._figures["copied_bytes"] += len(given)
        hosted.queue.commit(row, entries, blocks, priorities, done)

    def _unload(self, client: Client, request: int, body: m.Unload, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        peer = self._peer(client, hosted)
        if request <= client.before or peer.end.number != body.pair or peer.inbox is None:
            raise DeviceError("the inbox with the rows is no more; send them along")
        rows = peer.inbox.memory[body.begin : body.begin + body.nbytes]
        if len(rows) != body.nbytes:
            raise ProtocolError(f"Unload: {body.nbytes} bytes from {body.begin} are beyond the inbox")
        self._figures["unloaded"] += 1
        self._figures["copied_bytes"] += len(rows)
        self._bulk.insert(client, request, hosted, row, [*parts[:4], rows.data])

    def _forgo(self, client: Client, request: int, body: m.Forgo, parts: list[Buffer]) -> None:
        hosted, row = self._row(client, body.table)
        blocks, slots = (wire.array(frame, np.int32, m.MAX_ROWS, "Forgo") for frame in parts[1:])
        self._revoke(client, hosted, blocks)
        try:
            hosted.stored.give_back(row, blocks, slots)
        finally:
            hosted.queue.advance()
        self._send(client, request, m.Done(), [])

    def _revoke(self, client: Client, hosted: Hosted, blocks: np.ndarray) -> None:
        """End the access to leased blocks; if the windows do not obey, by destroying the queue pair."""
        peer = client.peer
        if peer is None:
            return
        try:
            peer.shut(hosted.index, blocks)
        except Broken as error:
            logger.info("the queue pair of client %s is over: %s", client.identity.hex()[:8], error)
            self.drop(client)


def _leased(hosted: Hosted, row: int, slots: np.ndarray) -> bool:
    """Whether all these slots are leased to the client."""
    if ((slots < 0) | (slots >= hosted.stored.layout.slots)).any():
        return False
    records = hosted.stored.layout.view(hosted.stored.segment, "slots")[slots]
    return bool(((records[:, f.STATE] == f.LEASED) & (records[:, f.WRITER] == row)).all())


def _write(places: Places, slots: np.ndarray, values: np.ndarray) -> None:
    at = 0
    for column in places.values:
        column[slots] = values[:, at : at + column.shape[1]]
        at += column.shape[1]

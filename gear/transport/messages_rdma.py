"""Messages of clients that read and write rows themselves, by RDMA: how the ends meet, and where rows lie.

Keys and addresses travel here only: over the connection on which the client has given the token.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from gear.transport.message import Count, Index, Message, Number, Shape

Gid = Annotated[str, Meta(max_length=64, pattern=r"^[0-9A-Fa-f:.]+$")]
Half = Annotated[int, Meta(ge=0, lt=1 << 24)]
Key = Annotated[int, Meta(ge=0, lt=1 << 32)]


class Dial(Message, tag=75):
    """Make queue pairs and connect them to these; those of an earlier `Dial` are destroyed.

    `number`, `sequence`: of the pair over which the client reads and writes; `back`, `back_sequence`: of the one over
    which rows are pushed to it.
    """

    number: Half
    sequence: Half
    back: Half
    back_sequence: Half
    gid: Gid
    lid: Annotated[int, Meta(ge=0, lt=1 << 16)]
    mtu: Annotated[int, Meta(ge=1, le=5)]


class Locate(Message, tag=76):
    """Where do the rows of items lie that a pin keeps? Buffers: starts int64, lengths int32.

    `length`: steps of an item at most; `before`, `after`: rows around items that are read too.
    """

    FRAMES: ClassVar[int] = 2
    table: Index
    pin: Number
    length: Count
    before: Number
    after: Number


class Place(Message, tag=77):
    """Lease up to that many blocks and slots to write to, at least `least` blocks and a slot; waits for these."""

    table: Index
    blocks: Count
    slots: Count
    least: Count


class Land(Message, tag=78):
    """Commit entries whose rows were written to their blocks; the writer's access to these ends.

    Buffers: COMMIT_ENTRY, blocks int32, priorities float64, the per-trajectory rows of each entry.
    """

    FRAMES: ClassVar[int] = 4
    table: Index


class Forgo(Message, tag=79):
    """Give back what `Place` has leased. Buffers: blocks int32, slots int32."""

    FRAMES: ClassVar[int] = 2
    table: Index


class Unload(Message, tag=81):
    """Commit entries whose rows were written to the client's inbox, `nbytes` from `begin`; else as `Insert`.

    `pair`: number, at the server, of the queue pair they came by: the inbox ended with it.
    """

    FRAMES: ClassVar[int] = 3
    table: Index
    pair: Half
    begin: Number
    nbytes: Count


class Push(Message, tag=82):
    """Gather items under a pin, as `Collect` does, and write them to the client's memory at `address`.

    Buffers: starts int64, lengths int32.
    """

    FRAMES: ClassVar[int] = 2
    table: Index
    pin: Number
    shape: Shape
    address: Number
    key: Key


class Dialed(Message, tag=175):
    """The queue pairs that are connected now.

    `writes`: whether blocks may be written where they are leased. `inbox`, `room`, `inbox_key`: where rows may be
    written else, so many bytes, and the key; no room where they may not.
    """

    number: Half
    sequence: Half
    back: Half
    back_sequence: Half
    gid: Gid
    lid: Annotated[int, Meta(ge=0, lt=1 << 16)]
    mtu: Annotated[int, Meta(ge=1, le=5)]
    writes: bool
    inbox: Number = 0
    room: Count = 0
    inbox_key: Key = 0


class Located(Message, tag=176):
    """Where blocks and per-trajectory rows begin, and the key to read them.

    Buffers: blocks int32[N] in rising order, their records; slots int32[M] in rising order, their records, and the rows
    of their short per-trajectory columns.
    """

    FRAMES: ClassVar[int] = 5
    arena: Number
    trajectories: Number
    key: Key


class Placed(Message, tag=177):
    """Leases. Buffers: blocks int32, slots int32, windows int64[N, 3], one over each run of the blocks in order.

    A window's row: blocks of the run, address of its first byte, key.
    """

    FRAMES: ClassVar[int] = 3


class Pushed(Message, tag=178):
    """The rows are there once the write with this immediate has completed at the client; 0: ask for them over TCP."""

    immediate: Key

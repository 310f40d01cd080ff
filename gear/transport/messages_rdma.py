"""Messages of clients that read and write rows themselves, by RDMA: how the ends meet, and where rows lie.

Keys and addresses travel here only: over the connection on which the client has given the token.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from gear.transport.message import Count, Index, Message, Number

Gid = Annotated[str, Meta(max_length=64, pattern=r"^[0-9A-Fa-f:.]+$")]
Half = Annotated[int, Meta(ge=0, lt=1 << 24)]


class Dial(Message, tag=75):
    """Make a queue pair and connect it to this one; that of an earlier `Dial` is destroyed."""

    number: Half
    sequence: Half
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


class Dialed(Message, tag=175):
    """The queue pair that is connected now. `writes`: whether rows may be written by it, or only read."""

    number: Half
    sequence: Half
    gid: Gid
    lid: Annotated[int, Meta(ge=0, lt=1 << 16)]
    mtu: Annotated[int, Meta(ge=1, le=5)]
    writes: bool


class Located(Message, tag=176):
    """Where blocks and per-trajectory rows begin, and the key to read them.

    Buffers: blocks int32[N] in rising order, their records; slots int32[M] in rising order, their records, and the rows
    of their short per-trajectory columns.
    """

    FRAMES: ClassVar[int] = 5
    arena: Number
    trajectories: Number
    key: Annotated[int, Meta(ge=0, lt=1 << 32)]


class Placed(Message, tag=177):
    """Leases. Buffers: blocks int32, slots int32, windows int64[N, 3], one over each run of the blocks in order.

    A window's row: blocks of the run, address of its first byte, key.
    """

    FRAMES: ClassVar[int] = 3

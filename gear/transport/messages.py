"""Every message there is, as data: what clients ask, what shards answer, and the envelopes of both.

A message is ``[header, raw buffer, ...]``. The header is msgpack: an array that starts with the protocol
version and the request number in every version there will ever be. `wire` encodes, decodes and validates.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from gear.errors import GearError, by_name
from gear.page import MOST_LISTED
from gear.storage.fields import MAX_SETS
from gear.transport.message import (
    BAD,
    CUT,
    GOOD,
    MAX_ITEMS,
    PIECE,
    Count,
    Identity,
    Index,
    Message,
    Name,
    Number,
    Release,
    Seconds,
    Shape,
    Share,
    Text,
    Void,
    hidden,
)
from gear.transport.messages_late import (
    Append,
    Begin,
    Begun,
    Drop,
    Fill,
    Grown,
    Identified,
    Identify,
    Length,
    Seal,
    SetVersion,
    Version,
)
from gear.transport.messages_rdma import (
    Dial,
    Dialed,
    Forgo,
    Land,
    Locate,
    Located,
    Place,
    Placed,
    Push,
    Pushed,
    Unload,
)
from gear.transport.messages_saved import AskSaving, Complete, Completed, Ending, Save, Saved, Saving, Unsave
from gear.transport.messages_served import (
    Acknowledge,
    Acknowledged,
    Discard,
    Fetch,
    Fetched,
    Install,
    Publish,
    Published,
    Read,
    Staged,
    Store,
)
from gear.transport.messages_shards import Account, Await, Credit, Draw, DropHidden, Lend

__all__ = [
    "BAD",
    "CUT",
    "GOOD",
    "MAX_ITEMS",
    "PIECE",
    "Account",
    "Acknowledge",
    "Acknowledged",
    "Append",
    "AskSaving",
    "Await",
    "Begin",
    "Begun",
    "Complete",
    "Completed",
    "Count",
    "Credit",
    "Dial",
    "Dialed",
    "Discard",
    "Draw",
    "Drop",
    "DropHidden",
    "Ending",
    "Fetch",
    "Fetched",
    "Fill",
    "Forgo",
    "Grown",
    "Identified",
    "Identify",
    "Identity",
    "Index",
    "Install",
    "Land",
    "Lend",
    "Length",
    "Locate",
    "Located",
    "Message",
    "Name",
    "Number",
    "Place",
    "Placed",
    "Publish",
    "Published",
    "Push",
    "Pushed",
    "Read",
    "Release",
    "Save",
    "Saved",
    "Saving",
    "Seal",
    "Seconds",
    "SetVersion",
    "Shape",
    "Share",
    "Staged",
    "Store",
    "Text",
    "Unload",
    "Unsave",
    "Version",
    "Void",
]  # fmt: skip
"""What stands in other files and belongs here too; everything below does as well."""

PROTOCOL = 5
"""Version of the wire, raised with every incompatible change."""

MAX_ENTRIES = 4096
MAX_ROWS = 1 << 24
MAX_FRAME = 8 * MAX_ROWS
MAX_MESSAGE = 1 << 30
"""Bytes of all buffers of a message."""

MAX_RELEASES = 1 << 16
MAX_VOIDS = 1 << 10

FORGET = 5
"""Client timeouts after which a silent client that maps no memory is given up, by both ends."""

# From a client to the supervisor or a shard.


class Discover(Message, tag=1):
    """Where are the shards?"""

    token: Text

    __repr__ = hidden


class Hello(Message, tag=2):
    """First on every connection; the same identity on a later one resumes the client. `attempt` rises.

    `sent`: number of its last request so far; `void`: what was withdrawn of commits that it may send again.
    """

    client: Identity
    token: Text
    attempt: Number
    sent: Number = 0
    void: Annotated[list[Void], Meta(max_length=MAX_VOIDS)] = []

    __repr__ = hidden


class Attach(Message, tag=3):
    """Prove shared memory with the nonce read through it; the client's lock file is held by now."""

    nonce: Identity


class Goodbye(Message, tag=4):
    """The client will touch nothing any more: all it holds is free at once."""


class CreateTable(Message, tag=5):
    """Create a shard's part of a table, or find an equal one.

    A hidden part is there and nobody finds it, until one that is not hidden is asked for: a table that some shard
    refuses is never seen on another.
    """

    table: Annotated[bytes, Meta(max_length=1 << 20)]
    hidden: bool = False


class OpenTable(Message, tag=6):
    """The table of that name, or the only one."""

    name: Name | None


class Lease(Message, tag=7):
    """Up to that many blocks and slots."""

    table: Index
    blocks: Count
    slots: Count


class Allocate(Message, tag=8):
    """Exactly that many blocks and slots."""

    table: Index
    blocks: Count
    slots: Count
    timeout: Seconds | None


class GiveBack(Message, tag=9):
    """Buffers: blocks int32, slots int32."""

    FRAMES: ClassVar[int] = 2
    table: Index


class Commit(Message, tag=10):
    """Buffers: COMMIT_ENTRY, blocks int32, priorities float64. Asks for leases with the acknowledgement."""

    FRAMES: ClassVar[int] = 3
    table: Index
    want_blocks: Count
    want_slots: Count


class Withdraw(Message, tag=11):
    """Drop the entries first..last that are not committed yet."""

    table: Index
    first: Number
    last: Number


class Select(Message, tag=12):
    """Draw and pin items."""

    table: Index
    size: Annotated[int, Meta(ge=1, le=MAX_ITEMS)]
    parties: Annotated[int, Meta(ge=1, le=65535)]
    ttl: Seconds
    timeout: Seconds | None
    shape: Shape | None = None
    """How they look, if their rows are to come with the answer: for no more than one piece of them."""
    which: Annotated[int, Meta(ge=0, lt=MAX_SETS)] = 0
    """Number of the set of items."""
    before: Number = 0
    after: Number = 0
    """Rows of other pieces of a split trajectory that are read, before items and behind them."""
    steps: Count = 0
    alone: bool = False
    """Most steps of the batch, 0 without a limit; whether an item that is longer comes alone instead of an error."""
    consumer: Name = ""
    """Who claims them, where the table has consumers."""
    share: Share | None = None
    """Whose part of a draw for all ranks it is."""


class Pick(Message, tag=21):
    """Pin items by their ids. Buffer: ids int64."""

    FRAMES: ClassVar[int] = 1
    table: Index
    parties: Annotated[int, Meta(ge=1, le=65535)]
    ttl: Seconds
    before: Number = 0
    after: Number = 0


class Hold(Message, tag=13):
    """Join a pin."""

    table: Index
    pin: Number


class Update(Message, tag=14):
    """Buffers: ids int64, priorities float64."""

    FRAMES: ClassVar[int] = 2
    table: Index


class Reset(Message, tag=15):
    """Drop every trajectory."""

    table: Index


class Info(Message, tag=16):
    """Figures of the shard."""


class Releases(Message, tag=17):
    """Nothing but the releases in the envelope."""


class Explain(Message, tag=18):
    """What do inserts wait for?"""

    table: Index


class Describe(Message, tag=40):
    """How are the tables declared?"""


class Measure(Message, tag=41):
    """What `Info` says, and the latencies of requests: for who watches the shard. The asker is not counted."""


class Scan(Message, tag=42):
    """The next items of a listing, from where `cursor` says, empty for the beginning."""

    table: Index
    cursor: Annotated[bytes, Meta(max_length=64)]
    most: Annotated[int, Meta(ge=1, le=MOST_LISTED)]


class Insert(Message, tag=19):
    """Commit entries of a client that maps no memory, and their rows.

    Slots are numbers of the client's own choice. Buffers: COMMIT_ENTRY, priorities float64, the per-trajectory rows
    of each entry that begins a trajectory; behind them the bytes of whole blocks, in entry order.
    """

    FRAMES: ClassVar[int] = 3
    BULK: ClassVar[bool] = True
    table: Index


class Collect(Message, tag=20):
    """Gather items under a pin that the client holds. Buffers: starts int64, lengths int32.

    It changes nothing: asked again it is done again.
    """

    FRAMES: ClassVar[int] = 2
    table: Index
    pin: Number
    shape: Shape


Request = (
    Discover | Hello | Attach | Goodbye | CreateTable | OpenTable | Lease | Allocate | GiveBack | Commit
    | Withdraw | Select | Pick | Hold | Update | Reset | Info | Releases | Explain | Describe | Measure | Scan | Insert
    | Collect | DropHidden | Draw | Credit | Await | Account | Fill | SetVersion | Begin | Append | Seal | Length | Drop
    | Acknowledge | Identify | Publish | Store | Install | Fetch | Read | Discard | Save | Complete | Unsave | AskSaving
    | Dial | Locate | Place | Land | Forgo | Unload | Push
)  # fmt: skip


# From the supervisor or a shard to a client.


class Failed(Message, tag=100):
    """The request was refused; `kind` names a class of `gear.errors`. Of a Commit: committed up to `sequence`."""

    kind: str
    message: str
    sequence: Number = 0

    def error(self) -> GearError:
        """The exception that says so."""
        return by_name.get(self.kind, GearError)(self.message)


class Shard(Message, tag=99):
    """How to reach one shard: a port on the host of the discovery, or a local socket."""

    index: Index
    port: Annotated[int, Meta(ge=1, le=65535)]
    socket: Text


class Discovered(Message, tag=101):
    """Where the living shards are, after how many silent seconds a client is lost, and how many shards there were."""

    name: Text
    heartbeat: Seconds
    shards: Annotated[list[Shard], Meta(min_length=1, max_length=256)]
    count: Annotated[int, Meta(ge=1, le=256)] = 1


class Welcome(Message, tag=102):
    """`server` stands for the memory it serves; `resumed` tells whether the client was known.

    `era`: how often a shard that served this memory was started before. Another one than at the last greeting means
    that pins, claims and requests of before are gone; what is sent again is done once.
    `port`: where the shard's host takes lanes from other hosts, 0 for nowhere; `key`: what opens one for this
    connection, once. On the lane itself, where the shard says welcome again, there is none.
    """

    server: Identity
    directory: Text
    resumed: bool
    era: Number = 0
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    key: Annotated[bytes, Meta(max_length=16)] = b""


class Done(Message, tag=103):
    """It happened."""


class Opened(Message, tag=104):
    """A table as declared, and where the segment of the shard's part of it lies. `client`: the asker's number.

    `gpu`, `arena`: the UUID of the shard's device, and what opens its memory with the table's columns there.
    """

    table: Annotated[bytes, Meta(max_length=1 << 20)]
    index: Index
    shard: Index
    segment: Text
    nbytes: Number
    committed: Number
    part: Index = 0
    parts: Annotated[int, Meta(ge=1, le=256)] = 1
    client: Count = 0
    gpu: Text = ""
    arena: Annotated[bytes, Meta(max_length=256)] = b""


class Granted(Message, tag=105):
    """Buffers: blocks int32, slots int32."""

    FRAMES: ClassVar[int] = 2


class Committed(Message, tag=106):
    """All entries up to `sequence` are committed. Buffers: leased blocks int32, slots int32."""

    FRAMES: ClassVar[int] = 2
    sequence: Number
    lost: list[Count]


class Withdrawn(Message, tag=107):
    """How many were dropped; the others of the range are committed or were refused."""

    dropped: Count


class Selected(Message, tag=108):
    """Buffer: ids int64, probabilities float64, starts int64, lengths int32, neighbours int32, one behind the other.

    Behind it what `Gathered` has of the rows that were asked for ahead; none after a break of the connection.
    """

    FRAMES: ClassVar[int] = 1
    BULK: ClassVar[bool] = True
    pin: Number
    parties: Count
    smallest: float
    deadline: float
    mass: float = 0.0
    """Of a part of a table, after the draw: what all its items weigh, and how many can be drawn."""
    items: Number = 0
    near: Count = 0
    """How many neighbours there are."""
    draw: int = -1
    """Number of the draw that it is a rank's part of."""
    versioned: bool = False
    """Whether the versions of the items, int64, come between starts and lengths."""


class Updated(Message, tag=109):
    """Outcome of an update."""

    applied: Count
    stale: Count


class Informed(Message, tag=110):
    """`info`: msgpack of plain data."""

    info: bytes


class Explained(Message, tag=113):
    """What inserts wait for."""

    text: Text


class Described(Message, tag=140):
    """The declarations of the tables, in the order of their numbers."""

    tables: Annotated[list[bytes], Meta(max_length=256)]


class Scanned(Message, tag=142):
    """Buffer: ids, trajectories, positions int64, priorities float64 (if kept), lengths int32, one behind the other.

    The cursor goes on behind them; empty: that was all.
    """

    FRAMES: ClassVar[int] = 1
    cursor: Annotated[bytes, Meta(max_length=64)]
    count: Count
    prioritized: bool


class Gathered(Message, tag=114):
    """Rows. Buffers: one after the other what the plan of the items' number and shape lays out; then `GOOD`.

    `CUT` at the end says that they are the rows of grains, see `pieces`, one behind the other; `BAD`, that they are
    worth nothing, as the pin ended or late columns changed while they were gathered: ask again.
    """

    BULK: ClassVar[bool] = True


class Recall(Message, tag=111):
    """Pushed: give back that many idle leases."""

    table: Index
    blocks: Count


class Revoke(Message, tag=112):
    """Pushed: stop trusting what these pins name, then release them."""

    table: Index
    pins: list[Number]


Reply = (
    Failed | Discovered | Welcome | Done | Opened | Granted | Committed | Withdrawn | Selected | Updated
    | Informed | Recall | Revoke | Explained | Described | Scanned | Gathered | Lend | Version | Begun | Grown
    | Acknowledged | Identified | Staged | Published | Fetched | Saved | Completed | Saving | Ending | Dialed | Located
    | Placed | Pushed
)  # fmt: skip


class Envelope(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a client sends. Request numbers rise by one; all below `answered` have their reply."""

    version: int
    request: Number
    answered: Number
    releases: Annotated[list[Release], Meta(max_length=MAX_RELEASES)]
    body: Request


class Answer(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a client receives; request 0 is a push."""

    version: int
    request: Number
    body: Reply

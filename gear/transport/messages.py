"""The wire: every message there is, with one decoder per direction that validates everything.

A message is ``[header, raw buffer, ...]``. The header is msgpack: an array that starts with the protocol
version and the request number in every version there will ever be, so that two versions can tell each other
apart. Nothing here knows sockets or tables, and nothing is ever decoded by any other means.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Union

import msgspec
import numpy as np
from msgspec import Meta

from gear.errors import GearError, ProtocolError, by_name
from gear.storage.layout import COMMIT_ENTRY

PROTOCOL = 1
"""Version of the wire, raised with every incompatible change."""

MAX_ENTRIES = 4096
MAX_ITEMS = 1 << 20
MAX_ROWS = 1 << 24
MAX_FRAME = 8 * MAX_ROWS
MAX_RELEASES = 1 << 16

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, Meta(ge=0, le=255)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e10)]
Identity = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(max_length=128)]
Text = Annotated[str, Meta(max_length=4096)]
Release = tuple[Index, Number, bool]
"""A hold that ended: table, pin, delivered."""


class Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of all messages: a tagged array; `FRAMES` raw buffers follow the header."""

    FRAMES: ClassVar[int] = 0


# From a client to the supervisor or a shard.


class Discover(Message, tag=1):
    """Where are the shards?"""

    token: Text


class Hello(Message, tag=2):
    """First on every connection; the same identity on a later one resumes the client."""

    client: Identity
    token: Text


class Attach(Message, tag=3):
    """Prove shared memory with the nonce read through it; the client's lock file is held by now."""

    nonce: Identity


class Goodbye(Message, tag=4):
    """The client will touch nothing any more: all it holds is free at once."""


class CreateTable(Message, tag=5):
    table: Annotated[bytes, Meta(max_length=1 << 20)]


class OpenTable(Message, tag=6):
    name: Union[Name, None]


class Lease(Message, tag=7):
    table: Index
    blocks: Count
    slots: Count


class Allocate(Message, tag=8):
    table: Index
    blocks: Count
    slots: Count
    timeout: Union[Seconds, None]


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
    table: Index
    size: Annotated[int, Meta(ge=1, le=MAX_ITEMS)]
    parties: Annotated[int, Meta(ge=1, le=65535)]
    ttl: Seconds
    timeout: Union[Seconds, None]


class Hold(Message, tag=13):
    table: Index
    pin: Number


class Update(Message, tag=14):
    """Buffers: ids int64, priorities float64."""

    FRAMES: ClassVar[int] = 2
    table: Index


class Reset(Message, tag=15):
    table: Index


class Info(Message, tag=16):
    pass


class Releases(Message, tag=17):
    """Nothing but the releases in the envelope."""


class Explain(Message, tag=18):
    """What do inserts wait for?"""

    table: Index


Request = Union[
    Discover, Hello, Attach, Goodbye, CreateTable, OpenTable, Lease, Allocate, GiveBack, Commit, Withdraw,
    Select, Hold, Update, Reset, Info, Releases, Explain,
]  # fmt: skip


# From the supervisor or a shard to a client.


class Failed(Message, tag=100):
    """The request was refused; `kind` names a class of `gear.errors`. Of a Commit: committed up to `sequence`."""

    kind: str
    message: str
    sequence: Number = 0

    def error(self) -> GearError:
        return by_name.get(self.kind, GearError)(self.message)


class Shard(Message, tag=99):
    """How to reach one shard: a port on the host of the discovery, or a local socket."""

    index: Index
    port: Annotated[int, Meta(ge=1, le=65535)]
    socket: Text


class Discovered(Message, tag=101):
    name: Text
    heartbeat: Seconds
    shards: Annotated[list[Shard], Meta(min_length=1, max_length=256)]


class Welcome(Message, tag=102):
    """`server` is new with every start; `resumed` tells whether the client was known."""

    server: Identity
    directory: Text
    resumed: bool


class Done(Message, tag=103):
    pass


class Opened(Message, tag=104):
    table: Annotated[bytes, Meta(max_length=1 << 20)]
    index: Index
    shard: Index
    segment: Text
    nbytes: Number
    committed: Number


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
    """Buffer: ids int64, probabilities float64, starts int64, lengths int32, one behind the other."""

    FRAMES: ClassVar[int] = 1
    pin: Number
    parties: Count
    smallest: float
    deadline: float


class Updated(Message, tag=109):
    applied: Count
    stale: Count


class Informed(Message, tag=110):
    """`info`: msgpack of plain data."""

    info: bytes


class Explained(Message, tag=113):
    text: Text


class Recall(Message, tag=111):
    """Pushed: give back that many idle leases."""

    table: Index
    blocks: Count


class Revoke(Message, tag=112):
    """Pushed: stop trusting what these pins name, then release them."""

    table: Index
    pins: list[Number]


Reply = Union[
    Failed, Discovered, Welcome, Done, Opened, Granted, Committed, Withdrawn, Selected, Updated, Informed,
    Recall, Revoke, Explained,
]  # fmt: skip


class Envelope(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a client sends. Request numbers rise by one; all below `answered` have their reply."""

    version: int
    request: Number
    answered: Number
    releases: Annotated[list[Release], Meta(max_length=MAX_RELEASES)]
    body: Request


class Answer(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a client receives; request 0 is a push."""

    version: int
    request: Number
    body: Reply


class _Prefix(msgspec.Struct, array_like=True, frozen=True):
    """What the headers of all protocol versions have in common."""

    version: int
    request: Number


encode = msgspec.msgpack.Encoder().encode
_requests = msgspec.msgpack.Decoder(Envelope)
_answers = msgspec.msgpack.Decoder(Answer)
_prefixes = msgspec.msgpack.Decoder(_Prefix)


def request_number(header: bytes) -> int | None:
    """The request number of a header whatever its version, None if the bytes are no header."""
    try:
        return _prefixes.decode(header).request
    except (msgspec.DecodeError, RecursionError):
        return None


def _decode(decoder: Any, parts: list[bytes], sender: str) -> Any:
    if not parts:
        raise ProtocolError(f"expected a message from the {sender}, got an empty one")
    try:
        envelope = decoder.decode(parts[0])
    except (msgspec.DecodeError, RecursionError) as error:
        envelope, reason = None, error
    version = envelope.version if envelope is not None else _version(parts[0])
    if version is not None and version != PROTOCOL:
        raise ProtocolError(
            f"the {sender} speaks protocol version {version}, this end speaks {PROTOCOL}; "
            "install the same release of gear-replay at both ends"
        )
    if envelope is None:
        raise ProtocolError(f"expected a message of protocol version {PROTOCOL} from the {sender}: {reason}")
    expected = envelope.body.FRAMES
    if len(parts) - 1 != expected:
        raise ProtocolError(
            f"{type(envelope.body).__name__}: expected {expected} buffers behind the header, got {len(parts) - 1}"
        )
    return envelope


def _version(header: bytes) -> int | None:
    try:
        return _prefixes.decode(header).version
    except (msgspec.DecodeError, RecursionError):
        return None


def decode_request(parts: list[bytes]) -> Envelope:
    """The envelope of a client's message; its buffers are ``parts[1:]``.

    Raises
    ------
    ProtocolError
        If the bytes are no request of this protocol version.
    """
    envelope: Envelope = _decode(_requests, parts, "client")
    return envelope


def decode_answer(parts: list[bytes]) -> Answer:
    """The envelope of a server's message; its buffers are ``parts[1:]``.

    Raises
    ------
    ProtocolError
        If the bytes are no answer of this protocol version.
    """
    answer: Answer = _decode(_answers, parts, "server")
    return answer


def array(frame: bytes, dtype: Any, most: int, what: str) -> np.ndarray:
    """A raw buffer as a new, writable array of at most `most` elements.

    Raises
    ------
    ProtocolError
        If the size does not fit.
    """
    size = np.dtype(dtype).itemsize
    count, rest = divmod(len(frame), size)
    if rest or count > most:
        raise ProtocolError(f"{what}: expected at most {most} elements of {size} bytes, got {len(frame)} bytes")
    return np.frombuffer(frame, dtype).copy()


def commit_arrays(parts: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries, blocks and priorities of a Commit; what they say is checked by the table.

    Raises
    ------
    ProtocolError
        If a size does not fit.
    """
    entries = array(parts[1], COMMIT_ENTRY, MAX_ENTRIES, "Commit entries")
    blocks = array(parts[2], np.int32, MAX_ROWS, "Commit blocks")
    priorities = array(parts[3], np.float64, MAX_ROWS, "Commit priorities")
    return entries, blocks, priorities

"""Messages of what is served in turn, acknowledgements, and of what is published, the weights of a model."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from gear.arrays import Entries
from gear.transport.message import PIECE, Index, Message, Name, Number, Seconds


class Acknowledge(Message, tag=80):
    """A consumer is done with items. Buffer: ids int64."""

    FRAMES: ClassVar[int] = 1
    table: Index
    consumer: Name


class Publish(Message, tag=90):
    """Begin a version of what is published under a name (0: the next number), with all its bytes or none of them."""

    BULK: ClassVar[bool] = True
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    entries: Entries
    version: Number


class Store(Message, tag=91):
    """A piece of a version begun before. Buffer: `PIECE` bytes, fewer at the end."""

    FRAMES: ClassVar[int] = 1
    ticket: Number
    offset: Number


class Install(Message, tag=92):
    """All pieces are there: the version takes the place of the one before."""

    ticket: Number


class Fetch(Message, tag=93):
    """The latest version, once it is newer. It changes nothing: asked again it is done again."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    newer_than: Number
    timeout: Seconds | None


class Read(Message, tag=94):
    """A piece of a version being read. Asked again it is done again."""

    ticket: Number
    offset: Number
    nbytes: Annotated[int, Meta(ge=1, le=PIECE)]


class Discard(Message, tag=95):
    """The version begun or being read under that ticket is not wanted any more."""

    ticket: Number


class Acknowledged(Message, tag=180):
    """Buffer: what became of each id, int8."""

    FRAMES: ClassVar[int] = 1


class Staged(Message, tag=190):
    """A version was begun; its pieces name the ticket."""

    ticket: Number


class Published(Message, tag=191):
    """The version is the latest now."""

    version: Number


class Fetched(Message, tag=192):
    """A version. Buffers: all its bytes, or none where it is to be read piece by piece under the ticket (not 0)."""

    BULK: ClassVar[bool] = True
    version: Number
    entries: Entries
    ticket: Number

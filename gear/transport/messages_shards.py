"""Messages about tables that lie on several shards: from clients that draw from all of them, and between shards."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gear.transport.message import MAX_ITEMS, Count, Index, Message, Name, Number, Seconds, Shape


class DropHidden(Message, tag=43):
    """Another shard has refused its part: drop this one, unless it was shown meanwhile."""

    table: Annotated[bytes, Meta(max_length=1 << 20)]


class Draw(Message, tag=47):
    """Draw and pin items of a part of a table now, as many as there are; of none, say what the part weighs."""

    table: Index
    size: Annotated[int, Meta(ge=0, le=MAX_ITEMS)]
    parties: Annotated[int, Meta(ge=1, le=65535)]
    ttl: Seconds
    shape: Shape | None = None
    before: Number = 0
    after: Number = 0


class Credit(Message, tag=44):
    """Of the home of a table's limiter: credit for a batch drawn from several shards, in a pin without items."""

    table: Index
    amount: Annotated[int, Meta(ge=1, le=MAX_ITEMS)]
    parties: Annotated[int, Meta(ge=1, le=65535)]
    ttl: Seconds
    timeout: Seconds | None


class Account(Message, tag=46):
    """From a shard to the home of a table's limiter: its items so far, inserts lent and not used, inserts that wait."""

    table: Name
    shard: Index
    serial: Number
    inserted: Number
    deleted: Number
    credit: Count
    want: Count


class Await(Message, tag=45):
    """Answered, with an empty selection, when anything of this part can be drawn, and more than `above` items."""

    table: Index
    above: Number = 0


class Lend(Message, tag=144):
    """So many more items may be inserted. Also pushed, and then counts only if no later account was given.

    `back`: what is not used is to be given back, with the next account, which is wanted now. `floor`: of a least size,
    the number of items down to which no account is wanted.
    """

    table: Name
    serial: Number
    amount: Count
    back: bool = False
    floor: Number = 0

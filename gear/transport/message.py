"""What all messages are made of: their base class and the types of their fields."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from gear.views import AnyView

MAX_ITEMS = 1 << 20
MOST_RANKS = 4096

PIECE = 4 << 20
"""Bytes of rows per answer at most; but an item is never divided, so one item may be more.

Large enough that what a message costs, about 0.3 ms of processors at both ends, is little beside what its bytes cost.
"""

GOOD, CUT, BAD = b"g", b"c", b"b"
"""Behind rows: they lie as their plan says, or as the plans of their grains do; or they are not what was asked for."""

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, Meta(ge=0, le=255)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e10)]
Identity = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(max_length=128)]
Text = Annotated[str, Meta(max_length=4096)]
Void = tuple[Index, Number, Number]
"""Table, first and last commit entry: withdrawn."""

Release = tuple[Index, Number, bool]
"""A hold that ended: table, pin, delivered."""


def hidden(self: msgspec.Struct) -> str:
    """The `__repr__` of what holds a secret: its token and keys are left out."""
    fields = (
        f"{name}={'...' if name in ('token', 'curve_pair') else repr(getattr(self, name))}"
        for name in self.__struct_fields__
    )
    return f"{type(self).__name__}({', '.join(fields)})"


class Message(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Base of all messages: a tagged array; `FRAMES` raw buffers follow the header, of a `BULK` one any number more."""

    FRAMES: ClassVar[int] = 0
    BULK: ClassVar[bool] = False


class Share(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Which rank's part of a draw is asked for, and of which draw: None for the rank's next one."""

    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    rank: Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
    draw: Number | None = None


class Shape(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """How items look in a batch: the views of its columns, the most steps of an item, whether items are packed."""

    views: Annotated[tuple[AnyView, ...], Meta(max_length=4096)]
    length: Count
    packed: bool = False

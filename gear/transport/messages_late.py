"""Messages about what comes after an insert: late columns, open trajectories, versions."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from gear.transport.message import Count, Index, Message, Name, Number, Seconds

MOST_COLUMNS = 256


class Fill(Message, tag=60):
    """Write late columns of whole trajectories.

    Buffers: ids int64, lengths int64, and one for each named column: its rows, of all trajectories one behind the
    other.
    """

    FRAMES: ClassVar[int] = 2
    BULK: ClassVar[bool] = True
    table: Index
    columns: Annotated[list[Name], Meta(min_length=1, max_length=MOST_COLUMNS)]


class SetVersion(Message, tag=61):
    """Raise the policy version of a table; without one, ask for it."""

    table: Index
    version: Number | None


class Begin(Message, tag=62):
    """Open a trajectory, of that policy version or the table's. Buffer: its per-trajectory columns, or none."""

    FRAMES: ClassVar[int] = 1
    table: Index
    version: Number | None
    timeout: Seconds | None


class Append(Message, tag=63):
    """Append rows to an open trajectory of `at` rows. Buffers: one for each named column, every one per step."""

    BULK: ClassVar[bool] = True
    table: Index
    trajectory: Number
    at: Number
    rows: Count
    columns: Annotated[list[Name], Meta(min_length=1, max_length=MOST_COLUMNS)]
    timeout: Seconds | None


class Seal(Message, tag=64):
    """End an open trajectory. Buffers: per-trajectory columns or none, priorities float64, each final value."""

    FRAMES: ClassVar[int] = 2
    BULK: ClassVar[bool] = True
    table: Index
    trajectory: Number
    terminated: bool
    final: Annotated[list[Name], Meta(max_length=MOST_COLUMNS)]
    timeout: Seconds | None


class Length(Message, tag=65):
    """How long is an open trajectory?"""

    table: Index
    trajectory: Number


class Drop(Message, tag=66):
    """Drop trajectories, open or sealed. Buffer: ids int64."""

    FRAMES: ClassVar[int] = 1
    table: Index


class Identify(Message, tag=67):
    """Which ids do the trajectories have that this client committed under these numbers? Buffer: sequences int64."""

    FRAMES: ClassVar[int] = 1
    table: Index


class Identified(Message, tag=164):
    """Buffer: ids int64."""

    FRAMES: ClassVar[int] = 1


class Begun(Message, tag=162):
    """The id of a trajectory that was opened."""

    trajectory: Number


class Grown(Message, tag=163):
    """The rows that a trajectory has now."""

    length: Number


class Version(Message, tag=161):
    """The policy version of a table."""

    version: Number

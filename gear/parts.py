"""How a table is divided over the shards of a server: which shards hold it, and what each part is.

Pure functions of the declaration and the number of shards, computed alike by shards and clients. The first holder is
the table's home, which keeps its limiter. The parts' capacities, and the sizes of a queue's or stack's, add up to
what was declared. Nothing here knows memory or sockets.
"""

from __future__ import annotations

import zlib

from msgspec.structs import replace

from gear.schema import Capacity, MinSize, Queue, SampleToInsertRatio, Stack, Table


def holders(table: Table, shards: int) -> list[int]:
    """The numbers of the shards that hold a table, its home first.

    Parameters
    ----------
    shards : int
        How many the server has, those that died included.
    """
    most = min(table.shards or shards, shards, table.capacity.n)
    if isinstance(table.limiter, (Queue, Stack)):
        most = min(most, table.limiter.size)
    home = zlib.crc32(table.name.encode()) % shards
    return [(home + k) % shards for k in range(most)]


def part(table: Table, number: int, parts: int) -> Table:
    """What part `number` of `parts` of a table is, as a table of its own.

    Its pieces are no longer than the smallest part holds, and its draws have a seed of their own.

    Raises
    ------
    SchemaError
        If the parts are too small.
    """
    if parts == 1:
        return table
    smallest: Capacity = type(table.capacity)(table.capacity.n // parts)
    shortest = replace(table, capacity=smallest, max_length=0, mean_length=table.mean_length, limiter=MinSize(1))
    limiter = table.limiter
    if isinstance(limiter, (Queue, Stack)):
        limiter = type(limiter)(_share(limiter.size, number, parts))
    return replace(
        table,
        capacity=type(table.capacity)(_share(table.capacity.n, number, parts)),
        limiter=limiter,
        max_length=min(table.max_length, shortest.max_length),
        seed=(table.seed + number * 0x9E3779B97F4A7C15) % (1 << 63),
    )


def is_limited(table: Table) -> bool:
    """Whether samples or inserts of one part depend on the others: the home of the limiter has to be asked."""
    if isinstance(table.limiter, MinSize):
        return table.limiter.n > 1
    return isinstance(table.limiter, SampleToInsertRatio)


def is_spread(table: Table, parts: int) -> bool:
    """Whether the limiter of a part is not its own business, see `Layout`."""
    return parts > 1 and not isinstance(table.limiter, (Queue, Stack))


def _share(whole: int, number: int, parts: int) -> int:
    """The first parts get what is left over, one each."""
    return whole // parts + (number < whole % parts)

"""What the shards of a server say about themselves, fetched for whoever watches: metrics, `gear top`, `gear tables`.

Figures are the plain data of a shard's `info` with the latencies of its requests. Counts only ever rise while a
shard lives; rates are made of two measurements by who shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gear import schema
from gear.errors import ProtocolError
from gear.totals import Figures, total
from gear.transport import messages as m
from gear.transport.onlooker import ask_each, expect

if TYPE_CHECKING:
    from gear.transport.keys import ClientKeys

__all__ = ["Figures", "declared", "fill", "measure", "total"]


def measure(
    shards: Sequence[m.Shard], host: str, token: str, timeout: float, keys: ClientKeys | None = None
) -> dict[int, Figures]:
    """The figures of each shard that answers within `timeout` seconds, by its number."""
    answers = expect(ask_each(shards, host, token, m.Measure(), timeout, keys), m.Informed)
    try:
        return {index: msgspec.msgpack.decode(a.info, type=Figures) for index, a in sorted(answers.items())}
    except msgspec.DecodeError as error:
        raise ProtocolError(f"expected figures from the server: {error}") from None


def declared(
    shards: Sequence[m.Shard], host: str, token: str, timeout: float, keys: ClientKeys | None = None
) -> list[schema.Table]:
    """The tables of a server as they were declared, in the order of their numbers."""
    answers = expect(ask_each(shards, host, token, m.Describe(), timeout, keys), m.Described)
    tables = (schema.from_bytes(spec) for _, answer in sorted(answers.items()) for spec in answer.tables)
    return list({table.name: table for table in tables}.values())


def fill(table: Figures) -> float:
    """How full a table is, 0 to 1, by what its capacity counts."""
    used = {"steps": "steps", "trajectories": "trajectories", "bytes": "used_bytes"}
    return max((table[used[kind]] / most for kind, most in table["capacity"].items() if kind in used), default=0.0)

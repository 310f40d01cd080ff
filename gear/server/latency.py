"""How long requests take, counted in plain integers: a row of power-of-two buckets for each kind of message.

The loop of a shard counts, whoever watches it reads. A latency runs from the moment a request was read to its
answer, waits for the limiter, for items or for blocks included. Nothing here allocates while it counts.
"""

from __future__ import annotations

import re
from time import perf_counter_ns as clock
from typing import Any

FIRST = 10
"""The first bucket holds what took at most ``2 ** FIRST`` ns; each next one twice as long."""

BUCKETS = 26
"""Buckets with a bound, up to ``2 ** 35`` ns (34 s); one more holds the rest."""

BOUNDS = tuple(2 ** (FIRST + k) / 1e9 for k in range(BUCKETS))
"""Upper bounds in seconds, inclusive."""

_NANOSECONDS = BUCKETS + 1
"""Where a row keeps its sum, behind the buckets."""

_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")

__all__ = ["BOUNDS", "BUCKETS", "Latencies", "clock", "count", "kind_of", "quantile"]


def kind_of(message: type) -> str:
    """The kind of a message for people: ``GiveBack`` is ``give_back``."""
    return _CAPITAL.sub("_", message.__name__).lower()


def count(row: list[int], nanoseconds: int) -> None:
    """One more request of the row's kind."""
    bucket = (nanoseconds - 1 >> FIRST).bit_length() if nanoseconds > 0 else 0
    row[bucket if bucket < BUCKETS else BUCKETS] += 1
    row[_NANOSECONDS] += nanoseconds


class Latencies:
    """The latencies of a shard's requests.

    Parameters
    ----------
    kinds : message classes
    """

    def __init__(self, kinds: list[type]) -> None:
        self.rows: dict[type, list[int]] = {kind: [0] * (BUCKETS + 2) for kind in kinds}

    def figures(self) -> dict[str, dict[str, Any]]:
        """By kind, where there were any: counts per bucket, int[BUCKETS + 1], and seconds altogether."""
        return {
            kind_of(kind): {"buckets": row[:_NANOSECONDS], "seconds": row[_NANOSECONDS] * 1e-9}
            for kind, row in self.rows.items()
            if any(row)
        }


def quantile(q: float, buckets: list[int]) -> float:
    """Seconds within which the share `q` of the counted requests was answered, NaN where there were none.

    Linear within a bucket, as Prometheus' ``histogram_quantile``; beyond the last bound that bound.
    """
    wanted = q * sum(buckets)
    if wanted <= 0:
        return float("nan")
    below = 0
    for k, count in enumerate(buckets[:BUCKETS]):
        if below + count >= wanted:
            least = BOUNDS[k - 1] if k else 0.0
            return least + (BOUNDS[k] - least) * (wanted - below) / count
        below += count
    return BOUNDS[-1]

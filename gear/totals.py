"""Figures of several shards as those of one: plain data, added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Figures = dict[str, Any]

_SAME = frozenset({"block_steps", "block_bytes", "protocol", "uptime", "shard", "pid", "last_time", "last_seconds"})
"""Numbers that say nothing when added up: the first shard's stand for all."""


def total(figures: Iterable[Figures]) -> Figures:
    """The figures of several shards as those of one: numbers added up, lists place by place, the first of texts."""
    result: Figures = {}
    for one in figures:
        _add(result, one)
    return result


def _add(result: Figures, other: Figures) -> None:
    for name, value in other.items():
        there = result.get(name)
        if isinstance(value, dict):
            if there is None:
                result[name] = there = {}
            _add(there, value)
        elif there is None:
            result[name] = list(value) if isinstance(value, list) else value
        elif isinstance(value, list):
            result[name] = [a + b for a, b in zip(there, value, strict=True)]
        elif isinstance(value, (int, float)) and name not in _SAME:
            result[name] = there + value

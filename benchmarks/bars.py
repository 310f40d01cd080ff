"""What is asked of a measurement's first candidate, and whether it is held. Nothing here knows GEAR."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

Times = dict[str, list[float]]
"""Seconds per unit of each round, by candidate."""


@dataclass(frozen=True)
class Bar:
    """What is asked of the first candidate: at least so many times as fast as others.

    over : ``"peers"`` is the fastest of them, anything else how the names of candidates begin, the fastest of which
        counts.
    """

    least: float
    over: str

    def __str__(self) -> str:
        return f">= {self.least:g} x {'the best peer' if self.over == 'peers' else self.over}"

    def verdict(self, rows: list[dict], times: Times) -> dict[str, object]:
        """Whether it is held; nothing if there is nobody to compare with."""
        if self.over == "peers":
            rivals = [row for row in rows if row["role"] == "peer"]
        else:
            rivals = [row for row in rows[1:] if row["candidate"].startswith(self.over)]
        if not rivals:
            return {"held": None}
        best = min(rivals, key=lambda row: row["us"])
        return {
            "against": best["candidate"],
            "value": best["ratio"],
            "range": best["ratio_range"],
            "reached": best["ratio"] / self.least,
            "held": bool(best["ratio"] >= self.least),
        }


@dataclass(frozen=True)
class Within:
    """What is asked of the first candidate: at most so many seconds for each unit."""

    seconds: float

    def __str__(self) -> str:
        scale, unit = next((s, u) for s, u in ((1, "s"), (1e3, "ms"), (1e6, "us")) if self.seconds * s >= 1)
        return f"<= {self.seconds * scale:.3g} {unit}"

    def verdict(self, rows: list[dict], times: Times) -> dict[str, object]:
        """Whether it is held."""
        seconds = rows[0]["us"] / 1e6
        return {
            "unit": "s",
            "value": seconds,
            "range": [us / 1e6 for us in rows[0]["us_range"]],
            "reached": self.seconds / seconds,
            "held": bool(seconds <= self.seconds),
        }


@dataclass(frozen=True)
class Growth:
    """What is asked of a pair: to grow at most so many times as much as another pair, each (large, small)."""

    most: float
    ours: tuple[str, str]
    theirs: tuple[str, str]

    def __str__(self) -> str:
        return f"grows <= {self.most:g} x as much as NumPy take"

    def verdict(self, rows: list[dict], times: Times) -> dict[str, object]:
        """Whether it is held; the growths are compared in each round."""
        (large, small), (much, little) = ([times[name] for name in pair] for pair in (self.ours, self.theirs))
        ratios = [a / b / (c / d) for a, b, c, d in zip(large, small, much, little, strict=True)]
        value = statistics.median(ratios)
        return {
            "against": f"{self.theirs[0]} / {self.theirs[1]}",
            "value": value,
            "range": [min(ratios), max(ratios)],
            "reached": self.most / value,
            "held": bool(value <= self.most),
        }

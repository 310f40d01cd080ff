"""How a figure comes about: warm-up, rounds in which the candidates take turns, medians and spread.

Machines share their cores and caches with others, so an absolute time says little. Every candidate of a
measurement does the same work in the same round; what is reported is the ratio of each round, its median and its
range. A peer is one more candidate in a measurement's list. A measurement whose result is wrong is no figure:
`WrongResult` ends the run.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field


class WrongResult(Exception):
    """What was measured did not do what it should."""


@dataclass
class Candidate:
    """One way of doing the work: `call(k)` does the k-th piece of it.

    `timed`: the call returns its own seconds, of what a clock around it could not tell apart.
    """

    name: str
    call: Callable[[int], object]
    timed: bool = False


@dataclass
class Measurement:
    """Candidates that take turns; the last one is the limit the others are held against.

    Parameters
    ----------
    name, work : what is measured, and what one call does.
    candidates : ours first, the limit last; a single candidate is reported in absolute time only.
    per_call, unit : how much one call does, for rates.
    bar : what is asked of the first candidate, in words.
    calls : calls per candidate and round.
    verify : looks at what the calls left behind; raises `WrongResult`.
    """

    name: str
    work: str
    candidates: list[Candidate]
    per_call: float
    unit: str
    bar: str
    calls: int = 500
    verify: Callable[[], None] = lambda: None
    times: dict[str, list[float]] = field(default_factory=dict)

    def run(self, rounds: int) -> None:
        """Warm up, then interleave; a round's figure is the median call of that round."""
        for candidate in self.candidates:
            for k in range(min(self.calls, 50)):
                candidate.call(k)
        for turn in range(rounds):
            for candidate in self.candidates:
                seconds = [self._time(candidate, k) for k in range(turn * self.calls, (turn + 1) * self.calls)]
                self.times.setdefault(candidate.name, []).append(statistics.median(seconds))
        self.verify()

    def _time(self, candidate: Candidate, k: int) -> float:
        start = time.perf_counter()
        result = candidate.call(k)
        end = time.perf_counter()
        return float(result) if candidate.timed else end - start  # type: ignore[arg-type]

    def lines(self) -> list[dict[str, object]]:
        """One record per candidate: median microseconds per call, its range, rate, and the ratio to the limit."""
        limit = self.times[self.candidates[-1].name]
        records: list[dict[str, object]] = []
        for candidate in self.candidates:
            times = self.times[candidate.name]
            record: dict[str, object] = {
                "measurement": self.name,
                "candidate": candidate.name,
                "us": round(statistics.median(times) * 1e6, 2),
                "us_range": [round(min(times) * 1e6, 2), round(max(times) * 1e6, 2)],
                "rate": round(self.per_call / statistics.median(times), 1),
                "unit": f"{self.unit}/s",
                "rounds": len(times),
            }
            if candidate is not self.candidates[-1]:
                ratios = [mine / theirs for mine, theirs in zip(times, limit, strict=True)]
                record["times_limit"] = round(statistics.median(ratios), 2)
                record["times_limit_range"] = [round(min(ratios), 2), round(max(ratios), 2)]
            records.append(record)
        return records


def show(measurement: Measurement) -> str:
    """The measurement as text."""
    rows = [f"{measurement.name}: {measurement.work} (asked: {measurement.bar})"]
    for record in measurement.lines():
        low, high = record["us_range"]  # type: ignore[misc]
        scale, time_unit = (1e-3, "ms") if record["us"] >= 1e4 else (1, "us")  # type: ignore[operator]
        ratio = ""
        if "times_limit" in record:
            least, most = record["times_limit_range"]  # type: ignore[misc]
            ratio = f"   {record['times_limit']:.2f} x the limit ({least:.2f} to {most:.2f})"
        rows.append(
            f"  {record['candidate']:<34} {record['us'] * scale:>9.1f} {time_unit}"  # type: ignore[operator]
            f" ({low * scale:.1f} to {high * scale:.1f})"
            f" {record['rate']:>14,.0f} {record['unit']}{ratio}"
        )
    return "\n".join(rows)


def write(path: str, header: dict[str, object], measurements: list[Measurement]) -> None:
    """Append JSON lines: every record with the header's facts."""
    with open(path, "a") as file:
        for measurement in measurements:
            for record in measurement.lines():
                file.write(json.dumps({**header, **record}) + "\n")

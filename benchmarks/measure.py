"""How a figure comes about: warm-up, rounds in which the candidates take turns, medians and spread.

Machines share their cores and caches with others, so an absolute time says little. Every candidate of a
measurement does the same work in the same round; what is reported is the ratio of each round, its median and its
range. A peer is one more candidate in a measurement's list (`benchmarks.peers`). A measurement whose result is wrong is
no figure: `WrongResult` makes it fail.

Nothing here knows GEAR: the peers' processes measure with it, in environments that do not have it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks import cpu
from benchmarks.bars import Bar, Growth, Within

BUDGET = 0.06
"""Seconds that a candidate works per round, unless a single call takes longer."""

WARM = 50
"""Calls at most before the first round."""


class WrongResult(Exception):
    """What was measured did not do what it should."""


@dataclass
class Candidate:
    """One way of doing the work: `call(k)` does the k-th piece of it.

    Parameters
    ----------
    name : what it is called; the same in every measurement it is part of.
    call : does the k-th piece of work.
    timed : the call returns its own seconds, of what a clock around it could not tell apart.
    counted : whether CPU time is (not where it is another candidate's too).
    per_call : how much a call does if it is not as much as the measurement says.
    processes : roots of the processes that work for it beside this one.
    here : whether this process works for it too.
    before : what is done at the start of each round, untimed.
    check : looks at what it brings; raises `WrongResult`.
    """

    name: str
    call: Callable[[int], object]
    timed: bool = False
    per_call: float | None = None
    processes: Sequence[int] = ()
    here: bool = True
    counted: bool = True
    before: Callable[[], object] | None = None
    check: Callable[[], object] | None = None

    def warm(self, calls: int, budget: float) -> int:
        """Warm up; how many calls a round is to have."""
        self._time(0)  # may load or compile
        seconds: list[float] = []
        while len(seconds) < min(calls, WARM) and (not seconds or sum(seconds) < 2 * budget):
            seconds.append(self._time(len(seconds)))
        return max(1, min(calls, int(budget / max(statistics.median(seconds), 1e-9))))

    def round(self, start: int, calls: int, mean: bool) -> tuple[float, float]:
        """Pieces `start` to `start + calls`: the seconds of a call and the CPU seconds of a call."""
        if self.before is not None:
            self.before()
        members = cpu.tree(self.processes) if self.processes else ()
        began, here = cpu.spent(members), time.process_time()
        first = time.perf_counter()
        seconds = [self._time(k) for k in range(start, start + calls)]
        whole = time.perf_counter() - first
        used = cpu.spent(members) - began + (time.process_time() - here if self.here else 0)
        used = used / calls if self.counted else 0.0
        if not mean:
            return statistics.median(seconds), used
        return (sum(seconds) if self.timed else whole) / calls, used

    def _time(self, k: int) -> float:
        start = time.perf_counter()
        result = self.call(k)
        end = time.perf_counter()
        return float(result) if self.timed else end - start  # type: ignore[arg-type]


@dataclass
class Measurement:
    """Candidates that take turns; ours first.

    Parameters
    ----------
    name, work : what is measured, and what one call does.
    ours, limits : candidates; the first of ours is held against the bars.
    per_call, unit : how much one call does, for rates.
    bars : what is asked.
    calls : calls per candidate and round at most.
    budget : seconds per candidate and round, roughly.
    mean : a round's figure is its time over its calls (for what goes on behind the calls), not the median call.
    verify : looks at what the calls left behind; raises `WrongResult`.
    peers : filled by the suite.
    """

    name: str
    work: str
    ours: list[Candidate]
    limits: list[Candidate] = field(default_factory=list)
    per_call: float = 1
    unit: str = "calls"
    bars: Sequence[Bar | Within | Growth] = ()
    calls: int = 2000
    budget: float = BUDGET
    mean: bool = False
    verify: Callable[[], None] = lambda: None
    peers: list[Candidate] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def candidates(self) -> list[Candidate]:
        """All, in the order of their turns."""
        return [*self.ours, *self.peers, *self.limits]

    def run(self, rounds: int) -> None:
        """Warm up, then interleave; a round's figure is seconds per unit.

        A peer whose result is wrong leaves the measurement, which has then failed; a wrong result of ours raises.
        """
        calls: dict[str, int] = {}
        for turn in range(-1, rounds + 1):
            for one in self.candidates:
                self._turn(one, turn, rounds, calls)
        self.verify()

    def _turn(self, one: Candidate, turn: int, rounds: int, calls: dict[str, int]) -> None:
        """Warm up before the first turn, check after the last one."""
        try:
            if turn < 0:
                calls[one.name] = one.warm(self.calls, self.budget)
            elif turn == rounds:
                if one.check is not None:
                    one.check()
            else:
                self._round(one, turn, calls[one.name])
        except WrongResult as error:
            if one not in self.peers:
                raise
            self.peers.remove(one)
            self.wrong.append(f"{one.name}: {error}")

    def _round(self, one: Candidate, turn: int, calls: int) -> None:
        seconds, used = one.round(turn * calls, calls, self.mean)
        amount = one.per_call or self.per_call
        self.times.setdefault(one.name, []).append(seconds / amount)
        self.cpu.setdefault(one.name, []).append(used / amount)

    def record(self) -> dict[str, object]:
        """All that was found, as plain data: seconds per unit, their ranges, ratios, verdicts."""
        rows = []
        ours = self.times[self.ours[0].name]
        for role, some in (("ours", self.ours), ("peer", self.peers), ("limit", self.limits)):
            for one in some:
                times = self.times[one.name]
                ratios = [theirs / mine for mine, theirs in zip(ours, times, strict=True)]
                rows.append(
                    {
                        "candidate": one.name,
                        "role": role,
                        "us": statistics.median(times) * 1e6,
                        "us_range": [min(times) * 1e6, max(times) * 1e6],
                        "cpu_us": statistics.median(self.cpu[one.name]) * 1e6 or None,
                        "rate": 1 / statistics.median(times),
                        "ratio": statistics.median(ratios),
                        "ratio_range": [min(ratios), max(ratios)],
                    }
                )
        return {
            "measurement": self.name,
            "work": self.work,
            "unit": self.unit,
            "per_call": self.per_call,
            "rounds": len(ours),
            "candidates": rows,
            "bars": [{"bar": str(bar), **bar.verdict(rows, self.times)} for bar in self.bars],
            "wrong": self.wrong,
        }


Found = tuple[dict[str, float], list[tuple[str, float, float]]]


@dataclass
class Finding:
    """Something that is no time of interleaved calls: a size, a ratio of ratios.

    work_out : the values by name, and the bars: what is asked in words, what was found, what it may be at most.
    """

    name: str
    work: str
    unit: str
    work_out: Callable[[], Found]
    found: Found = field(default_factory=lambda: ({}, []))
    said: list[str] = field(default_factory=list)
    peers: list[Candidate] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def run(self, rounds: int) -> None:
        """Work it out."""
        self.found = self.work_out()

    def record(self) -> dict[str, object]:
        """As plain data."""
        values, bars = self.found
        return {
            "measurement": self.name,
            "work": self.work,
            "unit": self.unit,
            "values": values,
            "said": self.said,
            "bars": [
                {"bar": bar, "value": value, "reached": most / value, "held": bool(value <= most)}
                for bar, value, most in bars
            ],
            "wrong": self.wrong,
        }

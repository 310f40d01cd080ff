"""Whether the memory of a soak's shards is flat: read every second, what it has grown to held against what it was.

A third of the run is warm-up: tables fill, kernels load, heaps find their size. From then on it may grow by a tenth at
most (what is no file by a twentieth), and a few MiB, in any run. Over five minutes and more no reading of the last
third may be higher than the highest of the second one by 1 %: a leak shows there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LONG = 300.0
"""Seconds of a run from which on the strict bar counts: shorter ones are over before all is warm."""

STRICT = 0.01
LOOSE = {"all": (0.10, 16384), "own": (0.05, 8192)}
"""What it may grow by: a part, and kB."""

EVERY = 1.0
"""Seconds between readings."""


class Memory:
    """The readings of a run.

    Parameters
    ----------
    read : () -> {"all": kB, "own": kB}
        What is resident of the shards: everything, and what of it is no file.
    """

    def __init__(self, read: Callable[[], dict[str, int]]) -> None:
        self._read = read
        self._begin = self._next = time.monotonic()
        self._readings: list[tuple[float, dict[str, int]]] = []

    def look(self) -> None:
        """Take a reading if one is due."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            self._readings.append((now - self._begin, self._read()))

    def verdict(self) -> tuple[bool, str]:
        """Whether it was flat, and the figures that say so."""
        whole = time.monotonic() - self._begin
        warm = [kb for at, kb in self._readings if at >= whole / 3]
        parts = warm[: len(warm) // 2], warm[len(warm) // 2 :]
        if not all(parts):
            return False, "too short to say"
        flat, said = True, []
        for what, (part, kilobytes) in LOOSE.items():
            before, after = (max(kb[what] for kb in readings) for readings in parts)
            flat &= warm[-1][what] <= (1 + part) * warm[0][what] + kilobytes
            flat &= whole < LONG or after <= (1 + STRICT) * before
            said.append(
                f"{what} {before} kB at most in the second third, {after} in the last: {after / before - 1:+.2%}"
            )
        bar = f"{STRICT:.0%}" if whole >= LONG else "loose, in so short a run"
        return flat, f"{'; '.join(said)}; bar {bar}; {len(warm)} readings"

"""Writers and readers that work at the same time, each a process: this side and theirs.

A member says ``ready``, is told by a line on its standard input which of its services to use and for how many seconds,
and answers with how much it did. Nothing here knows GEAR.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.measure import WrongResult

SECONDS = 0.4
"""Of a round."""


class Crew:
    """The processes; `command` is followed by ``writer`` or ``reader`` and a number."""

    def __init__(self, command: list[str], writers: int, readers: int) -> None:
        self.roles = ["writer"] * writers + ["reader"] * readers
        self.processes = [
            subprocess.Popen(
                [*command, role, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for number, role in enumerate(self.roles)
        ]  # fmt: skip
        self.figures: dict[tuple[int, int], dict[str, float]] = {}
        try:
            for process in self.processes:
                self._line(process, "ready")
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Of all members."""
        return tuple(process.pid for process in self.processes)

    def seconds(self, service: int, k: int, role: str) -> float:
        """Seconds per trajectory written, or sampled, of round `k` of a service; each round is done once."""
        if (service, k) not in self.figures:
            self.figures[service, k] = self._work(service)
        return SECONDS / self.figures[service, k][role]

    def close(self) -> None:
        """End them."""
        for process in self.processes:
            process.stdin.close()  # type: ignore[union-attr]
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()  # type: ignore[union-attr]

    def _work(self, service: int) -> dict[str, float]:
        for process in self.processes:
            print(service, SECONDS, file=process.stdin, flush=True)
        done = {"writer": 0.0, "reader": 0.0}
        for role, process in zip(self.roles, self.processes, strict=True):
            done[role] += float(self._line(process))
        return done

    def _line(self, process: subprocess.Popen, expected: str = "") -> str:
        line = process.stdout.readline().strip()  # type: ignore[union-attr]
        if not line or line.startswith("wrong") or (expected and line != expected):
            raise WrongResult(line or f"a process of a crew ended with {process.wait()}")
        return line


def serve(work: Callable[[int], int], end: Callable[[int], object]) -> None:
    """A member: `work(service)` does a piece and says how much, `end(service)` waits for what is under way."""
    print("ready", flush=True)
    for line in sys.stdin:
        service, seconds = line.split()
        done, start = 0, time.perf_counter()
        try:
            while time.perf_counter() - start < float(seconds):
                done += work(int(service))
            end(int(service))
        except WrongResult as error:
            print(f"wrong: {error}", flush=True)
            return
        print(done * float(seconds) / (time.perf_counter() - start), flush=True)

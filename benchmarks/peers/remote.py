"""Our side of the pipe to a peer: a process, and candidates whose rounds it does."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import WrongResult
from benchmarks.peers.environment import NotInstalled, python_of

PACKAGE = "benchmarks.peers"
"""Where the peers' modules are."""

PATIENCE = 180.0
"""Seconds until a peer that says nothing has failed."""


class Process:
    """The process of a peer; `version` and `cases` are what it said of itself."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._rest = b""
        self._process = subprocess.Popen(
            [str(python_of(peer)), "-m", "benchmarks.peers.serve", f"{PACKAGE}.{peer}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        self.version, self.cases = "", []

    def hello(self) -> None:
        """Wait until it has loaded what it needs.

        Raises
        ------
        WrongResult
            If it could not: its last words. It has ended then.
        """
        try:
            hello = self._answer()
        except BaseException:
            self.close()
            raise
        self.version, self.cases = hello["version"], hello["cases"]

    def ask(self, **command: object) -> dict:
        """Its answer to a command; what was wrong raises `WrongResult`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise WrongResult(self._last_words()) from None
        answer = self._answer()
        if reason := answer.get("wrong") or answer.get("failed"):
            raise WrongResult(reason)
        return answer

    def close(self) -> None:
        """End it, kindly first."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        self._said.close()

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self._process.kill()
                raise WrongResult(f"it said nothing for {PATIENCE:g} s")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise WrongResult(self._last_words())
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        code = self._process.wait()
        self._said.seek(0)
        lines = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        return f"its process ended with {code}: {lines[-1] if lines else 'it said nothing'}"


@dataclass
class Remote:
    """A candidate that lives in a peer's process; see `benchmarks.measure.Candidate`."""

    name: str
    per_call: float | None
    process: Process
    case: str
    number: int

    def warm(self, calls: int, budget: float) -> int:
        """Warm up; how many calls a round is to have."""
        return self._ask("warm", calls=calls, budget=budget)["calls"]

    def round(self, start: int, calls: int, mean: bool) -> tuple[float, float]:
        """The seconds of a call and the CPU seconds of a call."""
        answer = self._ask("round", start=start, calls=calls, mean=mean)
        return answer["seconds"], answer["cpu"]

    def check(self) -> None:
        """Raise `WrongResult` if what it did is wrong."""
        self._ask("check")

    def _ask(self, do: str, **rest: object) -> dict:
        return self.process.ask(do=do, case=self.case, one=self.number, **rest)


class Peers:
    """The peers that take part; a process of each runs while measurements of one group are made.

    `missing` says by peer why it takes no part, `versions` what those are that do.
    """

    def __init__(self, names: list[str]) -> None:
        self.missing: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._cases: dict[str, list[str]] = {}
        self._running: dict[str, Process] = {}
        self._waiting: dict[str, Process] = {}
        for name in names:  # they load at the same time
            try:
                python_of(name)
                self._waiting[name] = Process(name)
            except NotInstalled as error:
                self.missing[name] = str(error)
        for name in list(self._waiting):
            try:
                self._started(name)
            except WrongResult as error:
                self.missing[name] = str(error)
        self.rest()

    def _started(self, name: str) -> Process:
        """A process of that peer that is ready."""
        if name not in self._running:
            process = self._waiting.pop(name, None) or Process(name)
            process.hello()
            self._running[name] = process
            self.versions[name], self._cases[name] = process.version, process.cases
        return self._running[name]

    def join(self, measurement) -> None:
        """Let those that can take part in a measurement; what fails is noted in it."""
        for name in list(self.versions):
            if measurement.name not in self._cases[name]:
                continue
            try:
                process = self._started(name)
                made = process.ask(do="prepare", case=measurement.name)["candidates"]
            except WrongResult as error:
                measurement.wrong.append(f"{name}: {error}")
                continue
            measurement.peers += [
                Remote(one["name"], one["per_call"], process, measurement.name, number)
                for number, one in enumerate(made)
            ]

    def rest(self) -> None:
        """End the processes: their memory, threads and servers are in nobody's way then."""
        while self._running:
            self._running.popitem()[1].close()

"""A peer's side of the pipe: answers commands with JSON lines, in the peer's own environment.

    python -m benchmarks.peers.serve MODULE

Commands: ``prepare`` a case, ``warm`` up a candidate, do a ``round``, ``check`` its result. An answer is one line of
JSON; ``wrong`` in it says that a result was wrong, ``failed`` that something went wrong. Whatever else the peer prints
goes to standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable

from benchmarks.measure import Candidate, WrongResult


class Served:
    """The candidates of the cases that have been prepared."""

    def __init__(self, cases: dict[str, Callable[[], list[Candidate]]]) -> None:
        self.cases = cases
        self.prepared: dict[str, list[Candidate]] = {}

    def answer(self, do: str, case: str, one: int = 0, **rest) -> dict[str, object]:
        """What to say to a command."""
        if do == "prepare":
            self.prepared[case] = self.cases[case]()
            return {"candidates": [{"name": c.name, "per_call": c.per_call} for c in self.prepared[case]]}
        candidate = self.prepared[case][one]
        if do == "warm":
            return {"calls": candidate.warm(rest["calls"], rest["budget"])}
        if do == "round":
            seconds, used = candidate.round(rest["start"], rest["calls"], rest["mean"])
            return {"seconds": seconds, "cpu": used}
        if do == "check":
            if candidate.check is not None:
                candidate.check()
            return {}
        raise ValueError(f"expected prepare, warm, round or check, got {do!r}")


def main(name: str) -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, object]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    module = importlib.import_module(name)
    with contextlib.ExitStack() as stack:
        module.STACK = stack
        served = Served(module.CASES)
        say({"version": module.version(), "cases": list(module.CASES)})
        for line in sys.stdin:
            try:
                say(served.answer(**json.loads(line)))
            except WrongResult as error:
                say({"wrong": str(error)})
            except Exception as error:  # said instead of a figure, with the place
                traceback.print_exc()
                say({"failed": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(sys.argv[1])

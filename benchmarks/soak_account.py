"""Accounts of the actors of `benchmarks.soak` and `benchmarks.killer`: files of lines that outlive whoever is killed.

A line is written before something is asked of the server and another one when it was answered. What was asked and
not answered is unknown: it may have happened once, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.soak_rows import NAMES, places_of


class Lines:
    """JSON lines in a file, appended by one process at a time; a line that a kill cut off counts as not written."""

    def __init__(self, path: Path) -> None:
        said = path.read_bytes() if path.exists() else b""
        self.before = [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith(b"\n")]
        self._path = path

    def note(self, *what: Any) -> None:
        """Append a line; it is there whatever happens to this process afterwards."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, json.dumps(what).encode() + b"\n")
        finally:
            os.close(descriptor)


class Written:
    """What one writer, over all of its lives, has begun to insert, and what of it was acknowledged.

    Attributes
    ----------
    begun : places begun so far, by table.
    unknown : ranges of places whose batch was never acknowledged, by table.
    """

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        self.begun = dict.fromkeys(NAMES, 0)
        self.unknown: dict[str, list[range]] = {name: [] for name in NAMES}
        for table, first, count in self._lines.before:
            if count:
                self.begun[table] = first + count
                self.unknown[table].append(range(first, first + count))
            else:
                self.unknown[table].pop()

    @contextlib.contextmanager
    def batch(self, table: str, count: int) -> Iterator[range]:
        """The places of the next trajectories of a table, which are acknowledged when the block ends."""
        first = self.begun[table]
        self._lines.note(table, first, count)
        self.begun[table] += count
        yield range(first, first + count)
        self._lines.note(table, first, 0)

    def acknowledged(self, table: str) -> np.ndarray:
        """bool[begun], of each place whether it was acknowledged."""
        known = np.ones(self.begun[table], np.bool_)
        for places in self.unknown[table]:
            known[places.start : places.stop] = False
        return known


Accounts = dict[int, Written]
"""By index of the writer."""


def states(numbers: np.ndarray, table: str, accounts: Accounts) -> tuple[np.ndarray, np.ndarray]:
    """Of each trajectory (int64[N]) whether it was acknowledged for that table, and whether that is unknown."""
    acknowledged, unknown = np.zeros(len(numbers), np.bool_), np.zeros(len(numbers), np.bool_)
    writers, kinds, places = places_of(numbers)
    for writer in np.unique(writers).tolist():
        known = accounts[writer].acknowledged(table) if writer in accounts else np.zeros(0, np.bool_)
        mine = (writers == writer) & (kinds == NAMES.index(table)) & (places < len(known))
        acknowledged[mine], unknown[mine] = known[places[mine]], ~known[places[mine]]
    return acknowledged, unknown


class Consumed:
    """What one consumer's process, over all of its lives, has acknowledged."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)

    def ask(self, numbers: list[int]) -> None:
        """These trajectories are about to be acknowledged."""
        self._lines.note(numbers)

    def answer(self, applied: int, repeated: int, stale: int, again: list[int]) -> None:
        """What the server said; `again` are trajectories that somebody else was served."""
        self._lines.note(applied, repeated, stale, again)

    def tally(self) -> tuple[Counter[int], set[int]]:
        """How often each trajectory was acknowledged for certain, and those of which it is not certain.

        Not certain are those of a request that was not answered (its process was killed), and of one that was done in
        part: the shard died after it had done it, and was asked once more.
        """
        certain: Counter[int] = Counter()
        open_: set[int] = set()
        asked: list[int] = []
        for line in self._lines.before:
            if not line or not isinstance(line[0], list):
                applied, *_, again = line
                if applied == len(asked):
                    certain.update(asked)
                else:
                    open_.update(set(asked) - set(again))
                asked = []
            else:
                open_.update(asked)
                asked = line[0]
        return certain, open_ | set(asked)

"""What the benchmarks store, the limits they are held against, and whether a batch is right."""

from __future__ import annotations

import numpy as np

import gear
from benchmarks.measure import WrongResult

Columns = dict[str, np.ndarray]

COLUMNS = [
    gear.Column("obs", (17,), "float32"),
    gear.Column("action", (6,), "float32"),
    gear.Column("reward", (), "float32"),
    gear.Column("done", (), "bool"),
]
STEPS, LENGTH = 1_000_000, 1000
"""Transitions stored, in trajectories of that length."""


def transitions(count: int, seed: int = 0) -> Columns:
    """`count` steps of `COLUMNS` with random content."""
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.random((count, 17), dtype=np.float32),
        "action": rng.random((count, 6), dtype=np.float32),
        "reward": rng.random(count, dtype=np.float32),
        "done": rng.random(count) > 0.5,
    }


def piece(data: Columns, start: int, length: int) -> Columns:
    """Steps start..start+length."""
    return {name: column[start : start + length] for name, column in data.items()}


def fill(client: gear.Client, table: str, data: Columns, priorities: np.ndarray | None = None) -> None:
    """Insert `data` as trajectories of `LENGTH` steps; priorities: float64[steps]."""
    for start in range(0, len(data["reward"]), LENGTH):
        priority = None if priorities is None else priorities[start : start + LENGTH]
        client.insert(piece(data, start, LENGTH), table, priority=priority, wait=False)
    client.flush()


class Take:
    """The limit of reading: NumPy takes the same columns of the same number of rows into arrays there already.

    sets : index sets int64[rows] that rotate, so that no row is still in the cache.
    """

    def __init__(self, data: Columns, sets: list[np.ndarray]) -> None:
        self.data, self.sets = data, sets
        self.out = {k: np.empty((len(sets[0]), *v.shape[1:]), v.dtype) for k, v in data.items()}

    def __call__(self, k: int) -> None:
        index = self.sets[k % len(self.sets)]
        for name, column in self.data.items():
            column.take(index, 0, self.out[name], "clip")  # mode "raise" would buffer: 1.5 x slower


class Ring:
    """The limit of writing: NumPy copies the same pieces into arrays of `steps` rows, one after the other."""

    def __init__(self, pieces: list[Columns], steps: int) -> None:
        self.pieces, self.length = pieces, len(pieces[0]["reward"])
        self.out = {k: np.zeros((steps, *v.shape[1:]), v.dtype) for k, v in pieces[0].items()}
        self.places = steps // self.length
        self.at = 0

    def write(self, k: int) -> None:
        """Copy piece `k`."""
        start = self.at * self.length
        for name, column in self.pieces[k % len(self.pieces)].items():
            self.out[name][start : start + self.length] = column
        self.at = (self.at + 1) % self.places


class Expected:
    """Checks that a batch shows what was inserted: each item's rows, whole and in order, as they lie in `data`."""

    def __init__(self, data: Columns) -> None:
        self.data = data
        self.order = np.argsort(data["reward"], kind="stable")
        self.sorted = data["reward"][self.order]

    def check(self, batch: gear.Batch) -> None:
        """Raise `WrongResult` unless every item of the batch is rows of the data, one after the other."""
        lengths, n = np.asarray(batch.lengths), len(batch.ids)
        flat = {k: np.asarray(batch[k]).reshape(n, -1, *v.shape[1:]) for k, v in self.data.items()}
        first = flat["reward"][:, 0]
        low = np.searchsorted(self.sorted, first, "left")
        high = np.searchsorted(self.sorted, first, "right")  # rewards of several rows may be equal
        for item in range(n):
            length = int(lengths[item])
            if not any(self._same(flat, item, start, length) for start in self.order[low[item] : high[item]]):
                raise WrongResult(f"item {item} of a batch of {n} is not {length} rows of what was inserted")

    def _same(self, flat: Columns, item: int, start: int, length: int) -> bool:
        return all((flat[k][item, :length] == v[start : start + length]).all() for k, v in self.data.items())

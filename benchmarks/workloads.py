"""What is stored in every system alike, made from a seed, and whether a batch is right.

Nothing here knows GEAR: the peers' processes make the same rows and check their own batches by it. The responses of W4
are in `responses_data`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import WrongResult

Columns = dict[str, np.ndarray]

STEPS, LENGTH = 1_000_000, 1000
"""Transitions stored, in trajectories of that length (W1, W2)."""

ROW_BYTES = 97

WINDOWS, WINDOW = 64, 64
"""Windows of a batch and their length (W2)."""

FRAME, FRAMES = (84, 84, 4), 50_000
"""Shape of a frame, and how many are stored (W3)."""

ITEMS = {"64": 2000, "1000": 1000, "frames": 256}
"""Trajectories stored by name of their kind: 64 or 1000 transitions, or 20 frames."""


def transitions(count: int, seed: int = 0) -> Columns:
    """`count` steps of observation, action, reward and done with random content."""
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.random((count, 17), dtype=np.float32),
        "action": rng.random((count, 6), dtype=np.float32),
        "reward": rng.random(count, dtype=np.float32),
        "done": rng.random(count) > 0.5,
    }


class Updates:
    """What is updated: as many sets of items as hold 256,000, and a new value for each of them every time round."""

    def __init__(self, size: int, count: int, seed: int = 2) -> None:
        rng = np.random.default_rng(seed)
        self.sets = max(1, 256_000 // size)
        self.items = [rng.integers(0, count, size) for _ in range(self.sets)]
        self.values = rng.random((self.sets + 7, size)) + 0.01

    def value(self, k: int) -> np.ndarray:
        """Priorities of the k-th update, whose items are those of set ``k % sets``: float64[size]."""
        return self.values[(k + k // self.sets) % len(self.values)]


def piece(data: Columns, start: int, length: int) -> Columns:
    """Steps start..start+length."""
    return {name: column[start : start + length] for name, column in data.items()}


class Ring:
    """The limit of writing: NumPy copies the same pieces into arrays of `steps` rows, one after the other."""

    def __init__(self, pieces: list[Columns], steps: int) -> None:
        self.pieces, self.length = pieces, len(next(iter(pieces[0].values())))
        self.out = {k: np.zeros((steps, *v.shape[1:]), v.dtype) for k, v in pieces[0].items()}
        self.places = steps // self.length
        self.at = 0

    def write(self, k: int) -> None:
        """Copy piece `k`."""
        start = self.at * self.length
        for name, column in self.pieces[k % len(self.pieces)].items():
            self.out[name][start : start + self.length] = column
        self.at = (self.at + 1) % self.places


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


class Expected:
    """Checks that a batch shows what was inserted: each item's rows, whole and in order, as they lie in `data`."""

    def __init__(self, data: Columns) -> None:
        self.data = data
        self.order = np.argsort(data["reward"], kind="stable")
        self.sorted = data["reward"][self.order]

    def check(self, batch) -> None:
        """Raise `WrongResult` unless every item of a batch of ours is rows of the data, one after the other."""
        self.rows({k: np.asarray(batch[k]) for k in self.data}, len(batch.ids), np.asarray(batch.lengths))

    def rows(self, columns: Columns, items: int, lengths: np.ndarray | None = None) -> None:
        """The same of anybody's: columns [items, steps, ...] in any shape that has as many values."""
        for name, column in self.data.items():
            if name not in columns:
                raise WrongResult(f"column {name!r} is not in the batch")
            width = int(np.prod(column.shape[1:], dtype=np.int64))
            if columns[name].size % (items * width) or not columns[name].size:
                raise WrongResult(f"column {name!r} has {columns[name].size} values, no {items} items of {width}")
        flat = {k: np.asarray(columns[k]).reshape(items, -1, *v.shape[1:]) for k, v in self.data.items()}
        if len({column.shape[1] for column in flat.values()}) != 1:
            raise WrongResult(f"columns differ in length: { {k: v.shape for k, v in flat.items()} }")
        if lengths is None:
            lengths = np.full(items, flat["reward"].shape[1])
        first = flat["reward"][:, 0]
        low = np.searchsorted(self.sorted, first, "left")
        high = np.searchsorted(self.sorted, first, "right")  # rewards of several rows may be equal
        for item in range(items):
            length = int(lengths[item])
            if not any(self._same(flat, item, start, length) for start in self.order[low[item] : high[item]]):
                raise WrongResult(f"item {item} of a batch of {items} is not {length} rows of what was inserted")

    def _same(self, flat: Columns, item: int, start: int, length: int) -> bool:
        return all((flat[k][item, :length] == v[start : start + length]).all() for k, v in self.data.items())


class Frames:
    """W3: frames that say which they are in their first eight bytes; the rest is one of 64 pictures."""

    def __init__(self, count: int = FRAMES, seed: int = 0) -> None:
        self.count = count
        rng = np.random.default_rng(seed)
        self.pictures = rng.integers(0, 256, (64, *FRAME), np.uint8)
        self.actions = rng.integers(0, 18, count)
        self.rewards = rng.random(count, np.float32)

    def piece(self, start: int, length: int) -> Columns:
        """Frames start..start+length with action, reward and done."""
        numbers = np.arange(start, start + length)
        obs = self.pictures[numbers % 64]
        obs.reshape(length, -1)[:, :8] = numbers[:, None].view(np.uint8)
        return {
            "obs": obs,
            "action": self.actions[start : start + length],
            "reward": self.rewards[start : start + length],
            "done": numbers % LENGTH == LENGTH - 1,
        }

    def pieces(self, length: int) -> Iterator[Columns]:
        """All of them, `length` at a time (the last ones fewer)."""
        for start in range(0, self.count, length):
            yield self.piece(start, min(length, self.count - start))

    def check(self, columns: Columns, count: int) -> None:
        """Raise `WrongResult` unless these are `count` frames that were stored, whole and with what belongs to them."""
        obs = np.asarray(columns["obs"]).reshape(-1, *FRAME)
        if len(obs) != count or obs.dtype != np.uint8:
            raise WrongResult(f"expected {count} frames of uint8, got {len(obs)} of {obs.dtype}")
        numbers = np.ascontiguousarray(obs.reshape(count, -1)[:, :8]).view(np.int64)[:, 0]
        if (numbers < 0).any() or (numbers >= self.count).any():
            raise WrongResult(f"a batch of {count} holds a frame that was never stored")
        for item, number in enumerate(numbers.tolist()):
            if not (obs[item].reshape(-1)[8:] == self.pictures[number % 64].reshape(-1)[8:]).all():
                raise WrongResult(f"frame {item} of a batch of {count} is not frame {number} as it was stored")
        for name, expected in (("action", self.actions), ("reward", self.rewards)):
            if name in columns and not (np.asarray(columns[name]).reshape(-1) == expected[numbers]).all():
                raise WrongResult(f"column {name!r} does not belong to the frames of the batch")


def trajectories(kind: str) -> list[Columns]:
    """The trajectories of `ITEMS`, each another one: of transitions, or of 20 frames (only ``obs``)."""
    count = ITEMS[kind]
    if kind == "frames":
        return [{"obs": p["obs"]} for p in Frames(20 * count).pieces(20)]
    length = int(kind)
    data = transitions(length * count)
    return [piece(data, start, length) for start in range(0, length * count, length)]


def check_items(kind: str, columns: Columns, count: int) -> None:
    """Raise `WrongResult` unless the batch is `count` of these trajectories, whole and in order."""
    if kind == "frames":
        everything = Frames(20 * ITEMS[kind])
        everything.check(columns, 20 * count)
        obs = np.asarray(columns["obs"]).reshape(count, 20, -1)
        numbers = np.ascontiguousarray(obs[:, :, :8]).view(np.int64)[..., 0]
        if (np.diff(numbers, axis=1) != 1).any() or (numbers[:, 0] % 20).any():
            raise WrongResult("an item is not 20 frames in order")
        return
    length = int(kind)
    shape = np.asarray(columns["reward"]).shape
    if shape[:2] != (count, length):
        raise WrongResult(f"expected {count} items of {length} steps, got {shape}")
    Expected(transitions(length * ITEMS[kind])).rows(columns, count)

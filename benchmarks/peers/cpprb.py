"""cpprb: transitions and frames in process."""

from __future__ import annotations

import functools
from importlib.metadata import version as installed

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

from benchmarks.measure import Candidate
from benchmarks.workloads import FRAME, FRAMES, LENGTH, STEPS, Expected, Frames, Updates, piece, transitions

NAME = "cpprb"
ENV = {"obs": {"shape": 17}, "action": {"shape": 6}, "reward": {}, "done": {"dtype": np.bool_}}
FRAME_ENV = {
    "obs": {"shape": FRAME, "dtype": np.uint8},
    "action": {"dtype": np.int64},
    "reward": {},
    "done": {"dtype": np.bool_},
}


def version() -> str:
    """What it is."""
    return f"cpprb {installed('cpprb')}, NumPy {np.__version__}"


@functools.cache
def data():
    return transitions(STEPS)


@functools.cache
def buffer(prioritized: bool) -> ReplayBuffer:
    made = PrioritizedReplayBuffer(STEPS, ENV, alpha=0.6) if prioritized else ReplayBuffer(STEPS, ENV)
    rng = np.random.default_rng(1)
    for start in range(0, STEPS, LENGTH):
        more = {"priorities": rng.random(LENGTH) + 0.01} if prioritized else {}
        made.add(**piece(data(), start, LENGTH), **more)
    return made


def sample(prioritized: bool, size: int) -> list[Candidate]:
    made = buffer(prioritized)
    take = (lambda k=0: made.sample(size, 0.4)) if prioritized else (lambda k=0: made.sample(size))
    return [Candidate(NAME, take, check=lambda: Expected(data()).rows(take(), size))]


def update(size: int) -> list[Candidate]:
    made, given = buffer(True), Updates(size, STEPS)
    ids = [items.astype(np.uint64) for items in given.items]
    given.values = given.values.astype(np.float32)
    return [Candidate(NAME, lambda k: made.update_priorities(ids[k % given.sets], given.value(k)))]


def insert(rows: int) -> list[Candidate]:
    made, used = ReplayBuffer(200_000, ENV), piece(data(), 0, 200_000)
    pieces = [piece(used, start, rows) for start in range(0, 200_000, rows)] if rows > 1 else singles(used)
    count = len(pieces)

    def check() -> None:
        Expected(used).rows(made.sample(256), 256)

    if rows > 1:
        return [Candidate(NAME, lambda k: made.add(**pieces[k % count]), check=check)]
    return [Candidate(NAME, lambda k: [made.add(**step) for step in pieces], per_call=count, check=check)]


def singles(used) -> list[dict]:
    return [{name: column[k] for name, column in used.items()} for k in range(1000)]


@functools.cache
def frames() -> tuple[Frames, ReplayBuffer]:
    stored, made = Frames(), ReplayBuffer(FRAMES, FRAME_ENV)
    for part in stored.pieces(500):
        made.add(**part)
    return stored, made


def sample_frames() -> list[Candidate]:
    stored, made = frames()
    return [Candidate(NAME, lambda k: made.sample(256), check=lambda: stored.check(made.sample(256), 256))]


def insert_frames() -> list[Candidate]:
    stored, made = frames()
    parts = [stored.piece(256 * k, 256) for k in range(8)]

    def check() -> None:
        for part in parts:
            made.add(**part)
        stored.check(made.sample(256), 256)

    return [Candidate(NAME, lambda k: made.add(**parts[k % 8]), check=check)]


CASES = {
    "w1-uniform-256": lambda: sample(False, 256),
    "w1-uniform-4096": lambda: sample(False, 4096),
    "w1-prioritized-256": lambda: sample(True, 256),
    "w1-prioritized-4096": lambda: sample(True, 4096),
    "w1-update-256": lambda: update(256),
    "w1-update-4096": lambda: update(4096),
    "w1-insert-1000": lambda: insert(1000),
    "w1-insert-1": lambda: insert(1),
    "w3-uniform": sample_frames,
    "w3-insert": insert_frames,
}

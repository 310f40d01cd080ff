"""Tianshou: transitions in process. Its rows carry the next observations too."""

from __future__ import annotations

import functools
from importlib.metadata import version as installed

import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

from benchmarks.measure import Candidate
from benchmarks.workloads import STEPS, Expected, Updates, piece, transitions

NAME = "Tianshou"


def version() -> str:
    """What it is."""
    return f"Tianshou {installed('tianshou')}, NumPy {np.__version__}"


def columns(batch) -> dict[str, np.ndarray]:
    """A batch by our names."""
    return {"obs": batch.obs, "action": batch.act, "reward": batch.rew, "done": batch.terminated}


def steps(data: dict[str, np.ndarray], count: int) -> list[Batch]:
    return [
        Batch(
            obs=data["obs"][k], act=data["action"][k], rew=data["reward"][k], terminated=data["done"][k],
            truncated=False, obs_next=data["obs"][k], info={},
        )
        for k in range(count)
    ]  # fmt: skip


@functools.cache
def buffer(prioritized: bool) -> tuple[dict[str, np.ndarray], ReplayBuffer]:
    """Full: the first rows through `add`, the others straight into its arrays, as a million calls take minutes."""
    data = transitions(STEPS)
    made = PrioritizedReplayBuffer(STEPS, alpha=0.6, beta=0.4) if prioritized else ReplayBuffer(STEPS)
    for step in steps(data, 10):
        made.add(step)
    stored = made._meta
    for name, column in (("obs", "obs"), ("obs_next", "obs"), ("act", "action"), ("rew", "reward")):
        stored[name][:] = data[column]
    stored["terminated"][:] = data["done"]
    made._size, made._insertion_idx = STEPS, 0
    if prioritized:
        made.init_weight(np.arange(STEPS))
        made.update_weight(np.arange(STEPS), np.random.default_rng(1).random(STEPS) + 0.01)
    return data, made


def sample(prioritized: bool, size: int) -> list[Candidate]:
    data, made = buffer(prioritized)

    def check() -> None:
        Expected({k: v.astype(made._meta.rew.dtype) if k == "reward" else v for k, v in data.items()}).rows(
            columns(made.sample(size)[0]), size
        )

    return [Candidate(NAME, lambda k: made.sample(size), check=check)]


def update(size: int) -> list[Candidate]:
    _, made = buffer(True)
    given = Updates(size, STEPS)
    return [Candidate(NAME, lambda k: made.update_weight(given.items[k % given.sets], given.value(k)))]


def insert() -> list[Candidate]:
    used = piece(transitions(STEPS), 0, 1000)
    made, given = ReplayBuffer(1000), steps(used, 1000)

    def check() -> None:
        Expected(used).rows(columns(made.sample(256)[0]), 256)

    return [Candidate(NAME, lambda k: [made.add(step) for step in given], per_call=1000, check=check)]


CASES = {
    "w1-uniform-256": lambda: sample(False, 256),
    "w1-uniform-4096": lambda: sample(False, 4096),
    "w1-prioritized-256": lambda: sample(True, 256),
    "w1-prioritized-4096": lambda: sample(True, 4096),
    "w1-update-256": lambda: update(256),
    "w1-update-4096": lambda: update(4096),
    "w1-insert-1": insert,
}

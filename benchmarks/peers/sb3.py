"""Stable-Baselines3: transitions and frames in process. Its rows carry the next observations too."""

from __future__ import annotations

import functools

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from benchmarks.measure import Candidate
from benchmarks.workloads import FRAME, FRAMES, STEPS, Expected, Frames, piece, transitions

NAME = "Stable-Baselines3"
OBS, ACTION = spaces.Box(-10, 10, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)
ENVS = 500
FILLED = 200_000


def version() -> str:
    """What it is."""
    return f"Stable-Baselines3 {stable_baselines3.__version__}, torch {torch.__version__}"


def columns(samples) -> dict[str, np.ndarray]:
    """A batch by our names."""
    return {
        "obs": samples.observations.numpy(),
        "action": samples.actions.numpy(),
        "reward": samples.rewards.numpy(),
        "done": samples.dones.numpy().astype(bool),
    }


def add(made: ReplayBuffer, part: dict[str, np.ndarray], infos: list[dict]) -> None:
    made.add(part["obs"], part["obs"], part["action"], part["reward"], part["done"], infos)


@functools.cache
def buffer() -> tuple[dict[str, np.ndarray], ReplayBuffer]:
    data, envs = transitions(STEPS), 1000
    made, infos = ReplayBuffer(STEPS, OBS, ACTION, device="cpu", n_envs=envs), [{} for _ in range(envs)]
    for start in range(0, STEPS, envs):
        add(made, piece(data, start, envs), infos)
    return data, made


def sample(size: int) -> list[Candidate]:
    data, made = buffer()
    return [
        Candidate(
            NAME, lambda k: made.sample(size), check=lambda: Expected(data).rows(columns(made.sample(size)), size)
        )
    ]


def insert() -> list[Candidate]:
    data = transitions(FILLED)
    made, infos = ReplayBuffer(FILLED, OBS, ACTION, device="cpu", n_envs=1), [{}]
    steps = [piece(data, k, 1) for k in range(1000)]

    def call(k: int) -> None:
        for step in steps:
            made.add(step["obs"], step["obs"], step["action"], step["reward"], step["done"], infos)

    check = lambda: Expected(data).rows(columns(made.sample(256)), 256)
    return [Candidate(NAME, call, per_call=1000, check=check)]


@functools.cache
def frames() -> tuple[Frames, ReplayBuffer]:
    stored = Frames()
    made = ReplayBuffer(
        FRAMES, spaces.Box(0, 255, FRAME, np.uint8), spaces.Discrete(18), device="cpu", n_envs=ENVS,
        optimize_memory_usage=True, handle_timeout_termination=False,
    )  # fmt: skip
    infos = [{} for _ in range(ENVS)]
    for part in stored.pieces(ENVS):
        add(made, {**part, "action": part["action"][:, None]}, infos)
    return stored, made


def sample_frames() -> list[Candidate]:
    stored, made = frames()
    return [Candidate(NAME, lambda k: made.sample(256), check=lambda: stored.check(columns(made.sample(256)), 256))]


CASES = {
    "w1-uniform-256": lambda: sample(256),
    "w1-uniform-4096": lambda: sample(4096),
    "w1-insert-1": insert,
    "w3-uniform": sample_frames,
}

"""One training run: a fresh server, actors that insert, and this process as the learner that samples."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium
import numpy as np
import torch

import gear
from examples.demo.actor import play
from examples.demo.learner import Learner
from examples.demo.policy import Policy
from examples.demo.processes import Actors, server

EPSILONS = [0.01, 0.05, 0.15]
"""Least exploration of each actor: one nearly greedy, one curious, one between."""

BATCH = 128
PUBLISH_EVERY = 100
EXPLORATION = 0.15
"""Share of the updates over which exploration falls from 1 to the least."""

TABLE = gear.Table(
    "cartpole",
    columns=[
        gear.Column("obs", (4,), "float32"),
        gear.Column("action", (), "int64"),
        gear.Column("reward", (), "float32"),
        gear.Column("terminated", (), "bool"),
    ],
    capacity=gear.Steps(100_000),
    item=gear.Window(2, edge="tail"),
    sampler=gear.Prioritized(alpha=0.6),
    limiter=gear.SampleToInsertRatio(samples_per_insert=16.0, min_size=1000, error_buffer=16_000.0),
    mean_length=128,
)


@dataclass
class Run:
    """What happened: `episodes` as (seconds, return), `rates` as (seconds, steps inserted/s, rows sampled/s)."""

    seed: int
    episodes: list[tuple[float, float]] = field(default_factory=list)
    rates: list[tuple[float, float, float]] = field(default_factory=list)
    updates: int = 0
    seconds: float = 0.0
    greedy: float = 0.0

    def first(self, count: int = 50) -> float:
        """Mean return of the first episodes."""
        return float(np.mean([r for _, r in self.episodes[:count]]))

    def last(self, count: int = 50) -> float:
        """Mean return of the last episodes, exploration included."""
        return float(np.mean([r for _, r in self.episodes[-count:]]))


Report = Callable[[int, float, float, float], None]
"""Called with updates done, steps inserted/s, rows sampled/s and the mean return of the last 50 episodes."""


def train(seed: int, updates: int, seconds: float, report: Report) -> Run:
    """Train until `updates` gradient steps are done or `seconds` are over.

    Everything that is started ends with this function, also when it raises.
    """
    torch.set_num_threads(1)
    run, learner = Run(seed), Learner(seed, updates)
    with tempfile.TemporaryDirectory(prefix="gear-demo-") as folder, server() as address:
        weights = Path(folder) / "policy.npz"
        learner.policy(1.0).save(weights)
        with gear.connect(address, device="cpu") as client:
            client.create_table(TABLE)
            actors = Actors(address, weights, EPSILONS, seed)
            try:
                _learn(run, learner, client, actors, weights, updates, seconds, report)
            finally:
                actors.close()
    run.greedy = evaluate(learner.policy(0.0), seed)
    return run


def _learn(
    run: Run, learner: Learner, client: gear.Client, actors: Actors, weights: Path,
    updates: int, seconds: float, report: Report,
) -> None:  # fmt: skip
    run.episodes = actors.episodes
    start = seen = time.monotonic()
    before = (0, 0)  # steps inserted and rows sampled when last looked
    with client.loader(BATCH, prefetch=2, timeout=30.0) as batches:
        for batch in batches:
            beta = 0.4 + 0.6 * run.updates / updates
            priorities = learner.update(
                batch["obs"], batch["action"], batch["reward"], batch["terminated"], batch.lengths,
                batch.importance_weights(beta),
            )  # fmt: skip
            client.update_priorities(batch.ids, priorities)
            run.updates += 1
            if run.updates % PUBLISH_EVERY == 0:
                learner.policy(max(0.0, 1.0 - run.updates / (EXPLORATION * updates))).save(weights)
            now = time.monotonic()
            over = run.updates >= updates or now - start > seconds
            if now - seen >= 1.0 or (over and now > seen):
                actors.check()
                counts = actors.steps, BATCH * run.updates
                rates = [(c - b) / (now - seen) for c, b in zip(counts, before, strict=True)]
                seen, before, run.seconds = now, counts, now - start
                run.rates.append((run.seconds, rates[0], rates[1]))
                report(run.updates, rates[0], rates[1], run.last() if run.episodes else 0.0)
            if over:
                return


def evaluate(policy: Policy, seed: int, episodes: int = 20) -> float:
    """Mean return without exploration."""
    env, rng = gymnasium.make("CartPole-v1", disable_env_checker=True), np.random.default_rng(seed + 10**6)
    returns = [float(play(env, policy, rng)[0]["reward"].sum()) for _ in range(episodes)]
    env.close()
    return float(np.mean(returns))

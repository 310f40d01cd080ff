"""Double DQN on CartPole in one process, with prioritized replay (Schaul et al., 2016) and n-step returns.

``python -m examples.dqn_prioritized --seeds 3`` prints a table and saves a plot.

The table holds each observation once. The n-step return, the discount of what follows and the observation n steps later
are views, made while the batch is gathered: right where an episode terminates (the discount is 0) and where the time
limit cuts it (it bootstraps from the final observation).
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

import gear
from examples.curves import save, smooth
from examples.output import picture

N, GAMMA = 3, 0.99
BATCH, LEARN_FROM, LEARN_EVERY = 64, 1000, 2

TABLE = gear.Table(
    "transitions",
    columns=[
        gear.Column("obs", (4,), "float32"),
        gear.Column("action", (), "int64"),
        gear.Column("reward", (), "float32"),
    ],
    capacity=gear.Steps(50_000),
    item=gear.Step(N),  # drawn once n steps follow it, or its episode has ended
    sampler=gear.Prioritized(alpha=0.6),
    mean_length=100,
)
QUERY = gear.Query(
    BATCH, views=["obs", "action", gear.n_step("reward", N, GAMMA), gear.View("obs", name="following", shift=N)]
)


class Learner:
    """A Q-network, its slowly following target and their optimizer."""

    def __init__(self, lr: float = 5e-4, width: int = 64, tau: float = 0.01) -> None:
        layers = (nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
        self.net = nn.Sequential(*layers)
        self.target, self.tau = copy.deepcopy(self.net).requires_grad_(False), tau
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr)

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> int:
        """The best action at one observation, float32[4]."""
        return int(self.net(torch.from_numpy(obs)).argmax())

    def update(self, batch: gear.Batch) -> Tensor:
        """One gradient step; the absolute errors, float32[B]."""
        values = self.net(batch["obs"]).gather(1, batch["action"][:, None]).squeeze(1)
        with torch.no_grad():
            best = self.net(batch["following"]).argmax(1, keepdim=True)
            ahead = self.target(batch["following"]).gather(1, best).squeeze(1)
            wanted = batch["reward/return"] + batch["reward/discount"] * ahead
        losses = nn.functional.huber_loss(values, wanted, reduction="none")
        self.optimizer.zero_grad()
        (losses * batch.weights).mean().backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, self.tau)
            return (values - wanted).abs()


@dataclass
class Result:
    """The step at which each episode ended and its return; the mean return without exploration at the end."""

    seed: int
    ends: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    greedy: float = 0.0

    def first(self) -> float:
        """Mean return of the first 50 episodes."""
        return float(np.mean(self.returns[:50]))

    def last(self) -> float:
        """Mean return of the last 50 episodes, exploration included."""
        return float(np.mean(self.returns[-50:]))


def run(seed: int, steps: int = 30_000) -> Result:
    """Learn for so many steps of the environment."""
    torch.manual_seed(seed)
    rng, learner, result = np.random.default_rng(seed), Learner(), Result(seed)
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    obs, _ = env.reset(seed=seed)
    began = 0
    with gear.embedded([TABLE], device="cpu") as client, client.writer() as writer:
        for step in range(steps):
            epsilon = max(0.02, 1.0 - step / (0.2 * steps))
            action = int(rng.integers(2)) if rng.random() < epsilon else learner.act(obs)
            following, reward, terminated, truncated, _ = env.step(action)
            writer.append({"obs": obs, "action": action, "reward": reward})
            obs = following
            if terminated or truncated:
                writer.end(terminated, final={"obs": obs})
                obs, _ = env.reset()
                result.ends.append(step + 1)
                result.returns.append(float(step + 1 - began))  # every step is rewarded with 1
                began = step + 1
            if step >= LEARN_FROM and step % LEARN_EVERY == 0:
                batch = client.sample(QUERY, beta=0.4 + 0.6 * step / steps)
                errors = learner.update(batch)
                client.update_priorities(batch.ids, errors + 1e-3)
    result.greedy = float(np.mean([play(env, learner, 10**6 + seed * 100 + i) for i in range(10)]))
    env.close()
    return result


def play(env: gymnasium.Env, learner: Learner, seed: int) -> float:
    """The return of one episode without exploration."""
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(learner.act(obs))
        total, over = total + float(reward), terminated or truncated
    return total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.dqn_prioritized")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30_000, help="steps of the environment")
    parser.add_argument("--output", type=picture, default=Path("dqn_prioritized.png"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    curves = {}
    for seed in range(arguments.seeds):
        r = run(seed, arguments.steps)
        curves[f"seed {seed}"] = (np.array(r.ends), smooth(r.returns, 50))
        print(
            f"seed {seed}: mean return of the first 50 episodes {r.first():.0f}, of the last 50 {r.last():.0f}, "
            f"without exploration {r.greedy:.0f}",
            flush=True,
        )
    title = f"CartPole-v1: double DQN, prioritized replay, {N}-step returns"
    save(arguments.output, title, "steps of the environment", "return, mean of 50 episodes", curves)
    print(f"plot saved to {arguments.output}")


if __name__ == "__main__":
    main()

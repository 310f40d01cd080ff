"""Decision Transformer (Chen et al., 2021) on CartPole, offline: what to do next, given the return that is wanted.

``python -m examples.decision_transformer --seeds 3`` prints a table and saves a plot.

The table holds observations, actions and rewards of episodes by policies from good to bad, and nothing else. A batch
holds windows that end at any step of an episode, padded at the head; returns-to-go, timesteps and the mask are views,
made while the batch is gathered.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

import gear
from examples.output import picture
from examples.transformer import Transformer, causal

CONTEXT = 10
LONGEST = 500
"""Steps of an episode at most, and so the largest return: CartPole rewards each step with 1."""

TABLE = gear.Table(
    "cartpole",
    columns=[
        gear.Column("obs", (4,), "float32"),
        gear.Column("action", (), "int64"),
        gear.Column("reward", (), "float32"),
    ],
    capacity=gear.Steps(100_000),
    item=gear.Window(CONTEXT, edge="head"),
    mean_length=100,
)
QUERY = gear.Query(64, views=["obs", "action", gear.return_to_go("reward", name="wanted"), gear.timestep(name="time")])


def collect(client: gear.Client, episodes: int, seed: int) -> list[float]:
    """Insert episodes, each by a policy of another quality; their returns.

    A policy pushes towards where the pole falls, looking at its angle and, by a random share, at the speed of the angle
    (without it the pole swings up and falls), and acts at random by a random share of its steps.
    """
    env, rng = gymnasium.make("CartPole-v1", disable_env_checker=True), np.random.default_rng(seed)
    returns = []
    for _ in range(episodes):
        foresight, noise, rows, over = 0.5 * rng.random(), rng.uniform(0.2, 1.0), [], False
        obs, _ = env.reset(seed=int(rng.integers(2**31)))
        while not over:
            action = int(obs[2] + foresight * obs[3] > 0)
            if rng.random() < noise:
                action = int(rng.integers(2))
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward))
            obs, over = following, terminated or truncated
        seen, actions, rewards = zip(*rows, strict=True)
        episode = {"obs": np.array(seen), "action": np.array(actions), "reward": np.array(rewards, np.float32)}
        client.insert(episode, terminated=terminated, final={"obs": obs})
        returns.append(float(sum(rewards)))
    env.close()
    return returns


class DecisionTransformer(nn.Module):
    """Reads (return-to-go, observation, action) of each step and predicts the action at the observation."""

    def __init__(self, width: int = 64, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.wanted, self.obs = nn.Linear(1, width), nn.Linear(4, width)
        self.action, self.time = nn.Embedding(2, width), nn.Embedding(LONGEST, width)
        self.body, self.choose = Transformer(width, heads, layers), nn.Linear(width, 2)

    def forward(self, wanted: Tensor, obs: Tensor, action: Tensor, time: Tensor, mask: Tensor) -> Tensor:
        """Scores of the actions, float32[B, L, 2], from [B, L, ...]; `mask` is false where a step is padding."""
        batch, length = mask.shape
        parts = (self.wanted(wanted[..., None] / LONGEST), self.obs(obs), self.action(action))
        tokens = (torch.stack(parts, 2) + self.time(time)[:, :, None]).flatten(1, 2)  # float32[B, 3 L, W]
        there = mask.repeat_interleave(3, 1)
        itself = torch.eye(3 * length, dtype=torch.bool)  # padding sees itself, so that no row of the mask is empty
        features = self.body(tokens, causal(3 * length) & there[:, None] | itself)
        return self.choose(features.view(batch, length, 3, -1)[:, :, 1])


def train(client: gear.Client, updates: int) -> tuple[DecisionTransformer, list[float]]:
    """The model, and its loss at each update."""
    model = DecisionTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-3)
    cooling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, updates)
    losses = []
    with client.loader(QUERY) as batches:
        for batch, _ in zip(batches, range(updates), strict=False):
            scores = model(batch["wanted"], batch["obs"], batch["action"], batch["time"], batch.mask)
            loss = nn.functional.cross_entropy(scores[batch.mask], batch["action"][batch.mask])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cooling.step()
            losses.append(loss.item())
    return model, losses


@torch.no_grad()
def play(model: DecisionTransformer, target: float, episodes: int, seed: int) -> np.ndarray:
    """Returns of episodes played at once, each asking for a return of `target`; float64[episodes]."""
    envs = [gymnasium.make("CartPole-v1", disable_env_checker=True) for _ in range(episodes)]
    alive, returns = np.ones(episodes, bool), np.zeros(episodes)
    wanted, action = torch.zeros(episodes, LONGEST), torch.zeros(episodes, LONGEST, dtype=torch.int64)
    obs = torch.zeros(episodes, LONGEST, 4)
    now = np.stack([env.reset(seed=10**6 * (seed + 1) + i)[0] for i, env in enumerate(envs)])
    for t in range(LONGEST):
        obs[:, t], wanted[:, t] = torch.from_numpy(now), torch.from_numpy(target - returns)
        last = slice(max(0, t + 1 - CONTEXT), t + 1)
        time = torch.arange(last.start, last.stop).expand(episodes, -1)
        scores = model(wanted[:, last], obs[:, last], action[:, last], time, torch.ones_like(time, dtype=torch.bool))
        action[:, t] = scores[:, -1].argmax(1)
        for i in np.flatnonzero(alive):
            now[i], reward, terminated, truncated, _ = envs[i].step(int(action[i, t]))
            returns[i] += float(reward)
            alive[i] = not (terminated or truncated)
        if not alive.any():
            break
    for env in envs:
        env.close()
    return returns


@dataclass
class Result:
    """Returns of the data's episodes, the loss at each update, and mean returns by the return asked for."""

    seed: int
    data: list[float]
    losses: list[float]
    reached: dict[int, float]


TARGETS = (25, 100, 200, LONGEST)
"""Returns that the trained model is asked for."""


def run(
    seed: int, episodes: int = 400, updates: int = 1500, trials: int = 20, targets: tuple[int, ...] = TARGETS
) -> Result:
    """Collect, train and evaluate once."""
    torch.manual_seed(seed)
    with gear.embedded([TABLE], device="cpu") as client:
        data = collect(client, episodes, seed)
        model, losses = train(client, updates)
    return Result(seed, data, losses, {t: float(play(model, t, trials, seed).mean()) for t in targets})


def plot(results: list[Result], path: Path) -> None:
    """The return reached against the return asked for, beside the returns of the data."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    left.hist([r.data for r in results], bins=20, label=[f"seed {r.seed}" for r in results])
    left.set(xlabel="return", ylabel="episodes", title="data")
    for r in results:
        (line,) = right.plot(list(r.reached), list(r.reached.values()), marker="o", label=f"seed {r.seed}")
        right.axhline(float(np.mean(r.data)), color=line.get_color(), linestyle=":")
    right.set(
        xlabel="return asked for", ylabel="mean return reached", title="Decision Transformer (dotted: data's mean)"
    )
    for axes in (left, right):
        axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.decision_transformer")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=400, help="episodes of data")
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--output", type=picture, default=Path("decision_transformer.png"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for seed in range(arguments.seeds):
        results.append(r := run(seed, arguments.episodes, arguments.updates))
        reached = ", ".join(f"{mean:.0f} (asked for {target})" for target, mean in r.reached.items())
        print(f"seed {seed}: mean return of the data {np.mean(r.data):.0f}; reached {reached}", flush=True)
    plot(results, arguments.output)
    print(f"plot saved to {arguments.output}")


if __name__ == "__main__":
    main()

"""GRPO (Shao et al., 2024, arXiv:2402.03300) on sums of two digits: actors answer, a grader compares, a trainer learns.

``python -m examples.grpo_toy --seeds 3`` prints a table and saves a plot.

The model reads ``3+9=`` and answers token by token; it begins by imitating sums of which half are wrong. Actors
answer each prompt `GROUP` times. They put the tokens into one table and the verdict on each answer, in the group of
its prompt, into another. The grader draws complete groups and fills the advantages in, late; the trainer draws what has
one, packed, and publishes its weights. How far actors run ahead of it is the staleness budget's decision.

Actors and grader are threads over tables of this process; as processes they would call ``gear.connect`` instead.
"""

from __future__ import annotations

import argparse
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import gear
from examples.curves import save, smooth
from examples.output import picture
from examples.sums import ANSWER, END, PROMPT, Model, answer, ask, imitate
from examples.transformer import causal

GROUP, BATCH, PROMPTS = 16, 128, 2

ROLLOUTS = gear.Table(
    "rollouts",
    columns=[
        gear.Column("token", (), "int64"),
        gear.Column("logprob", (), "float32"),  # of the policy that wrote it
        gear.Column("written", (), "bool"),  # by the policy; the prompt is not
        gear.Column("version", (), "int64", per="trajectory"),
        gear.Column("reward", (), "float32", per="trajectory"),
        gear.Column("advantage", (), "float32", per="trajectory", late=True),
    ],
    capacity=gear.Trajectories(16 * BATCH),
    item=gear.Whole(),
    mean_length=PROMPT + ANSWER,
    sampler=gear.Fresh(),
    distinct=True,  # a batch waits until it is full
    max_times_sampled=1,
    requirements=[("advantage",)],
    limiter=gear.StalenessBudget(BATCH, eta=1),  # 0 could fill up with parts of groups, which get no advantage
    max_staleness=2,
)
VERDICTS = gear.Table(
    "verdicts",
    columns=[gear.Column("rollout", (), "int64"), gear.Column("reward", (), "float32", per="trajectory")],
    capacity=gear.Trajectories(16 * BATCH),
    item=gear.Whole(),
    mean_length=1,
    sampler=gear.Groups(GROUP),
)
QUERY = gear.Query(
    BATCH,
    "rollouts",
    views=["token", "logprob", "written", "version", "reward", "advantage", gear.timestep()],
    require=("advantage",),
    layout="packed",
)


def act(client: gear.Client, seed: int) -> None:
    """Answer prompts with the latest weights until the client is closed."""
    rng, dice, model = np.random.default_rng(seed), torch.Generator().manual_seed(seed), Model()
    version = asked = 0
    try:
        while True:
            try:
                latest = client.fetch("policy", newer_than=version, timeout=0.0 if version else None)
                version = latest.version
                model.load_state_dict(latest.arrays)
            except gear.DeadlineExceeded:
                pass  # no newer one yet
            digits = rng.integers(10, size=(PROMPTS, 2)).repeat(GROUP, 0)
            for (a, b), token, logprob, length in zip(digits, *answer(model, ask(digits), dice), strict=True):
                right = token[PROMPT:length].tolist() == [*map(int, str(a + b)), END]
                reward, row = np.float32(right), slice(0, length)
                rollout = client.open("rollouts", columns={"version": version, "reward": reward}, version=version)
                steps = {"token": token[row], "logprob": logprob[row], "written": np.arange(length) >= PROMPT}
                client.append(rollout, steps, at=0)
                client.seal(rollout, terminated=True)  # waits while the budget is spent
                verdict = {"rollout": np.array([rollout]), "reward": reward}
                client.insert(verdict, "verdicts", group=f"{seed}/{asked // GROUP}")
                asked += 1
    except gear.Closed:
        return


def grade(client: gear.Client) -> None:
    """Fill in the advantages of each complete group until the client is closed."""
    try:
        while True:
            group = client.sample(1, "verdicts")
            reward = group["reward"]
            advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
            client.fill(group["rollout"].flatten(), {"advantage": advantage})
    except gear.Closed:
        return


def improve(model: Model, optimizer: torch.optim.Optimizer, batch: gear.Batch, clip: float = 0.2) -> None:
    """One step up the clipped objective, over the tokens that the policy wrote."""
    lengths = batch.cu_seqlens.diff()
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)  # int64[N]: whose token each is
    seen = causal(len(owner)) & (owner[:, None] == owner)
    scores = model(batch["token"][None, :-1], batch["timestep"][None, :-1], seen[None, :-1, :-1])[0]
    chosen = scores.gather(1, batch["token"][1:, None]).squeeze(1)
    ratio = (chosen - batch["logprob"][1:]).exp()
    advantage = batch["advantage"][owner][1:]
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    optimizer.zero_grad()
    (-gain[batch["written"][1:]].mean()).backward()
    optimizer.step()


@dataclass
class Result:
    """Mean reward of each batch, and how many versions behind its answers were."""

    seed: int
    rewards: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


def run(seed: int, updates: int = 300, imitated: int = 800, actors: int = 2) -> Result:
    """Train once; everything that was started ends with it."""
    torch.manual_seed(seed)
    model, result = Model(), Result(seed)
    imitate(model, np.random.default_rng(seed), imitated)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    client = gear.embedded([ROLLOUTS, VERDICTS], device="cpu")
    threads = [threading.Thread(target=act, args=(client, 1000 * seed + i)) for i in range(actors)]
    threads.append(threading.Thread(target=grade, args=(client,)))
    for thread in threads:
        thread.start()
    try:
        for version in range(1, updates + 1):
            client.publish("policy", model.state_dict(), version=version)
            client.set_version("rollouts", version)
            batch = client.sample(QUERY, timeout=300.0)  # a first run compiles kernels
            improve(model, optimizer, batch)
            result.rewards.append(batch["reward"].mean().item())
            result.lags.append(version - batch["version"].double().mean().item())
    finally:
        client.close()
        for thread in threads:
            thread.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.grpo_toy")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--output", type=picture, default=Path("grpo_toy.png"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    curves = {}
    for seed in range(arguments.seeds):
        r = run(seed, arguments.updates)
        curves[f"seed {seed}"] = (np.arange(len(r.rewards)), smooth(r.rewards, 10))
        first, last = np.mean(r.rewards[:10]), np.mean(r.rewards[-50:])
        print(
            f"seed {seed}: mean reward of the first 10 batches {first:.2f}, of the last 50 {last:.2f}; "
            f"answers were {np.mean(r.lags):.1f} versions old, at most {max(r.lags):.1f} in the mean of a batch",
            flush=True,
        )
    save(arguments.output, "Sums of two digits, GRPO", "update", "reward, mean of 10 batches", curves)
    print(f"plot saved to {arguments.output}")


if __name__ == "__main__":
    main()

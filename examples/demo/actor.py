"""One actor: plays CartPole with the policy published last and inserts every episode.

It imports neither torch nor numba. Each episode is reported as a line ``RETURN`` on stdout, for the
progress bar. The table's limiter decides how fast it may go: an insert waits until the learner has sampled
enough. It ends on SIGTERM, or when the server or the reader of its lines is gone.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np

import gear
from examples.demo.policy import Policy


def play(env: gymnasium.Env, policy: Policy, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], bool]:
    """One episode: its columns, each of T rows, and whether it terminated (else the time limit cut it)."""
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    rows = []
    while True:
        action = policy.act(obs, rng)
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, terminated))
        if terminated or truncated:
            break
        obs = following
    seen, actions, rewards, ends = zip(*rows, strict=True)
    columns = {
        "obs": np.array(seen, np.float32),
        "action": np.array(actions, np.int64),
        "reward": np.array(rewards, np.float32),
        "terminated": np.array(ends, bool),
    }
    return columns, bool(terminated)


def act(client: gear.Client, weights: Path, epsilon: float, seed: int, stopped: Callable[[], bool]) -> None:
    """Play and insert until stopped; `epsilon` is the least exploration of this actor."""
    env, rng = gymnasium.make("CartPole-v1", disable_env_checker=True), np.random.default_rng(seed)
    while not stopped():
        policy = Policy.load(weights)
        columns, terminated = play(env, Policy(policy.layers, max(policy.epsilon, epsilon)), rng)
        while not stopped():
            try:
                client.insert(columns, terminated=terminated, timeout=0.5)
            except gear.DeadlineExceeded:
                continue  # nothing was inserted: the limiter waits for samples
            print(float(columns["reward"].sum()), flush=True)
            break
    env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    with gear.connect(arguments.address) as client:
        act(client, arguments.weights, arguments.epsilon, arguments.seed, lambda: bool(stop))


if __name__ == "__main__":
    main()

"""The DQN example, shortened, and what it takes from a batch."""

from __future__ import annotations

import numpy as np
import torch

import gear
from examples import dqn_prioritized as example


def test_a_short_run_returns_its_episodes_and_saves_a_plot(tmp_path, monkeypatch, capsys):
    torch.set_num_threads(1)
    monkeypatch.setattr("sys.argv", ["dqn", "--steps", "1600", "--output", str(tmp_path / "plot.png")])
    example.main()
    assert "mean return of the first 50 episodes" in capsys.readouterr().out
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_learning_what_a_terminal_step_is_worth():
    """One episode of one rewarded step, then it terminates: its value is its reward, whatever follows elsewhere."""
    torch.manual_seed(0)
    learner = example.Learner(lr=1e-2)
    with gear.embedded([example.TABLE], device="cpu") as client:
        for _ in range(4):
            step = {"obs": np.ones((1, 4), np.float32), "action": np.array([1]), "reward": np.ones(1, np.float32)}
            client.insert(step, terminated=True, final={"obs": np.full(4, 100, np.float32)})
        for _ in range(150):
            batch = client.sample(example.QUERY, beta=1.0)
            client.update_priorities(batch.ids, learner.update(batch) + 1e-3)
    assert abs(learner.net(torch.ones(4))[1].item() - 1.0) < 0.05

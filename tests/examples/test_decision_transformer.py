"""The Decision Transformer example, shortened, and what its batches are made of."""

from __future__ import annotations

import numpy as np
import torch

import gear
from examples import decision_transformer as example


def test_a_short_run_learns_and_saves_a_plot(tmp_path):
    torch.set_num_threads(1)
    result = example.run(seed=0, episodes=60, updates=100, trials=4, targets=(500,))
    assert len(result.data) == 60
    assert np.mean(result.losses[-20:]) < np.mean(result.losses[:20])
    assert result.reached[500] > 50  # at random it is 22
    example.plot([result], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_padding_at_the_head_does_not_change_a_prediction():
    torch.manual_seed(0)
    model = example.DecisionTransformer()
    wanted, obs = torch.rand(1, 6), torch.rand(1, 6, 4)
    action, time = torch.randint(2, (1, 6)), torch.arange(6)[None]
    mask = torch.ones(1, 6, dtype=torch.bool)
    with torch.no_grad():
        alone = model(wanted[:, 3:], obs[:, 3:], action[:, 3:], time[:, 3:], mask[:, 3:])
        mask[:, :3] = False
        padded = model(wanted, obs, action, time, mask)
    assert torch.allclose(alone, padded[:, 3:], atol=1e-5)


def test_a_window_holds_what_is_still_to_come_of_the_return():
    with gear.embedded([example.TABLE], device="cpu") as client:
        returns = example.collect(client, episodes=3, seed=1)
        batch = client.sample(example.QUERY)
        total = batch["wanted"][:, -1] + batch["time"][:, -1]  # each step was rewarded with 1
        assert set(total.tolist()) <= set(returns)
        short = batch["time"][:, -1] < example.CONTEXT - 1
        assert short.any()
        assert not batch.mask[short, 0].any()

"""The GRPO example, shortened: actors, grader and trainer work together, and what each hands on is right."""

from __future__ import annotations

import threading

import numpy as np
import torch

import gear
from examples import grpo_toy as example
from examples.sums import END, PROMPT, Model, answer, ask


def test_a_short_run_trains_on_full_and_fresh_batches_and_ends_its_threads():
    torch.set_num_threads(1)
    before = threading.active_count()
    result = example.run(seed=0, updates=6, imitated=20)
    assert len(result.rewards) == 6
    assert max(result.lags) <= 2  # max_staleness
    assert threading.active_count() == before


def test_an_answer_ends_with_the_first_end():
    torch.manual_seed(0)
    token, logprob, length = answer(Model(), ask(np.array([[1, 2]] * 200)), torch.Generator().manual_seed(0))
    assert token[:, :PROMPT].tolist() == [[1, 10, 2, 11]] * 200
    assert (logprob[:, :PROMPT] == 0).all()
    assert (logprob[:, PROMPT:] < 0).all()
    for row, end in zip(token, length, strict=True):
        written = row[PROMPT:end].tolist()
        assert END not in written[:-1]
        assert written[-1] == END or end == len(row)


def store(client: gear.Client, token: list[int], reward: float) -> int:
    """A sealed rollout; its id."""
    rollout = client.open("rollouts", columns={"version": 0, "reward": np.float32(reward)})
    steps = {"token": np.array(token), "logprob": np.full(len(token), -2, np.float32)}
    client.append(rollout, {**steps, "written": np.arange(len(token)) >= PROMPT}, at=0)
    client.seal(rollout, terminated=True)
    return rollout


def test_advantages_are_relative_to_the_group_and_reach_its_rollouts():
    rewards = {"a": [1, 0] * (example.GROUP // 2), "b": [1] * example.GROUP}
    told: dict[int, float] = {}
    with gear.embedded([example.ROLLOUTS, example.VERDICTS], device="cpu") as client:
        grader = threading.Thread(target=example.grade, args=(client,))
        grader.start()
        try:
            for a, b in zip(rewards["a"], rewards["b"], strict=True):  # members arrive in turn
                for key, reward in (("a", a), ("b", b)):
                    rollout = store(client, [3, 10, 4, 11, 7, END], reward)
                    verdict = {"rollout": np.array([rollout]), "reward": np.float32(reward)}
                    client.insert(verdict, "verdicts", group=key)
                    told[rollout] = (2 * reward - 1) * 0.968 if key == "a" else 0.0  # 0.5 / standard deviation of 16
            batch = client.sample(2 * example.GROUP, "rollouts", require="advantage", timeout=30.0)
        finally:
            client.close()
            grader.join()
    assert sorted(batch.ids) == sorted(told)
    for rollout, advantage in zip(batch.ids.tolist(), batch["advantage"].tolist(), strict=True):
        assert abs(advantage - told[rollout]) < 1e-3


def test_answers_in_a_packed_batch_do_not_see_each_other():
    """The gradient of a batch of two answers, equally long, is the mean of their own gradients."""
    torch.manual_seed(0)
    model = Model()
    answers = {3.0: [1, 10, 2, 11, 5, END], -1.0: [9, 10, 9, 11, 8, END]}  # by their advantage
    gradients = []
    for advantages in ([3.0], [-1.0], [3.0, -1.0]):
        with gear.embedded([example.ROLLOUTS], device="cpu") as client:
            ids = [store(client, answers[a], 0.0) for a in advantages]
            client.fill(ids, {"advantage": np.array(advantages, np.float32)})
            views, require = example.QUERY.views, example.QUERY.require
            batch = client.sample(gear.Query(len(ids), "rollouts", views, require, layout="packed"))
            example.improve(model, torch.optim.SGD(model.parameters(), 0.0), batch)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(gradients[2], (gradients[0] + gradients[1]) / 2, atol=1e-6)
    assert gradients[2].abs().max() > 1e-3

"""Double DQN from prioritized samples, on the CPU: the part of the demo that knows reinforcement learning.

A batch holds pairs of consecutive rows, `Window(2, edge="tail")`: row 0 is the transition, row 1 brings the
next observation. The last row of an episode has no row after it. If the episode terminated none is needed;
if it was cut by the time limit the target is unknown, so the row is left out and its priority becomes 0,
which means it is never drawn again.

Values are kept as (1 - gamma) Q - 1, an affine map of the usual Q: with a reward of 1 per step they start
where they end up, within [-1, 0], instead of climbing from 0 to 1 / (1 - gamma).
"""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from examples.demo.policy import Policy

PRIORITY_FLOOR = 1e-3


class Learner:
    """A Q-network, its slowly following target and their optimizer.

    Parameters
    ----------
    seed : int
    updates : int
        Updates planned; the learning rate falls linearly to a tenth over them.
    """

    def __init__(
        self, seed: int, updates: int, lr: float = 1e-3, width: int = 64, tau: float = 0.01, gamma: float = 0.99
    ) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(
            nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        )
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.tau, self.gamma = tau, gamma
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr, fused=True)
        self._cooling = 0.9 * lr / updates
        self._fast, self._slow = list(self.net.parameters()), list(self.target.parameters())

    def update(
        self, obs: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, lengths: Tensor, weights: Tensor
    ) -> npt.NDArray[np.float64]:
        """One gradient step.

        Parameters
        ----------
        obs : float32[B, 2, 4]
        action : int64[B, 2]
        reward : float32[B, 2]
        terminated : bool[B, 2]
        lengths : int32[B]
            Rows that are really there; 1 at the end of an episode.
        weights : float32[B]
            Importance weights.

        Returns
        -------
        float64[B]
            New priorities: the size of each error, 0 where the target is unknown.
        """
        done = terminated[:, 0]
        known = (lengths > 1) | done
        values = self.net(obs)  # float32[B, 2, actions]: this row and the next one in a single pass
        with torch.no_grad():
            best = values[:, 1].argmax(1, keepdim=True)
            following = self.target(obs[:, 1]).gather(1, best).squeeze(1)
            ahead = torch.where(done, -1.0, following)
            wanted = (1 - self.gamma) * (reward[:, 0] - 1.0) + self.gamma * ahead
        error = (values[:, 0].gather(1, action[:, :1]).squeeze(1) - wanted) * known
        loss = (nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none") * weights).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.optimizer.param_groups[0]["lr"] -= self._cooling
        with torch.no_grad():
            torch._foreach_lerp_(self._slow, self._fast, self.tau)
            priorities: npt.NDArray[np.float64] = ((error.abs() + PRIORITY_FLOOR) * known).double().numpy()
        return priorities

    def policy(self, epsilon: float) -> Policy:
        """The network as plain arrays, for the actors."""
        linear = [layer for layer in self.net if isinstance(layer, nn.Linear)]
        arrays = [(m.weight.detach().T.contiguous().numpy().copy(), m.bias.detach().numpy().copy()) for m in linear]
        return Policy(arrays, epsilon)

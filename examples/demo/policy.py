"""The Q-network as plain arrays, and the file in which the learner publishes it.

Actors evaluate it with NumPy, so they start fast and import neither torch nor numba. A file is replaced in
one step, so a reader sees the old weights or the new ones, never half of each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Policy:
    """An epsilon-greedy policy over a network of linear layers with ReLU between them.

    Attributes
    ----------
    layers : (weight float32[in, out], bias float32[out]) of each layer
    epsilon : probability of a random action
    """

    layers: list[tuple[Array, Array]]
    epsilon: float

    def act(self, obs: Array, rng: np.random.Generator) -> int:
        """Choose an action for one observation, float32[4]."""
        if rng.random() < self.epsilon:
            return int(rng.integers(self.layers[-1][1].size))
        x = obs
        for weight, bias in self.layers[:-1]:
            x = np.maximum(x @ weight + bias, 0.0)
        weight, bias = self.layers[-1]
        return int((x @ weight + bias).argmax())

    def save(self, path: Path) -> None:
        """Publish at `path`, replacing what is there in one step."""
        arrays = {f"{kind}{i}": a for i, layer in enumerate(self.layers) for kind, a in zip("wb", layer, strict=True)}
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, epsilon=np.float64(self.epsilon), **arrays)
        os.replace(part, path)

    @staticmethod
    def load(path: Path) -> Policy:
        """The policy published last."""
        with np.load(path, allow_pickle=False) as arrays:
            layers = [(arrays[f"w{i}"], arrays[f"b{i}"]) for i in range((len(arrays.files) - 1) // 2)]
            return Policy(layers, float(arrays["epsilon"]))

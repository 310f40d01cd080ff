"""A writer in a process of its own: `python -m tests.rdma.children ADDRESS TABLE SECONDS` says how many it inserted."""

from __future__ import annotations

import sys
import time

import numpy as np

import gear

COLUMNS = [
    gear.Column("obs", (40,)),
    gear.Column("reward", (), "float64"),
    gear.Column("policy", (), "int64", per="trajectory"),
    gear.Column("image", (2000,), "uint8", per="trajectory"),
]


def trajectory(rng: np.random.Generator, number: int, steps: int) -> dict[str, np.ndarray]:
    return {
        "obs": rng.random((steps, 40), np.float32),
        "reward": rng.random(steps),
        "policy": np.int64(number),
        "image": rng.integers(0, 256, 2000).astype(np.uint8),
    }


def numbered(number: int) -> dict[str, np.ndarray]:
    """A trajectory whose rows all tell its number."""
    steps = 16 + number % 40
    return {
        "obs": np.full((steps, 40), number, np.float32),
        "reward": np.zeros(steps),
        "policy": np.int64(number),
        "image": np.full(2000, number & 255, np.uint8),
    }


def consistent(batch: gear.Batch) -> None:
    """Every row tells the number of the same trajectory."""
    numbers = batch["policy"]
    rows = batch["obs"][:, :, 0]
    steps = batch.mask if batch.mask is not None else np.ones(rows.shape, bool)
    assert (rows[steps] == np.broadcast_to(numbers[:, None], rows.shape)[steps]).all(), "torn rows"
    assert (batch["image"] == (numbers & 255)[:, None]).all(), "torn rows"


def main(address: str, name: str, seconds: str) -> None:
    with gear.connect(address, path="rdma", timeout=120.0) as client:
        end, number = time.monotonic() + float(seconds), 0
        while time.monotonic() < end:
            client.insert(numbered(number), name, timeout=120, wait=number % 8 == 0)
            number += 1
        client.flush()
    sys.stdout.write(f"inserted {number}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

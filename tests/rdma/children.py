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


def main(address: str, name: str, seconds: str) -> None:
    with gear.connect(address, path="rdma", timeout=120.0) as client:
        end, number = time.monotonic() + float(seconds), 0
        while time.monotonic() < end:
            steps = 16 + number % 40
            one = {
                "obs": np.full((steps, 40), number, np.float32),
                "reward": np.zeros(steps),
                "policy": np.int64(number),
                "image": np.full(2000, number & 255, np.uint8),
            }
            client.insert(one, name, timeout=120, wait=number % 8 == 0)
            number += 1
        client.flush()
    sys.stdout.write(f"inserted {number}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

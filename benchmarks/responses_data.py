"""The workload of LLM post-training: responses of very different lengths, made alike by every process from a seed."""

from __future__ import annotations

import numpy as np

COUNT, MOST, PUT = 4096, 4096, 64
"""Responses, tokens of the longest, responses per put."""

GETS = (64, 512)
"""Responses per get."""

STEPS = {"input_ids": np.int64, "logprobs": np.float32, "mask": np.bool_}
STEP_BYTES, VALUE_BYTES = 13, 12


def lengths(seed: int = 0) -> np.ndarray:
    """Tokens of each response, int64[COUNT]: lognormal, median 512, sigma 0.8."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(512), 0.8, COUNT), 1, MOST).astype(np.int64)


def nbytes() -> int:
    """Bytes of all responses."""
    return int(lengths().sum()) * STEP_BYTES + COUNT * VALUE_BYTES


def batches(seed: int = 0) -> list[dict[str, np.ndarray]]:
    """What is put at a time: columns one response behind the other, ``offsets``, and one value each."""
    rng = np.random.default_rng(seed + 1)
    made = []
    for start in range(0, COUNT, PUT):
        part = lengths(seed)[start : start + PUT]
        tokens = int(part.sum())
        made.append(
            {
                "input_ids": rng.integers(0, 150_000, tokens),
                "logprobs": rng.standard_normal(tokens, np.float32),
                "mask": np.ones(tokens, np.bool_),
                "reward": rng.random(PUT, np.float32),
                "version": np.full(PUT, start // PUT, np.int64),
                "offsets": np.concatenate(([0], np.cumsum(part))),
            }
        )
    return made


def checksum() -> int:
    """Sum of all tokens."""
    return sum(int(batch["input_ids"].sum()) for batch in batches())

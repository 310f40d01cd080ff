"""What stored trajectories of mixed lengths cost beside their payload."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import gear

COLUMNS = [
    gear.Column("obs", (17,), "float32"),
    gear.Column("action", (6,), "float32"),
    gear.Column("reward", (), "float32"),
    gear.Column("done", (), "bool"),
]


@pytest.mark.parametrize("sampler", [gear.Uniform(), gear.Prioritized(0.6)])
def test_ten_thousand_mixed_trajectories_take_at_most_a_tenth_more_than_their_payload(sampler):
    """Lengths uniform in 1..1000; the whole directory counts, the reserve's blocks do not."""
    lengths = np.random.default_rng(0).integers(1, 1001, 10_000)
    table = gear.Table(
        "mixed",
        COLUMNS,
        gear.Trajectories(10_000),
        item=gear.Window(64, stride=64),
        sampler=sampler,
        mean_length=500,
        max_length=1000,
    )
    longest = {c.name: np.zeros((1000, *c.shape), c.dtype) for c in COLUMNS}
    with gear.embedded([table]) as client:
        for length in lengths:
            client.insert({name: column[:length] for name, column in longest.items()}, wait=False)
        client.flush()
        info = client.info()["tables"]["mixed"]
    assert info["trajectories"] + info["evicted_early"] == 10_000
    assert info["evicted_early"] < 100
    payload = info["steps"] * table.step_bytes
    assert info["payload_bytes"] == payload
    allowed = 1.10 * payload
    if isinstance(sampler, gear.Prioritized):
        allowed += 12 * info["items"]
    taken = info["used_bytes"] + info["directory_bytes"]
    reserve = info["reserve_blocks"] * info["block_bytes"]
    line = f"{type(sampler).__name__}: {taken / payload:.4f} x the payload of {payload} bytes, reserve {reserve} bytes"
    sys.stdout.write(f"\n{line}\n")  # shown by pytest -s
    assert taken <= allowed, f"{taken / payload:.4f} x the payload"

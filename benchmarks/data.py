"""The tables that the benchmarks' workloads are stored in."""

from __future__ import annotations

import numpy as np

import gear
from benchmarks.workloads import FRAME, LENGTH, Columns, piece

COLUMNS = [
    gear.Column("obs", (17,), "float32"),
    gear.Column("action", (6,), "float32"),
    gear.Column("reward", (), "float32"),
    gear.Column("done", (), "bool"),
]

FRAME_COLUMNS = [
    gear.Column("obs", FRAME, "uint8"),
    gear.Column("action", (), "int64"),
    gear.Column("reward", (), "float32"),
    gear.Column("done", (), "bool"),
]


def fill(client: gear.Client, table: str, data: Columns, priorities: np.ndarray | None = None) -> None:
    """Insert `data` as trajectories of `LENGTH` steps; priorities: float64[steps]."""
    for start in range(0, len(data["reward"]), LENGTH):
        priority = None if priorities is None else priorities[start : start + LENGTH]
        client.insert(piece(data, start, LENGTH), table, priority=priority, wait=False)
    client.flush()

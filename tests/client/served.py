"""One table per test, over every path, for tests of what is served once: consumers and groups."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

import gear

PATHS = ["inproc", "shm", "tcp"]


class Desk:
    """A table of trajectories of two steps that hold their number, and clients of it."""

    def __init__(self, path: str, address: Callable[[], str]) -> None:
        self.path, self.name = path, f"t{uuid.uuid4().hex[:8]}"
        self._address, self._clients = address, []

    @property
    def address(self) -> str:
        return self._address()

    def table(self, **fields: Any) -> gear.Table:
        columns = [gear.Column("k", (), "int64"), gear.Column("reward", (), "float32", per="trajectory")]
        columns = fields.pop("columns", columns)
        fields = {"capacity": gear.Steps(400), "item": gear.Whole(), "mean_length": 2, **fields}
        return gear.Table(self.name, columns, **fields)

    def open(self, **fields: Any) -> gear.Client:
        """The first client, which creates the table."""
        if self.path == "inproc":
            self._clients.append(gear.embedded([self.table(**fields)]))
        else:
            self.another().create_table(self.table(**fields))
        return self._clients[0]

    def another(self) -> gear.Client:
        self._clients.append(gear.connect(self.address, path=self.path))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def insert(self, client: gear.Client, *numbers: int, reward: float = 0.0, **options: Any) -> None:
        for number in numbers:
            rows = {"k": np.full(2, number), "reward": np.float32(reward)}
            client.insert(rows, self.name, **{"timeout": 60, **options})

    def insert_together(self, client: gear.Client, groups: list[Any], *numbers: int) -> None:
        """In one message, so that no busy machine lets a deadline pass between them."""
        rows = [{"k": np.full(2, number), "reward": np.float32(0)} for number in numbers]
        client.insert_many(rows, self.name, groups=groups, timeout=60)

    def figures(self, client: gear.Client) -> dict[str, Any]:
        return client.info()["tables"][self.name]


def numbers(batch: gear.Batch) -> list[int]:
    return batch["k"][:, 0].tolist()

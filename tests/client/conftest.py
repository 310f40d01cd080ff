"""Small tables whose rows say where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import gear
from tests.transport.conftest import name, server, shards

__all__ = ["columns", "embed", "name", "rows", "server", "shards"]


def columns() -> list[gear.Column]:
    return [gear.Column("obs", (2,)), gear.Column("step", (), "int64")]


def rows(steps: int, start: int = 0) -> dict[str, np.ndarray]:
    """A trajectory whose step t holds start + t in every column."""
    count = np.arange(start, start + steps)
    return {"obs": np.repeat(count[:, None], 2, 1).astype(np.float32), "step": count}


@pytest.fixture
def embed() -> Iterator[Any]:
    """Makes embedded clients over one table ``t`` of the given fields and closes them."""
    with ExitStack() as stack:

        def make(device: str | None = None, **fields: Any) -> gear.Client:
            declared = {"columns": columns(), "capacity": gear.Steps(1000), "item": gear.Window(4), **fields}
            return stack.enter_context(gear.embedded([gear.Table("t", **declared)], device=device))

        yield make

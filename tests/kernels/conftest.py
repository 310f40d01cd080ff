"""Fixtures of the kernel tests: every implementation of the kernels, each held against the reference."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.kernels.simulator import SIMULATED
from tests.kernels.words import EXECUTED

OF_THE_HOST = [
    "test_bounds.py",
    "test_compile.py",
    "test_insert.py",
    "test_launch.py",
    "test_program.py",
    "test_ptx.py",
    "test_records.py",
]
collect_ignore = OF_THE_HOST if SIMULATED else ["test_simulated.py"]

IMPLEMENTATIONS = ["cuda"] if SIMULATED else ["reference", "host"]


@pytest.fixture(scope="session", autouse=SIMULATED)
def executed() -> Iterator[set[tuple[str, int]]]:
    """Every kind of copy that kernels made in the simulator: all of them are looked for in the PTX."""
    from gear.kernels import cuda_simulated

    made = set[tuple[str, int]]()
    cuda_simulated.widths = made
    yield made
    assert made <= EXECUTED


@pytest.fixture(scope="session", params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    """A module with the kernels; tests pass NumPy arrays, an implementation on a device copies them itself."""
    module = importlib.import_module(f"gear.kernels.{request.param}")
    getattr(module, "load", lambda: None)()
    return module

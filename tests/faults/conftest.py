"""How long the faults last: seconds as a part of all tests, minutes with ``--faults-long`` (`make test-faults`)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeVar

import pytest

T = TypeVar("T")


@dataclass(frozen=True)
class Faults:
    """`seed` makes every choice of a test; `at` chooses between the bounded and the long version."""

    seed: int
    long: bool

    def at(self, short: T, long: T) -> T:
        return long if self.long else short


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Faults:
    seed, long = request.config.getoption("--faults-seed"), request.config.getoption("--faults-long")
    if seed is None:  # the short version is the same each time, the long one looks for what nobody has seen yet
        seed = int.from_bytes(os.urandom(3), "little") if long else 0
    print(f"seed {seed}; again with --faults-seed {seed}")  # noqa: T201 - for whoever looks into a failure
    return Faults(seed, long)


@pytest.fixture
def long_only(faults: Faults) -> Faults:
    if not faults.long:
        pytest.skip("takes long: --faults-long, or make test-faults")
    return faults

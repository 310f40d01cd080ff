"""Whether this process runs kernels in Numba's CUDA simulator, and how much of a test that leaves time for.

The simulator is chosen by an environment variable before Numba is imported, for the whole process, so the suite runs
once without and once with it (`make test-gpu-sim`): the same tests, on `gear.kernels.cuda` and fewer examples.
"""

from __future__ import annotations

import os

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def examples(count: int) -> int:
    """How many examples of a property to try; on the device's kernels as many as fit into a second or two."""
    return max(10, count // 10) if SIMULATED else count


def at_most(count: int, simulated: int) -> int:
    """A size that the simulator gets less of."""
    return simulated if SIMULATED else count

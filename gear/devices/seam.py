"""The seam between a GPU and Numba's CUDA simulator, for all but kernels (`gear.kernels.cuda_seam`).

NUMBA_ENABLE_CUDASIM chooses, as it does for Numba. In the simulator there is no memory of a device: the host's own
arrays stand for page-locked ones, shared segments for what is allocated on a device and opened by other processes, and
torch's CPU for ``cuda:N``; streams and events have nothing to wait for. Neither Numba nor torch is imported here.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gear.devices.driver import Driver

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


@functools.cache
def driver() -> Driver:
    """The CUDA driver of this machine, or what stands for it in the simulator.

    Raises
    ------
    DeviceError
        If there is none.
    """
    if SIMULATED:
        from gear.devices.simulated import Simulated

        return Simulated()
    from gear.devices.driver import Driver

    return Driver()


def on(number: int) -> AbstractContextManager[Any]:
    """Let this thread's launches happen on a device."""
    if SIMULATED:
        return contextlib.nullcontext()
    from numba import cuda

    context: AbstractContextManager[Any] = cuda.gpus[number]
    return context

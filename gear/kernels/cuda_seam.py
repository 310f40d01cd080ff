"""The seam between kernels for a GPU and Numba's CUDA simulator: everything that the two do differently.

Kernels see memory as integer addresses, as those of the host do, and touch it through the functions named here alone:
`cuda_words` makes them instructions for a GPU, `cuda_simulated` checks each access and does it in Python. Which of
them is settled when this file is imported, by NUMBA_ENABLE_CUDASIM, as Numba itself does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from numba import cuda
from numba.core import config

from gear.kernels.compile import stamp

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

SIMULATED = bool(config.ENABLE_CUDASIM)

if SIMULATED:
    from gear.kernels.cuda_simulated import (
        bits_of,
        bits_of_single,
        claim,
        fence,
        from_unsigned,
        load_1,
        load_2,
        load_4,
        load_8,
        load_float,
        move_1,
        move_2,
        move_4,
        move_8,
        move_16,
        move_four_4,
        move_four_8,
        move_four_16,
        number_of,
        number_of_single,
        peek_4,
        peek_8,
        quotient,
        raise_to,
        store_1,
        store_2,
        store_4,
        store_8,
        store_16,
        store_float,
        times,
        wrapped,
    )
else:
    from gear.kernels.cuda_words import (
        bits_of,
        bits_of_single,
        claim,
        fence,
        from_unsigned,
        load_1,
        load_2,
        load_4,
        load_8,
        load_float,
        move_1,
        move_2,
        move_4,
        move_8,
        move_16,
        move_four_4,
        move_four_8,
        move_four_16,
        number_of,
        number_of_single,
        peek_4,
        peek_8,
        quotient,
        raise_to,
        store_1,
        store_2,
        store_4,
        store_8,
        store_16,
        store_float,
        times,
        wrapped,
    )

__all__ = [
    "SIMULATED",
    "bits_of",
    "bits_of_single",
    "claim",
    "device",
    "fence",
    "from_unsigned",
    "kernel",
    "load_1",
    "load_2",
    "load_4",
    "load_8",
    "load_float",
    "move_1",
    "move_2",
    "move_4",
    "move_8",
    "move_16",
    "move_four_4",
    "move_four_8",
    "move_four_16",
    "number_of",
    "number_of_single",
    "peek_4",
    "peek_8",
    "quotient",
    "raise_to",
    "store_1",
    "store_2",
    "store_4",
    "store_8",
    "store_16",
    "store_float",
    "times",
    "wrapped",
]

Function = TypeVar("Function", bound="Callable[..., Any]")


def kernel(function: Function) -> Function:
    """Make `function` a kernel, compiled at its first launch and cached on disk, as `compile.kernel` does on the host.

    No fast arithmetic: sums come out as the host's do, to the bit.
    """
    dispatcher = cuda.jit(function)
    if not SIMULATED:
        try:
            dispatcher.enable_caching()
            index = dispatcher._cache._cache_file
            index._source_stamp = (index._source_stamp, stamp(function.__code__.co_filename))
        except (RuntimeError, OSError, AttributeError):  # no directory to write to, no source, another Numba
            logger.debug("kernel %s has no cache", function.__qualname__, exc_info=True)
    return dispatcher


def device(function: Function) -> Function:
    """Make `function` callable by kernels, which hand it what it needs of threads and blocks.

    If it waits for other threads it stands in the file of its kernel: elsewhere the simulator does not know it.
    """
    return function if SIMULATED else cuda.jit(device=True)(function)

"""Launching kernels on a GPU: where arrays are, copies of those that are in the host's memory, the shape of a grid.

A launch is given arrays that the device can reach (anything with `__cuda_array_interface__`: Numba's, CuPy's, torch's
tensors), or NumPy arrays, which are copied there and, if written, back. With the former nothing waits for the device.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from gear.kernels.cuda_seam import SIMULATED

if SIMULATED:
    from gear.kernels.cuda_simulated import accessible

if TYPE_CHECKING:
    import numpy.typing as npt

LANES, WARPS = (2, 2) if SIMULATED else (32, 4)
"""Lanes of a warp and warps of a block of threads. Kernels work with any; the simulator pays for each thread."""

THREADS = LANES * WARPS

BLOCKS_EACH = 16
"""Blocks of threads that a multiprocessor gets in one launch at most, some of them after others."""


@functools.cache
def room() -> int:
    """Blocks of threads that a launch on the current device has at most."""
    if SIMULATED:
        return 2
    return BLOCKS_EACH * int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


class Room:
    """Memory of a device that only grows: for what no two launches of a stream need at once."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self.array = cuda.device_array(1, dtype)

    def make(self, count: int) -> None:
        """Have room for so many values; a quarter more where there was too little, for the next may be larger."""
        if count > len(self.array):
            self.array = cuda.device_array(count if len(self.array) == 1 else count + count // 4, self._dtype)


def parts(items: int, units: int) -> tuple[int, int]:
    """Grid for items that are made by a block of threads, or by several where that leaves room.

    units : what warps can take turns at in an item.
    """
    across = max(1, min(items, room()))
    return across, max(1, min(-(-units // WARPS), -(-room() // across)))


def lines(count: int, each: int = 1) -> int:
    """Blocks of threads for `count` things, `each` per thread."""
    return max(1, min(-(-count // (THREADS * each)), room()))


def place(array: Any) -> tuple[int, int]:
    """(address, bytes) of an array that the device can reach.

    Raises
    ------
    TypeError
        If it is none.
    ValueError
        If it has gaps.
    """
    if SIMULATED:
        return int(array.ctypes.data), int(array.nbytes)
    try:
        interface = array.__cuda_array_interface__
    except AttributeError:
        raise TypeError(
            f"expected an array on a device (with __cuda_array_interface__), got {type(array).__name__}; "
            "give all arrays as NumPy arrays, or all on the device"
        ) from None
    size = int(np.dtype(interface["typestr"]).itemsize)
    for axis, stride in zip(interface["shape"][::-1], (interface.get("strides") or ())[::-1], strict=False):
        if stride != size and axis > 1:
            raise ValueError(f"expected an array without gaps, got strides {interface['strides']}; copy it first")
        size *= axis
    size = int(np.dtype(interface["typestr"]).itemsize)
    return int(interface["data"][0] or 0), size * int(np.prod(interface["shape"], dtype=np.int64))


@functools.lru_cache(1024)
def _configured(kernel: Any, grid: Any, block: Any, stream: Any) -> Any:
    """What launches a kernel. Numba warns of small grids, which are meant to be small here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kernel[grid, block, stream]


@functools.lru_cache(256)
def _kept_table(device: int, shape: tuple[int, ...], dtype: np.dtype, content: bytes) -> Any:
    return cuda.to_device(np.frombuffer(content, dtype).reshape(shape).copy())


class Call:
    """The arrays of one or a few launches on a stream; a context, at whose end NumPy arrays hold the results.

    Parameters
    ----------
    stream : a stream of Numba, or 0 for the default one.
    """

    def __init__(self, stream: Any = 0) -> None:
        self.stream = stream
        self._back: list[tuple[Any, npt.NDArray[Any]]] = []
        self._kept: list[Any] = []  # what was copied lives until the launches are through
        self._read: list[tuple[int, int]] = []
        self._write: list[tuple[int, int]] = []

    def __enter__(self) -> Call:
        return self

    def reads(self, array: Any) -> int:
        """The address of an array that is only read, 0 if it is empty."""
        if not len(array):
            return 0
        found = place(self._there(array))
        self._read.append(found)
        return found[0]

    def writes(self, array: Any) -> int:
        """The address of an array that is written too, 0 if it is empty."""
        if not len(array):
            return 0
        there = self._there(array)
        if there is not array:
            self._back.append((there, array))
        found = place(there)
        self._write.append(found)
        return found[0]

    def table(self, array: npt.NDArray[Any]) -> Any:
        """A small array that kernels take as an array; on the device it stays, for the calls that take an equal one."""
        return _kept_table(0 if SIMULATED else cuda.get_current_device().id, array.shape, array.dtype, array.tobytes())

    def copied(self, array: npt.NDArray[Any]) -> Any:
        """A small array that kernels take as an array and that is another one in each call."""
        return self._there(array)

    def launch(self, kernel: Any, grid: Any, block: Any, *arguments: Any) -> None:
        """Launch a kernel on the stream."""
        if SIMULATED:
            with accessible(self._read, self._write):
                kernel[grid, block](*arguments)
        else:
            _configured(kernel, grid, block, self.stream)(*arguments)

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            return
        for there, array in self._back:
            there.copy_to_host(array, stream=self.stream)
        if self._kept and not SIMULATED:
            (self.stream or cuda.default_stream()).synchronize()

    def _there(self, array: Any) -> Any:
        if not isinstance(array, np.ndarray) or hasattr(array, "__cuda_array_interface__"):  # page-locked and mapped
            return array
        self._kept.append(cuda.to_device(array, stream=self.stream))
        return self._kept[-1]

"""Memory that kernels on a GPU reach: mapped segments of the host, memory of the device, and arrays over them.

A `Span` is an array of bytes for kernels (`__cuda_array_interface__`) that copies nothing. Nothing here frees memory
that kernels may still be reading: whoever closes has waited for them.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from gear.devices import seam
from gear.errors import DeviceError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_lock = threading.Lock()
_locked: dict[int, int] = {}
"""How often segments are mapped, by their address: the driver counts nothing."""


class Span:
    """uint8[nbytes] at an address that a device reaches; `owner` is what keeps it there."""

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.address, self.nbytes, self._owner = address, nbytes, owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip

    def __len__(self) -> int:
        return self.nbytes


def span(address: int, nbytes: int, array: npt.NDArray[np.uint8]) -> Any:
    """What kernels are given for memory; in the simulator the array that stands for it."""
    if seam.SIMULATED:
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        return FakeCUDAArray(array[:nbytes])
    return Span(address, nbytes, array)


class MappedSegment:
    """A segment of the host, page-locked and mapped for as long as this object is open.

    Parameters
    ----------
    segment : uint8[nbytes]
        It begins at a page.
    number : of the device in this process.

    Attributes
    ----------
    address : where kernels find it.
    span : the same as an array.

    Raises
    ------
    InsufficientMemory, DeviceError
        If it cannot be locked: which limit.
    """

    def __init__(self, segment: npt.NDArray[np.uint8], number: int) -> None:
        self._driver, self._segment, self._number = seam.driver(), segment, number
        self._base = int(segment.ctypes.data)
        with _lock, self._driver.at(number):
            self.address = self._driver.register(self._base, len(segment))
            _locked[self._base] = _locked.get(self._base, 0) + 1
        self.span = span(self.address, len(segment), segment)

    def close(self) -> None:
        """Unlock it, unless somebody else in this process has it mapped too."""
        with _lock:
            _locked[self._base] -= 1
            if not _locked[self._base]:
                del _locked[self._base]
                # At the end of a process the driver may have gone before.
                with contextlib.suppress(DeviceError), self._driver.at(self._number):
                    self._driver.unregister(self._base)


class DeviceMemory:
    """Memory of a device: allocated here, or opened by the handle of the process that did.

    Attributes
    ----------
    address, span : as of `MappedSegment`.
    handle : what others open it by.
    """

    def __init__(self, number: int, nbytes: int, owner: str, handle: bytes = b"") -> None:
        self._driver, self._number, self.nbytes, self._opened = seam.driver(), number, nbytes, bool(handle)
        with self._driver.at(number):
            self.address = self._driver.open(handle, nbytes) if handle else self._driver.allocate(nbytes, owner)
        try:
            with self._driver.at(number):
                self.handle = handle or self._driver.export(self.address)
            array = self._driver.array(self.address) if seam.SIMULATED else None  # type: ignore[attr-defined]
            self.span = span(self.address, nbytes, array)  # type: ignore[arg-type]
        except BaseException:  # nobody else knows of it
            self.close()
            raise

    def close(self) -> None:
        """Let go of it; where it was allocated it is free then."""
        with contextlib.suppress(DeviceError), self._driver.at(self._number):  # as above
            if self._opened:
                self._driver.close(self.address)
            else:
                self._driver.free(self.address)

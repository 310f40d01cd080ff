"""Whole blocks of an arena by their numbers, as bytes: neighbouring ones come and go in one copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from gear.devices.driver import Driver


class Blocks:
    """Blocks on a device, uint8[blocks, size].

    Parameters
    ----------
    driver, number : the device.
    address : of the first one.
    shape : (blocks, size)
    """

    def __init__(self, driver: Driver, number: int, address: int, shape: tuple[int, int]) -> None:
        self._driver, self._number, self._address, self.shape = driver, number, address, shape

    def __setitem__(self, numbers: int | npt.NDArray[np.integer], rows: npt.NDArray[np.uint8]) -> None:
        """Write one block, or some: uint8[N, size]. They are there when the assignment returns."""
        size, rows = self.shape[1], np.ascontiguousarray(rows)
        source = int(rows.ctypes.data)
        with self._driver.at(self._number):
            for first, block, count in _runs(np.atleast_1d(numbers)):
                self._driver.put(self._address + block * size, source + first * size, count * size)
            self._driver.settle()

    def read(self, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
        """What is there, uint8[N, size]."""
        size = self.shape[1]
        found = np.empty((len(numbers), size), np.uint8)
        target = int(found.ctypes.data)
        with self._driver.at(self._number):
            for first, block, count in _runs(numbers):
                self._driver.get(target + first * size, self._address + block * size, count * size)
        return found


def _runs(numbers: npt.NDArray[np.integer]) -> Iterator[tuple[int, int, int]]:
    """Runs of neighbours: (index of the first, its number, how many)."""
    if not len(numbers):
        return
    bounds = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
    for first, end in zip(bounds, bounds[1:], strict=False):
        yield first, int(numbers[first]), end - first

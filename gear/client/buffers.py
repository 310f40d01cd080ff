"""Memory of batches that are gone, for batches to come: pages that are new to a process cost as much as the copy.

Nobody hands a batch back. A buffer is free again when no array, tensor or batch refers to it any more, which is what
its count of references says: views of an array keep the array alive, whatever they were made by.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt

MOST = 4
"""Buffers kept: a learner holds a batch or two while the next is made."""

MOST_BYTES = 64 << 20
"""A larger batch gets memory of its own, which goes when the batch does."""


def _references(kept: list[npt.NDArray[np.uint8]], index: int) -> int:
    return sys.getrefcount(kept[index])


_IDLE = _references([np.empty(0, np.uint8)], 0)


class Buffers:
    """Buffers of one reader. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[npt.NDArray[np.uint8]] = []

    def take(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """uint8[nbytes] with anything in it; None where the caller had better allocate."""
        if nbytes > MOST_BYTES:
            return None
        with self._lock:
            kept, small = self._kept, -1
            for index in range(len(kept)):
                if _references(kept, index) == _IDLE:
                    if len(kept[index]) >= nbytes:
                        return kept[index][:nbytes]
                    small = index
            if small < 0 and len(kept) == MOST:
                return None
            if small >= 0:
                del kept[small]
            try:
                kept.append(np.empty(nbytes + nbytes // 4, np.uint8))  # the next one may be somewhat larger
            except MemoryError:
                return None
            return kept[-1][:nbytes]

    def forget(self) -> None:
        """Start anew, in the child of a fork: the lock may be held by a thread of the parent's."""
        self._lock, self._kept = threading.Lock(), []

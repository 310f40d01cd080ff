"""Published arrays within this process: the latest version of each name under a lock of its own."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from gear.arrays import late
from gear.errors import Closed, DataError, DeadlineExceeded
from gear.storage import memory

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gear.arrays import Entry, Parcel

Latest = tuple[int, "tuple[Entry, ...]", "npt.NDArray[np.uint8]"]


class InprocWeights:
    """The part of an in-process `Session` that publishes arrays and fetches them."""

    def __init__(self) -> None:
        self._published = threading.Condition()
        self._latest: dict[str, Latest] = {}
        self._over = False

    def publish(self, name: str, parcel: Parcel, version: int, timeout: float | None) -> int:
        """Replace what is published under a name."""
        mine = memory.anonymous(max(1, parcel.nbytes), f"publishing {name!r}")[: parcel.nbytes]
        parcel.write(0, mine)
        with self._published:
            self._refuse_if_closed()
            there = self._latest[name][0] if name in self._latest else 0
            if version and version <= there:
                raise DataError(f"version {version} of {name!r} is not newer than version {there}, which is published")
            number = version or there + 1
            self._latest[name] = number, parcel.entries, mine
            self._published.notify_all()
            return number

    def fetch(
        self, name: str, newer_than: int, timeout: float | None
    ) -> tuple[int, tuple[Entry, ...], npt.NDArray[np.uint8]]:
        """The latest version, once it is newer than that."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._published:
            while (there := self._latest.get(name)) is None or there[0] <= newer_than:
                self._refuse_if_closed()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise DeadlineExceeded(late(name, newer_than, there[0] if there is not None else None))
                self._published.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
        return there[0], there[1], there[2].copy()

    def _refuse_if_closed(self) -> None:
        if self._over:
            raise Closed("this client is closed; make a new one")

    def _close_weights(self) -> None:
        with self._published:
            self._over = True
            self._latest.clear()
            self._published.notify_all()

    def _weights_info(self) -> dict[str, Any]:
        with self._published:
            return {name: {"version": v[0], "bytes": len(v[2])} for name, v in self._latest.items()}

"""The end of a queue pair over which rows are pushed to a reader: it only takes in what its immediates say is there.

An immediate comes once all that was written before it can be seen. It is kept until it is asked for, since threads may
wait for different ones.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from gear.transport.rdma_queue import PATIENCE, End, QueuePair
from gear.transport.rdma_verbs import verbs

if TYPE_CHECKING:
    from gear.transport.rdma_device import Device

RECEIVES = 64
"""Pushes that may be under way to one reader; the server has fewer."""

_NAP, _LEAST = 100e-6, 64


class Inlet(QueuePair):
    """A queue pair that receives.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device, RECEIVES)
        self._unused = np.zeros(
            _LEAST, np.uint8
        )  # what comes goes elsewhere, but pyverbs wants a place in each request
        self._region = device.register(self._unused, verbs().enums.IBV_ACCESS_LOCAL_WRITE)
        self._came: set[int] = set()
        self._taking = threading.Lock()

    def connect(self, other: End, access: int) -> None:
        """Connect to the other end; see `QueuePair`."""
        super().connect(other, access)
        self._receive(RECEIVES)

    def wait_for(self, immediate: int) -> None:
        """Wait until the write with this immediate has completed here; its request is known to have completed there.

        Raises
        ------
        Broken
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            with self._taking:
                self._take()
                if immediate in self._came:
                    self._came.remove(immediate)
                    return
            if time.monotonic() > deadline:
                with self._lock:
                    raise self._break(f"rows that were pushed did not come within {PATIENCE:g} s")
            time.sleep(_NAP)

    def close(self) -> None:
        """Destroy the pair; see `QueuePair`."""
        super().close()
        self._region.close()

    def _take(self) -> None:
        with self._lock:
            completions = self._poll(RECEIVES)
            self._flying = 0  # nothing is ever sent from here
            self._came.update(completion.imm_data for completion in completions)  # in the order of this host
            self._receive(len(completions))

    def _receive(self, count: int) -> None:
        v = verbs()
        try:
            place = v.SGE(self._unused.ctypes.data, _LEAST, self._region.lkey)
            for _ in range(count):
                self._pair.post_recv(v.RecvWR(num_sge=1, sg=[place]))
        except v.PyverbsError as error:
            raise self._break(f"nothing can be received: {error}") from None

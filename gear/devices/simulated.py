"""What stands for the CUDA driver in Numba's simulator: two devices whose memory is shared segments of the host.

Memory that is allocated here lies in a file of the shared-memory filesystem, and what is exported is its path: so a
learner opens what a shard has allocated, as by CUDA IPC. Kernels of the simulator read it where it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from gear.devices.driver import Device, Driver
from gear.errors import DeviceError
from gear.storage import memory
from gear.storage.regions import up

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

MEMORY = 1 << 30
"""Bytes that each device has."""

PAGE = 4096


class Simulated(Driver):
    """Never reaches a device."""

    simulated = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[int, tuple[Path | None, npt.NDArray[np.uint8]]] = {}

    def version(self) -> tuple[int, int]:
        """As if it were new enough."""
        return 99, 0

    def devices(self) -> list[Device]:
        """Two, or those of CUDA_VISIBLE_DEVICES among them."""
        there = [Device(n, f"GPU-simulated-{n}", "Numba's CUDA simulator", (0, 0), MEMORY, True, False) for n in (0, 1)]
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if wanted is None:
            return there
        names = [name.strip() for name in wanted.split(",")]
        chosen = [device for name in names for device in there if name in (str(device.number), device.uuid)]
        return [device._replace(number=number) for number, device in enumerate(chosen)]

    def use(self, number: int) -> None:
        """Nothing to do."""

    @contextlib.contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Nothing to do."""
        yield

    def of(self, address: int) -> int:
        """It is all of the host."""
        return 0

    def register(self, address: int, nbytes: int) -> int:
        """The host's own memory stands for mapped one."""
        return address

    def unregister(self, address: int) -> None:
        """Nothing to do."""

    def room(self) -> tuple[int, int]:
        """(free, all) bytes of a device."""
        with self._lock:
            return MEMORY - sum(len(array) for path, array in self._made.values() if path), MEMORY

    def allocate(self, nbytes: int, owner: str) -> int:
        """A shared segment."""
        path = memory.SHARED / f"gear-simulated-{os.getpid()}-{secrets.token_hex(8)}"
        return self._keep(path, memory.create(path, up(max(1, nbytes), PAGE), owner))

    def free(self, address: int) -> None:
        """Remove the segment."""
        with self._lock:
            path, _ = self._made.pop(address)
        assert path is not None
        path.unlink(missing_ok=True)

    def put(self, address: int, source: int, nbytes: int) -> None:
        """Copy at once."""
        ctypes.memmove(address, source, nbytes)

    def get(self, target: int, address: int, nbytes: int) -> None:
        """Copy at once."""
        ctypes.memmove(target, address, nbytes)

    def settle(self, stream: int = 0) -> None:
        """Nothing is under way."""

    def export(self, address: int) -> bytes:
        """Its path."""
        with self._lock:
            return str(self._made[address][0]).encode()

    def open(self, handle: bytes, nbytes: int) -> int:
        """Map the segment of another process."""
        path = Path(handle.decode())
        try:
            if path.parent != memory.SHARED or not path.name.startswith("gear-simulated-"):
                raise OSError(f"{path} is no memory of a simulated device")
            return self._keep(None, memory.attach(path, up(max(1, nbytes), PAGE)))
        except OSError as error:
            raise DeviceError(f"device memory of the server cannot be opened: {error}") from None

    def close(self, address: int) -> None:
        """Let go of it."""
        with self._lock:
            self._made.pop(address, None)

    def array(self, address: int) -> npt.NDArray[np.uint8]:
        """What is allocated or opened at an address, as the array that it is."""
        with self._lock:
            return self._made[address][1]

    def _keep(self, path: Path | None, array: npt.NDArray[np.uint8]) -> int:
        address = int(array.ctypes.data)
        with self._lock:
            self._made[address] = path, array
        return address

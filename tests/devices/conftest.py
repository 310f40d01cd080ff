"""Fixtures of what happens on GPUs: a made-up driver on the host, the service in Numba's CUDA simulator."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from gear.devices import driver as drivers
from gear.devices import seam
from tests.kernels.simulator import SIMULATED

OF_THE_HOST = ["test_choice.py", "test_driver.py", "test_streams.py"]
OF_THE_SIMULATOR = ["test_arena.py", "test_batches.py", "test_checkpoint.py", "test_draws.py", "test_service.py"]
collect_ignore = OF_THE_HOST if SIMULATED else OF_THE_SIMULATOR


class Library:
    """A `libcuda` of two devices, of which calls fail as told: {function: result}."""

    def __init__(self) -> None:
        self.results: dict[str, int] = {}
        self.version = 13000
        self.parts: set[int] = set()
        """Devices that are parts of a card."""
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if self.results.get(name, 0):
                return self.results[name]
            getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return 0

        if name.startswith("_"):
            raise AttributeError(name)
        return call

    def _cuDriverGetVersion(self, out: Any) -> None:
        out._obj.value = self.version

    def _cuDeviceGetCount(self, out: Any) -> None:
        out._obj.value = 2

    def _cuDeviceGet(self, out: Any, number: int) -> None:
        out._obj.value = number

    def _cuDeviceGetName(self, name: Any, _: int, device: Any) -> None:
        name.value = b"Card %d" % device.value

    def _cuDeviceGetUuid_v2(self, out: Any, device: Any) -> None:
        out._obj.octets[15] = device.value

    def _cuDeviceGetUuid(self, out: Any, device: Any) -> None:
        out._obj.octets[15] = 9 if device.value in self.parts else device.value

    def _cuDeviceTotalMem_v2(self, out: Any, device: Any) -> None:
        out._obj.value = 1 << 30

    def _cuDeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> None:
        out._obj.value = {75: 9, 76: 0, 41: 1, 116: 1}[attribute]

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = 1 << 20, 1 << 30

    def _cuGetErrorName(self, result: int, out: Any) -> None:
        out._obj.value = {2: b"CUDA_ERROR_OUT_OF_MEMORY", 201: b"CUDA_ERROR_INVALID_CONTEXT"}[result]

    def _cuMemHostGetDevicePointer_v2(self, out: Any, address: Any, _: int) -> None:
        out._obj.value = address.value

    def _cuMemAlloc_v2(self, out: Any, nbytes: Any) -> None:
        out._obj.value = 1 << 40


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """The driver that this process finds."""
    made = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: made if name == drivers.LIBRARY else pytest.fail(name))
    seam.driver.cache_clear()
    yield made
    seam.driver.cache_clear()

"""What `gear devices` prints: the GPUs that a server or a learner here would see, and which doors to them work.

A door is tried, not looked up, where that can be done: host memory is mapped, device memory is opened by another
process. Without a driver it says so, and what runs all the same.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np

from gear.devices import choice, seam
from gear.errors import GearError
from gear.storage.memory import SHARED, size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from gear.devices.driver import Device, Driver

_OPEN = "import sys; from gear.devices.report import opens; opens(int(sys.argv[1]), sys.argv[2])"
_TRY_BYTES = 1 << 21


def report() -> str:
    """All of it, as lines."""
    from gear.transport.rdma_gpu import told

    lines = [f"CUDA_VISIBLE_DEVICES: {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}", _packages()]
    lines.append(f"RDMA: {told()}")
    try:
        driver = seam.driver()
        there = driver.devices()
    except GearError as error:
        lines.append(f"no GPU: {error}")
        lines.append("gear-server --devices cpu and every client with device=None or 'cpu' work without one")
        return "\n".join(lines)
    if driver.simulated:
        lines.append("driver: none, Numba's CUDA simulator stands for it (NUMBA_ENABLE_CUDASIM); it is for tests alone")
    else:
        lines.append(f"driver: knows CUDA {'.'.join(map(str, driver.version()))}")
    try:
        choice.check_usable(driver)
    except GearError as error:
        lines.append(f"not usable: {error}")
    lines.append(_host_memory())
    for device in there:
        lines += [_about(device), *(f"  {door}" for door in doors(driver, device))]
    return "\n".join(lines if there else [*lines, "no GPU: the driver sees none"])


def doors(driver: Driver, device: Device) -> list[str]:
    """Which ways to the memory of a device work."""
    driver.use(device.number)
    return [
        f"mapped host memory: {_tried(lambda: _try_mapping(driver))}",
        f"CUDA IPC: {_tried(lambda: _try_sharing(driver, device))}",
        f"GPUDirect RDMA: {_tried(lambda: _try_rdma(driver, device))}",
    ]


def _about(device: Device) -> str:
    capability = ".".join(map(str, device.capability))
    return (
        f"GPU {device.number}: {device.name}, {size_text(device.memory)}, compute capability {capability}, "
        f"{device.uuid}"
    )


def _packages() -> str:
    toolkit = choice.toolkit()
    told = [f"{name} {choice.version_of(name) or 'none'}" for name in ("numba", "numba-cuda", "torch")]
    return f"packages: {', '.join(told)}, CUDA toolkit {'.'.join(map(str, toolkit)) if toolkit else 'none'}"


def _host_memory() -> str:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    allowed = "unlimited" if soft == resource.RLIM_INFINITY else size_text(soft)
    stat = os.statvfs(SHARED)
    return f"limits: memlock {allowed}, {SHARED} {size_text(stat.f_bavail * stat.f_frsize)} free"


def _tried(attempt: Callable[[], str]) -> str:
    try:
        return attempt()
    except (GearError, subprocess.TimeoutExpired) as error:
        return f"no: {error}"


def _try_mapping(driver: Driver) -> str:
    memory = np.frombuffer(mmap.mmap(-1, _TRY_BYTES), np.uint8)
    address = int(memory.ctypes.data)
    mapped = driver.register(address, _TRY_BYTES)
    driver.unregister(address)
    return "works" if mapped == address else "works, under another address"


def _try_rdma(driver: Driver, device: Device) -> str:
    from gear.transport.rdma_gpu import trial

    if not device.gpudirect:
        return "no: the device cannot"
    door, why = trial(driver, device.number)
    return f"by {door.value}" + (f": {why}" if why else "")


def _try_sharing(driver: Driver, device: Device) -> str:
    address = driver.allocate(_TRY_BYTES, "the trial of CUDA IPC")
    try:
        command = [sys.executable, "-c", _OPEN, str(device.number), driver.export(address).hex()]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        driver.free(address)
    if ended.returncode:
        why = ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"]
        return f"no: another process could not open it: {why[-1]}"
    return "works"


def opens(number: int, handle: str) -> None:
    """In another process: open device memory of the one that asks."""
    driver = seam.driver()
    driver.use(number)
    driver.close(driver.open(bytes.fromhex(handle), _TRY_BYTES))

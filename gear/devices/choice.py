"""Which devices `--devices` means, and whether this machine's driver and packages can use them.

Nothing here imports a package of CUDA: versions are read from what is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from typing import TYPE_CHECKING

from gear.devices import seam
from gear.devices.mig import PREFIX, part_named
from gear.errors import DeviceError
from gear.storage.memory import size_text

if TYPE_CHECKING:
    from gear.devices.driver import Device, Driver

EXPECTED = "expected 'cpu', 'cpu:N' or GPU numbers like '0,1', their UUIDs, or 'cuda' for all that are visible"

_GPU = re.compile(r"\d{1,4}|(GPU|MIG)-[0-9A-Za-z\-/]{1,128}")
_TOOLKITS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
"""Packages whose version is that of the compiler which Numba uses."""


def choose(devices: str) -> tuple[Device, ...]:
    """The GPUs of a list like ``0,1``, ``GPU-5b2c...`` or ``cuda`` (all that CUDA_VISIBLE_DEVICES leaves).

    Raises
    ------
    DeviceError
        If one is not there or not usable; never is another one taken instead.
    """
    names = [name.strip() for name in devices.split(",")]
    if devices != "cuda" and not all(_GPU.fullmatch(name) for name in names):
        raise DeviceError(f"--devices {devices!r}: {EXPECTED}")
    try:
        driver, why = seam.driver(), ""
        there = driver.devices()
    except DeviceError as error:
        there, why = [], f": {error}"
    found = {key: device for device in there for key in (str(device.number), device.uuid)}
    if devices == "cuda":
        chosen, missing = there, [] if there else ["cuda"]
    else:
        for name in names:
            if name.startswith(PREFIX) and name not in found and (part := part_named(name)) is not None:
                found[name] = part
        missing = [name for name in names if name not in found]
        chosen = [found[name] for name in names if name in found]
    if missing:
        seen = ", ".join(f"{device.number} ({device.uuid})" for device in there) or "no GPU"
        raise DeviceError(
            f"--devices {devices}: GPU {', '.join(missing)} is not there (found: {seen}{why}); use --devices cpu or "
            "start on a machine that has it"
        )
    twice = sorted({device.uuid for device in chosen if chosen.count(device) > 1})
    if twice:
        raise DeviceError(f"--devices {devices}: {', '.join(twice)} is named twice; one process serves each GPU")
    check_usable(driver, f"--devices {devices}: ")
    return tuple(chosen)


def name_of(device: Device) -> str:
    """What chooses a device again: its number, or the UUID of a part of a card, which has none of its own."""
    return device.uuid if device.uuid.startswith(PREFIX) else str(device.number)


def check_usable(driver: Driver, owner: str = "") -> None:
    """Refuse to go on where packages are missing, or are too new for the driver.

    Raises
    ------
    DeviceError
        Naming what to install, or both versions.
    """
    if driver.simulated:
        return
    if importlib.util.find_spec("numba_cuda") is None:
        raise DeviceError(
            f"{owner}numba-cuda, which compiles for GPUs, is not installed; pip install 'gear-replay[cuda]' (CUDA 13), "
            "or 'gear-replay[cuda12]' for CUDA 12"
        )
    of_driver, of_toolkit = driver.version(), toolkit()
    if of_toolkit is not None and of_toolkit[0] > of_driver[0]:
        raise DeviceError(
            f"{owner}the driver knows CUDA {_dotted(of_driver)} and the toolkit that is installed is CUDA "
            f"{_dotted(of_toolkit)}; update the driver, or install packages for CUDA {of_driver[0]} "
            f"(pip install 'numba-cuda[cu{of_driver[0]}]', and torch for it)"
        )


def check_budget(device: Device, nbytes: int) -> None:
    """Refuse a budget that the device does not have.

    Raises
    ------
    DeviceError
        With both sizes.
    """
    if nbytes > device.memory:
        raise DeviceError(
            f"--device-memory {size_text(nbytes)} ({nbytes} bytes): GPU {device.number} ({device.name}) has "
            f"{size_text(device.memory)} ({device.memory} bytes); ask for less"
        )


def default_budget(device: Device) -> int:
    """80 % of what the device has."""
    return device.memory * 8 // 10


def toolkit() -> tuple[int, int] | None:
    """The version of the CUDA compiler that is installed for Numba, None if there is none."""
    for name in _TOOLKITS:
        text = version_of(name)
        if text:
            major, minor = text.split(".")[:2]
            return int(major), int(minor)
    return None


def version_of(package: str) -> str:
    """The version of an installed distribution, empty if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))

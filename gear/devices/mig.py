"""Parts of a card (MIG): a process sees one at most, so whoever chooses among several asks other processes."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from gear.devices import seam
from gear.devices.driver import Device
from gear.errors import DeviceError

PREFIX = "MIG-"

_ASK = "from gear.devices.mig import tell; tell()"
_SECONDS = 60.0


def tell() -> None:
    """Print the first device that this process sees."""
    sys.stdout.buffer.write(msgspec.json.encode(seam.driver().devices()[:1]))


def part_named(name: str) -> Device | None:
    """The part of that UUID, None if there is none; its number is one that only a process has which sees it alone.

    Raises
    ------
    DeviceError
        If the driver does not answer.
    """
    told = {**os.environ, "CUDA_VISIBLE_DEVICES": name}
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, env=told, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(f"{name}: the CUDA driver did not answer within {_SECONDS:g} s; look at nvidia-smi") from None
    if ended.returncode:
        return None
    found = msgspec.json.decode(ended.stdout, type=list[Device])
    return found[0] if found and found[0].uuid.lower() == name.lower() else None

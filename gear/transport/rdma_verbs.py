"""The one place that imports pyverbs, whose modules were renamed between releases.

Nothing of it is loaded before somebody asks for a device. Debian's `python3-pyverbs` has its constants in
`pyverbs.enums`, later releases in `pyverbs.libibverbs_enums`; everybody else here says `verbs().enums`.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gear.errors import DeviceError

PRESENT = Path("/sys/class/infiniband")
"""Where Linux lists RDMA devices: looking costs microseconds, loading pyverbs 50 ms."""

PACKAGE = (
    "pip install 'gear-replay[rdma]' needs a rdma-core that is as new as it; with Debian's Python: apt install "
    "python3-pyverbs ibverbs-providers"
)

_MODULES = {
    "Context": "device",
    "PD": "pd",
    "DmaBufMR": "mr",
    "MR": "mr",
    "MW": "mr",
    "MWBindInfo": "mr",
    "CQ": "cq",
    "AHAttr": "addr",
    "GlobalRoute": "addr",
    "GID": "addr",
    "QPCap": "qp",
    "QPAttr": "qp",
    "QPEx": "qp",
    "QPInitAttrEx": "qp",
    "RecvWR": "wr",
    "SGE": "wr",
    "PyverbsError": "pyverbs_error",
    "PyverbsRDMAError": "pyverbs_error",
}


def device_names() -> list[str]:
    """RDMA devices of this host, as the kernel names them; does not load pyverbs."""
    try:
        return sorted(os.listdir(PRESENT))
    except OSError:
        return []


@functools.cache
def verbs() -> Any:
    """What is used of pyverbs, in one namespace; `enums` are its constants.

    Raises
    ------
    DeviceError
        If it cannot be loaded: what to install.
    """
    try:
        try:
            enums = importlib.import_module("pyverbs.enums")
        except ModuleNotFoundError as error:
            if error.name != "pyverbs.enums":
                raise
            enums = importlib.import_module("pyverbs.libibverbs_enums")
        found = {name: getattr(importlib.import_module(f"pyverbs.{home}"), name) for name, home in _MODULES.items()}
    except (ImportError, AttributeError) as error:
        raise DeviceError(f"RDMA needs pyverbs, which cannot be loaded here ({error}); {PACKAGE}") from None
    return SimpleNamespace(enums=enums, **found)


def check() -> str:
    """The device to use: the one that ``GEAR_RDMA_DEVICE`` names, else the first.

    Raises
    ------
    DeviceError
        If there is none.
    """
    names, wanted = device_names(), os.environ.get("GEAR_RDMA_DEVICE", "")
    if not names:
        raise DeviceError(
            f"this host has no RDMA device ({PRESENT} is empty); leave path= away, or load the driver of the device"
        )
    if wanted and wanted not in names:
        raise DeviceError(f"GEAR_RDMA_DEVICE: expected one of {', '.join(names)}, got {wanted!r}")
    return wanted or names[0]

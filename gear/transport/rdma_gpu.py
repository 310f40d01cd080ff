"""How an RDMA adapter reaches the memory of a GPU: tried, not looked up, since driver, module and adapter have a say.

No machine with both has run this yet, and no batch uses it: rows that come by RDMA lie in memory of the host, from
which a batch is copied to a GPU. It is where a way without that copy would begin.
"""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from gear.errors import DeviceError, GearError
from gear.transport.rdma_device import device, enter, leave
from gear.transport.rdma_verbs import check, verbs

if TYPE_CHECKING:
    from gear.devices.driver import Driver

TRIAL = 2 << 20
"""Bytes of device memory that a trial registers: what drivers export is made of pages of this size."""


class Door(enum.Enum):
    """A way to device memory, the best first."""

    DMABUF = "dma-buf"
    PEER = "nvidia-peermem"
    STAGING = "page-locked memory of the host"


class Registered(NamedTuple):
    """Device memory that an adapter reaches.

    region : its registration, with `lkey` and `rkey`.
    base : what stands for its first byte in requests.
    """

    door: Door
    region: Any
    base: int


def register(driver: Driver, address: int, nbytes: int, access: int) -> Registered:
    """Register memory of the GPU in use, by the first door that opens.

    Raises
    ------
    DeviceError
        If none does: what each said. Then rows go through memory of the host.
    """
    v, said = verbs(), []
    try:
        descriptor = driver.dmabuf(address, nbytes)
    except DeviceError as error:
        said.append(f"{Door.DMABUF.value}: {error}")
    else:
        try:
            region = v.DmaBufMR(device().domain, nbytes, access, dmabuf=descriptor, offset=0)
            return Registered(Door.DMABUF, region, 0)  # in requests it begins at the offset
        except v.PyverbsError as error:
            said.append(f"{Door.DMABUF.value}: {error}")
        finally:
            os.close(descriptor)  # the registration holds on to it
    try:
        return Registered(Door.PEER, v.MR(device().domain, nbytes, access, address=address), address)
    except v.PyverbsError as error:
        said.append(f"{Door.PEER.value}: {error}")
    raise DeviceError(f"the adapter does not reach memory of the GPU ({'; '.join(said)})")


def trial(driver: Driver, number: int) -> tuple[Door, str]:
    """By which door the adapter reaches memory of a GPU, and why not by a better one.

    Raises
    ------
    DeviceError
        If there is no adapter that can be used, or no device memory.
    """
    check()
    enter()
    try:
        with driver.at(number):
            address = driver.allocate(TRIAL, "the trial of RDMA")
            try:
                made = register(driver, address, TRIAL, verbs().enums.IBV_ACCESS_LOCAL_WRITE)
            except DeviceError as error:
                return Door.STAGING, str(error)
            else:
                made.region.close()
                return made.door, ""
            finally:
                driver.free(address)
    finally:
        leave()


def told() -> str:
    """What `gear devices` says of this host's adapter."""
    from gear.transport.rdma_trial import writing

    try:
        check()
        enter()
    except GearError as error:
        return f"no: {error}"
    try:
        one = device()
        return f"{one.name}, address {one.gid}; writers reach {writing().value}"
    except GearError as error:
        return f"no: {error}"
    finally:
        leave()

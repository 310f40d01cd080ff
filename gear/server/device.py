"""The GPU of a shard: this process sees that one alone, as device 0."""

from __future__ import annotations

import os

from gear.errors import DeviceError


def take_device(uuid: str) -> None:
    """Let everything in this process that asks for a GPU find this one.

    Raises
    ------
    DeviceError
        If it is not there any more, or packages do not fit the driver.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid  # read by the driver when it starts, which it has not yet
    from gear.devices import choice, seam

    driver = seam.driver()
    there = driver.devices()
    if [device.uuid for device in there] != [uuid]:
        raise DeviceError(f"GPU {uuid} is not there any more; the driver sees {[d.uuid for d in there] or 'none'}")
    choice.check_usable(driver)
    driver.use(0)

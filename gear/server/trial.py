"""A trial of the device: does a memory window let a peer write to what it shows, and to nothing else?

Some do not look: the software device of Linux checks a write through a window against the whole registration under it
(seen in 6.1; `check_rkey` in drivers/infiniband/sw/rxe/rxe_resp.c). There a writer would have to be trusted with every
row of the table.
"""

from __future__ import annotations

import functools
import os

import numpy as np

from gear.server.peer import PAGE, next_key
from gear.transport.rdma_chains import Transfer
from gear.transport.rdma_device import device
from gear.transport.rdma_queue import Broken, Key, QueuePair
from gear.transport.rdma_verbs import verbs

TRUST = "GEAR_RDMA_WRITES"
"""Variable of the server: ``trusted`` lets clients write also where windows do not confine them."""


@functools.cache
def confines() -> bool:
    """Whether windows hold on this device; both ends of the trial are in this process.

    Raises
    ------
    DeviceError, Broken
        If windows do not work at all.
    """
    v = verbs()
    e, mine = v.enums, device()
    memory, source = np.zeros(2 * PAGE, np.uint8), np.ones(PAGE, np.uint8)
    under = mine.register(memory, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_MW_BIND)
    near = mine.register(source, e.IBV_ACCESS_LOCAL_WRITE)
    window = v.MW(mine.domain, e.IBV_MW_TYPE_2)
    owner, writer = QueuePair(mine), QueuePair(mine)
    try:
        owner.connect(writer.end, e.IBV_ACCESS_REMOTE_WRITE)
        writer.connect(owner.end, e.IBV_ACCESS_LOCAL_WRITE)
        key = next_key(window)
        owner.bind([(window, key, v.MWBindInfo(under, memory.ctypes.data, PAGE, e.IBV_ACCESS_REMOTE_WRITE))])
        far, own = Key(memory.ctypes.data, key), (source.ctypes.data, near.lkey)
        writer.write([Transfer(0, 0, PAGE)], own, far)
        try:
            writer.write([Transfer(0, PAGE, PAGE)], own, far)
        except Broken:
            return True
        return False
    finally:
        for one in (writer, owner, window, near, under):
            one.close()


def may_write() -> bool:
    """Whether clients are let write rows themselves."""
    return os.environ.get(TRUST, "") == "trusted" or confines()

"""A trial of the device: does a memory window let a peer write to what it shows, and to nothing else?

Some do not look: the software device of Linux checks a write through a window against the whole registration under it
(seen in 6.1; `check_rkey` in drivers/infiniband/sw/rxe/rxe_resp.c). There a writer would have to be trusted with every
row of the table; it gets an inbox instead.
"""

from __future__ import annotations

import enum
import functools
import logging
import os

import numpy as np

from gear.errors import DeviceError, GearError
from gear.transport.rdma_chains import Transfer
from gear.transport.rdma_device import PAGE, device, next_key
from gear.transport.rdma_queue import Broken, Key, QueuePair
from gear.transport.rdma_verbs import verbs

logger = logging.getLogger(__name__)

TRUST = "GEAR_RDMA_WRITES"
"""Variable of the server: ``trusted`` lets clients write to their leases also where windows do not confine them there,
``inbox`` gives them inboxes where they do."""


class Writing(enum.Enum):
    """Where clients write rows.

    To their leases; to an inbox through a window of their queue pair's own; to one whose key is all that guards it.
    """

    LEASES = "what they leased"
    WINDOW = "an inbox each"
    KEY = "an inbox each, guarded by its key alone"


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
    window = mine.window()
    under = mine.register(memory, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_MW_BIND)
    near = mine.register(source, e.IBV_ACCESS_LOCAL_WRITE)
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


def writing() -> Writing:
    """Where clients are let write rows.

    Raises
    ------
    DeviceError
        If the variable says anything else.
    """
    wanted = os.environ.get(TRUST, "")
    if wanted not in ("", "trusted", "inbox"):
        raise DeviceError(f"{TRUST}: expected 'trusted', 'inbox' or nothing, got {wanted!r}")
    if wanted == "trusted":
        return Writing.LEASES
    try:
        holds = confines()
    except GearError as error:
        logger.warning("RDMA: windows do not work here, clients write their rows to inboxes: %s", error)
        return Writing.KEY
    return Writing.LEASES if holds and not wanted else Writing.WINDOW

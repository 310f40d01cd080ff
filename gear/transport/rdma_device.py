"""A process's RDMA device: opened once, with one protection domain in which its memory is registered.

Registering pins pages and takes time by the gigabyte; it is done once for memory that lives as long as the process,
never for a request. A fork's child must not use what its parent opened: it opens the device anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from gear.errors import DeviceError
from gear.transport.rdma_verbs import check, verbs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PORT, PAGE = 1, 4096
_MAPPED_IPV4 = "0000:0000:0000:0000:0000:ffff:"
_MOST_GIDS = 64

_lock = threading.Lock()
_opened: dict[int, Device] = {}


class Device:
    """The device, its protection domain, and how others address it.

    Raises
    ------
    DeviceError
        If there is none, or its port is down.
    """

    def __init__(self) -> None:
        self.name, self.users = check(), 0
        v = verbs()
        try:
            self.context = v.Context(name=self.name)
            port = self.context.query_port(PORT)
            self.domain = v.PD(self.context)
            self.reads = max(1, min(16, self.context.query_device().max_qp_rd_atom))
            self.gid_index, self.gid = self._gid(port.gid_tbl_len)
        except v.PyverbsError as error:
            raise DeviceError(f"RDMA device {self.name} cannot be used: {error}") from None
        if port.state != v.enums.IBV_PORT_ACTIVE:
            raise DeviceError(f"port {PORT} of RDMA device {self.name} is not active; bring its link up")
        self.mtu, self.lid = int(port.active_mtu), int(port.lid)

    def _gid(self, count: int) -> tuple[int, str]:
        """Index and text of the address to use: one made of an IPv4 address, which RoCEv2 routes, else the first."""
        v, first = verbs(), None
        for index in range(min(count, _MOST_GIDS)):
            try:
                gid = str(self.context.query_gid(PORT, index).gid)
            except v.PyverbsError:
                continue
            if not gid.replace(":", "").strip("0"):
                continue
            if gid.startswith(_MAPPED_IPV4):
                return index, gid
            first = first or (index, gid)
        if first is None:
            raise DeviceError(f"RDMA device {self.name} has no address; give its network interface one")
        return first

    def register(self, memory: npt.NDArray[np.uint8], access: int) -> Any:
        """A memory region over an array, which must stay alive as long as it.

        Raises
        ------
        DeviceError
            If the pages cannot be pinned.
        """
        v = verbs()
        try:
            return v.MR(self.domain, memory.nbytes, access, address=memory.ctypes.data)
        except v.PyverbsError as error:
            raise DeviceError(
                f"RDMA device {self.name} cannot register {memory.nbytes} bytes: {error}; raise the limit of locked "
                "memory (ulimit -l unlimited)"
            ) from None

    def window(self) -> Any:
        """A memory window of type 2, to be bound.

        Raises
        ------
        DeviceError
            If the device has none, or no more.
        """
        v = verbs()
        try:
            return v.MW(self.domain, v.enums.IBV_MW_TYPE_2)
        except v.PyverbsError as error:
            raise DeviceError(f"RDMA device {self.name} makes no memory window: {error}") from None

    def close(self) -> None:
        """Unregister everything and close the device; nothing that was made with it may be used any more."""
        with contextlib.suppress(Exception):  # the device may be gone
            self.domain.close()
            self.context.close()


def enter() -> None:
    """Use the device of the calling process from now on; see `device`."""
    device().users += 1


def leave() -> None:
    """Use it no more. When nobody does it is closed: the end of the interpreter would end its parts in any order."""
    with _lock:
        mine = _opened.get(os.getpid())
        if mine is not None:
            mine.users -= 1
            if mine.users <= 0:
                del _opened[os.getpid()]
                mine.close()


def device() -> Device:
    """The device of the calling process, opened when it is first needed.

    Raises
    ------
    DeviceError
        If there is none that can be used.
    """
    with _lock:
        mine = _opened.get(os.getpid())
        if mine is None:
            mine = _opened[os.getpid()] = Device()
        return mine


def next_key(window: Any) -> int:
    """The key to bind a window with: each binding changes the tag in the lowest byte."""
    return int(window.rkey & ~0xFF) | ((window.rkey + 1) & 0xFF)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # what the parent opened stays in the table: it is neither used nor closed here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

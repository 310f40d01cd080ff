"""One client's queue pairs at its shard, the windows through which it writes, and the tables' registered memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gear.storage.memory import anonymous
from gear.transport.rdma_device import PAGE, device, next_key
from gear.transport.rdma_queue import End, QueuePair
from gear.transport.rdma_verbs import verbs

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.server.tables import Hosted

ROOM = 4 << 20
"""Bytes of an inbox: a few messages of commits. Trajectories that are longer go over TCP."""


class Regions:
    """The memory of tables, registered once each, when a client first reads or writes it by RDMA.

    Two registrations: the one whose key readers get allows nothing but reading; the other can only be written through
    windows bound over parts of it, its own key never leaves the process.
    """

    def __init__(self) -> None:
        self._readable: dict[int, tuple[Hosted, Any]] = {}
        self._writable: dict[int, tuple[Hosted, Any]] = {}

    def readable(self, hosted: Hosted) -> Any:
        """The region to read the rows of a table."""
        return self._region(self._readable, hosted, verbs().enums.IBV_ACCESS_REMOTE_READ)

    def writable(self, hosted: Hosted) -> Any:
        """The region over which windows are bound."""
        e = verbs().enums
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_MW_BIND
        return self._region(self._writable, hosted, access)

    def _region(self, kept: dict[int, tuple[Hosted, Any]], hosted: Hosted, access: int) -> Any:
        known = kept.get(hosted.index)
        if known is not None and known[0] is hosted:
            return known[1]
        layout, segment = hosted.stored.layout, hosted.stored.segment
        rows = segment[layout.regions["arena"].offset :]  # the directory is nobody's to read
        np.add.reduce(rows[::PAGE], dtype=np.uint8)  # pages that are mapped are pinned in a hundredth of the time
        region = device().register(rows, access)
        kept[hosted.index] = hosted, region
        return region

    def close(self) -> None:
        """Unregister everything."""
        for kept in (self._readable, self._writable):
            for _, region in kept.values():
                region.close()
            kept.clear()


class Inbox:
    """Memory of one client's own, from which the server copies what it wrote there.

    Attributes
    ----------
    memory : uint8[ROOM]
    region, window : its registration, and the window over it, if any.
    address, key : by which the client writes to it.
    """

    def __init__(self) -> None:
        e = verbs().enums
        self.memory = anonymous(ROOM, "a client's inbox for rows that come by RDMA")
        self.memory[::PAGE] = 0
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_MW_BIND
        self.region = device().register(self.memory, access)
        self.window: Any = None
        self.address, self.key = int(self.memory.ctypes.data), int(self.region.rkey)

    def close(self) -> None:
        """Nothing is written there any more; who still reads it keeps the memory."""
        if self.window is not None:
            self.window.close()
        self.region.close()


class Peer:
    """Queue pairs connected to the client's.

    Parameters
    ----------
    other, back : End
        The client's: of the pair over which it reads and writes, and of the one over which rows are pushed to it.

    Attributes
    ----------
    end : this end of the first.
    back : the second.
    pushes : those that are under way over it.
    inbox : where the client writes rows if windows over its leases would not hold it; None if they do.

    Raises
    ------
    DeviceError
        If this host has no device, or the other one cannot be reached.
    """

    def __init__(self, other: End, back: End) -> None:
        e = verbs().enums
        self._device, self.pushes = device(), 0
        self._pair = QueuePair(self._device)
        self.end = self._pair.end
        self.inbox: Inbox | None = None
        self._open: dict[tuple[int, int], tuple[Any, int]] = {}  # by table and block: the window over it, and its key
        try:
            self.back = QueuePair(self._device)
        except BaseException:
            self._pair.close()
            raise
        try:
            self._pair.connect(other, e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE)
            self.back.connect(back, 0)
        except BaseException:
            self.close()
            raise

    def open(self, hosted: Hosted, region: Any, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Let the client write to leased blocks: for each run of them its length, address and key, int64[N, 3].

        Raises
        ------
        DeviceError
            If there are no more windows; then none is open.
        Broken
        """
        v, layout = verbs(), hosted.stored.layout
        e, size = v.enums, layout.block_bytes
        origin = hosted.stored.segment.ctypes.data + layout.regions["arena"].offset
        begins = np.flatnonzero(np.diff(blocks, prepend=blocks[:1] - 2) != 1).tolist()
        ends = [*begins[1:], len(blocks)]
        bindings, said, windows = [], [], list[Any]()
        try:
            for _ in begins:
                windows.append(self._device.window())
        except BaseException:
            for window in windows:
                window.close()
            raise
        for window, begin, end in zip(windows, begins, ends, strict=True):
            key = next_key(window)
            address, nbytes = origin + int(blocks[begin]) * size, (end - begin) * size
            bindings.append((window, key, v.MWBindInfo(region, address, nbytes, e.IBV_ACCESS_REMOTE_WRITE)))
            said.append((end - begin, address, key))
            for block in blocks[begin:end].tolist():
                self._open[hosted.index, block] = window, key
        self._pair.bind(bindings)
        return np.array(said, np.int64).reshape(-1, 3)

    def shut(self, table: int, blocks: npt.NDArray[np.int32]) -> None:
        """End the client's access to blocks, and to those that share a window with them, before this returns.

        Raises
        ------
        Broken
            If that cannot be done so: destroy the pair.
        """
        found = {key: window for b in blocks.tolist() if (w := self._open.pop((table, b), None)) for window, key in [w]}
        if not found:
            return
        self._open = {place: one for place, one in self._open.items() if one[1] not in found}
        self._pair.invalidate(list(found))
        for window in found.values():
            window.close()

    def open_inbox(self, windowed: bool) -> None:
        """Give the client an inbox; `windowed`: through a window that only its queue pair can use.

        Raises
        ------
        DeviceError, InsufficientMemory
            Then it has none.
        Broken
        """
        inbox = Inbox()
        if windowed:
            try:
                window = self._device.window()
            except BaseException:
                inbox.close()
                raise
            inbox.window, inbox.key = window, next_key(window)
        self.inbox = inbox
        if windowed:
            v = verbs()
            shown = v.MWBindInfo(inbox.region, inbox.address, len(inbox.memory), v.enums.IBV_ACCESS_REMOTE_WRITE)
            self._pair.bind([(window, inbox.key, shown)])

    def close(self) -> None:
        """Destroy the queue pairs."""
        self._pair.close()
        self.back.close()
        if self.inbox is not None:
            self.inbox.close()
        for window in {key: window for window, key in self._open.values()}.values():
            window.close()
        self._open.clear()

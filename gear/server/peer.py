"""One client's queue pair at its shard, the windows through which it writes, and the tables' registered memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gear.transport.rdma_device import device
from gear.transport.rdma_queue import End, QueuePair
from gear.transport.rdma_verbs import verbs

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.server.tables import Hosted

PAGE = 4096


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


def next_key(window: Any) -> int:
    """The key to bind a window with: each binding changes the tag in the lowest byte."""
    return int(window.rkey & ~0xFF) | ((window.rkey + 1) & 0xFF)


class Peer:
    """A queue pair connected to the client's.

    Parameters
    ----------
    other : End
        The client's.

    Raises
    ------
    DeviceError
        If this host has no device, or the other one cannot be reached.
    """

    def __init__(self, other: End) -> None:
        e = verbs().enums
        self._device = device()
        self._pair = QueuePair(self._device)
        self.end = self._pair.end
        try:
            self._pair.connect(other, e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE)
        except BaseException:
            self._pair.close()
            raise
        self._open: dict[tuple[int, int], tuple[Any, int]] = {}  # by table and block: the window over it, and its key

    def open(self, hosted: Hosted, region: Any, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Let the client write to leased blocks: for each run of them its length, address and key, int64[N, 3].

        Raises
        ------
        Broken
        """
        v, layout = verbs(), hosted.stored.layout
        e, size = v.enums, layout.block_bytes
        origin = hosted.stored.segment.ctypes.data + layout.regions["arena"].offset
        begins = np.flatnonzero(np.diff(blocks, prepend=blocks[:1] - 2) != 1).tolist()
        ends = [*begins[1:], len(blocks)]
        bindings, said = [], []
        for begin, end in zip(begins, ends, strict=True):
            window = v.MW(self._device.domain, e.IBV_MW_TYPE_2)
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

    def close(self) -> None:
        """Destroy the queue pair."""
        self._pair.close()
        for window in {key: window for window, key in self._open.values()}.values():
            window.close()
        self._open.clear()

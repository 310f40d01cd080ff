"""Where the blocks of a checkpoint go: the table's arenas, on the host and on a device, or the host's alone.

A block is saved as it travels, with its columns on a device behind the others. It is put back as it is, in two parts,
or column by column where the table is to lie on the host now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.devices.arena import Arena
    from gear.schema import Table
    from gear.storage.layout import Layout

_strided = np.lib.stride_tricks.as_strided


def on_host(table: Table) -> Table:
    """The same table with all of its columns on the host."""
    if all(column.placement == "host" for column in table.columns):
        return table
    return replace(table, columns=tuple(replace(column, placement="host") for column in table.columns))


def places(saved: Layout, layout: Layout, segment: npt.NDArray[np.uint8], arena: Arena | None) -> list[Any]:
    """What `rowfiles.scatter` fills with saved blocks: by number, together as wide as one of them.

    Parameters
    ----------
    saved, layout : the table's layout when it was saved, and now.
    segment, arena : where it lies now.
    """
    region = layout.regions["arena"]
    blocks = segment[region.offset : region.offset + region.nbytes].reshape(layout.blocks, layout.block_bytes)
    if saved.device_block_bytes and not layout.device_block_bytes:
        return [_ByColumn(saved, layout, blocks)]
    return [blocks] if arena is None else [blocks, arena.blocks]


class _ByColumn:
    """Blocks of the host, filled from blocks in which the columns lie otherwise."""

    def __init__(self, saved: Layout, layout: Layout, blocks: npt.NDArray[np.uint8]) -> None:
        self.shape, self._steps = (layout.blocks, saved.full_block_bytes), layout.block_steps
        self._columns = [
            (saved.offset_of(then), then.stride, then.width, self._strip(blocks, now.offset, now.stride, now.width))
            for name, now in layout.placements.items()
            if now.column.per == "step"
            for then in (saved.placements[name],)
        ]

    def _strip(self, blocks: npt.NDArray[np.uint8], offset: int, stride: int, width: int) -> npt.NDArray[np.uint8]:
        """A column of blocks, uint8[N, block_steps, width]."""
        shape, strides = (len(blocks), self._steps, width), (blocks.strides[0], stride, 1)
        return _strided(blocks[:, offset:], shape, strides)

    def __setitem__(self, numbers: npt.NDArray[np.integer], rows: npt.NDArray[np.uint8]) -> None:
        for offset, stride, width, strip in self._columns:
            strip[numbers] = self._strip(rows, offset, stride, width)

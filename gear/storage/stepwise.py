"""Writing rows of a per-step column into trajectories that are stored: late columns, and appends to open trajectories.

On the host compiled code does it; a column on a device is written by copies, one for a run of rows in a block. All is
there when the call returns. Single writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.storage import fields as f
from gear.storage import late

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from gear.storage.layout import Placement
    from gear.storage.table import StoredTable


def write_steps(
    stored: StoredTable,
    place: Placement,
    found: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    first: int,
    source: npt.NDArray[np.uint8],
) -> None:
    """Write rows of a column, from row `first` of each trajectory on; see `late.write_steps`.

    Parameters
    ----------
    found, lengths : int64[N]
        Slots, -1 to leave rows out, and how many rows there are for each.
    source : uint8[sum of lengths * width]
    """
    if stored.arena is None or place.column.placement == "host":
        at = place.offset, place.stride, place.width
        late.write_steps(stored.segment, stored.params, found, lengths, first, *at, source.ctypes.data)
        return
    strip = stored.arena.strip(place.offset, place.stride, np.dtype(np.uint8), (place.width,))
    nothing = np.zeros(place.width, np.uint8)  # of a final row that is there already
    strip.write_from(_pieces(stored, place.width, found, lengths, first, source.ctypes.data, nothing.ctypes.data))


def _pieces(
    stored: StoredTable,
    width: int,
    found: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    first: int,
    source: int,
    nothing: int,
) -> Iterator[tuple[tuple[int, slice], int]]:
    """Where runs of rows go, (block, rows of it), and the address of each."""
    steps = stored.layout.block_steps
    slots, blocks = (stored.layout.view(stored.segment, name) for name in ("slots", "blocks"))
    for slot, rows in zip(found.tolist(), lengths.tolist(), strict=True):
        if slot < 0:
            source += rows * width
            continue
        ordinal, row = divmod(first, steps)
        block = int(slots[slot, f.LAST if ordinal else f.FIRST])
        while int(blocks[block, f.ORDINAL]) > ordinal:
            block = int(blocks[block, f.PREVIOUS])
        while rows > 0:
            if row == steps:
                block, row = int(blocks[block, f.NEXT]), 0
            part = min(rows, steps - row)
            yield (block, slice(row, row + part)), source
            source, rows, row = source + part * width, rows - part, row + part
        if slots[slot, f.FLAGS] & f.HAS_FINAL:
            if row == steps:
                block, row = int(blocks[block, f.NEXT]), 0
            yield (block, slice(row, row + 1)), nothing

"""Which line of history the memory of a table belongs to: what tells whether a block is the one that was saved.

A block's generation says which rows it holds only along one line of history. Memory that was restored from an older
checkpoint goes on with generations that were used before, for other rows: it gets a line of its own. The number
stands in the header of the segment, among what its checksum leaves out.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from gear.storage.format import MAGIC

if TYPE_CHECKING:
    import numpy.typing as npt

_AT = 8 + 8 * 12


def line_of(segment: npt.NDArray[np.uint8]) -> int:
    """The line of a table's memory; a table that has none yet gets one."""
    field = segment[_AT : _AT + 8].view(np.int64)
    if not field[0]:
        field[0] = secrets.randbits(62) | 1
    return int(field[0])


def set_line(segment: npt.NDArray[np.uint8], line: int) -> None:
    """Go on with that line; 0: with a new one."""
    segment[_AT : _AT + 8].view(np.int64)[0] = line


def hide(segment: npt.NDArray[np.uint8]) -> None:
    """Have the segment taken for one that was never finished, until `finish`."""
    segment[: len(MAGIC)] = 0


def finish(segment: npt.NDArray[np.uint8]) -> None:
    """The segment holds all that it shall hold."""
    segment[: len(MAGIC)] = np.frombuffer(MAGIC, np.uint8)

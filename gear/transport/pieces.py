"""Cutting a batch into pieces that travel one by one, and putting them together again.

A piece is some whole items, laid out by a plan of its own: the same views, fewer items. Both ends make that plan
from the table's layout, so that no plan ever travels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.errors import ProtocolError
from gear.transport.messages import PIECE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gear.query import Plan
    from gear.transport.channel import Buffer

FRAME = 32 << 20
"""Bytes per buffer of a message at most."""


def per_piece(plan: Plan) -> int:
    """Items per piece, so that all pieces of the batch are about equally large."""
    pieces = max(1, -(-plan.nbytes // PIECE))
    return max(1, -(-plan.size // pieces))


def too_large(plan: Plan) -> bool:
    """Whether a piece is larger than anybody needs to ask for."""
    return plan.size > 1 and plan.nbytes > 2 * PIECE


def split(memory: memoryview, unit: int = 1) -> list[memoryview]:
    """The memory as buffers of a message, whole units of so many bytes each."""
    step = max(1, FRAME // unit) * unit
    return [memory[at : at + step] for at in range(0, len(memory), step)]


def place(piece: Plan, plan: Plan, first: int, frames: Sequence[Buffer], out: npt.NDArray[np.uint8]) -> None:
    """Copy a piece that begins with item `first` to where its columns lie in the batch `out`, uint8[plan.nbytes].

    Raises
    ------
    ProtocolError
        If it is not as large as its plan says.
    """
    parts = [np.frombuffer(frame, np.uint8) for frame in frames]
    came = sum(len(part) for part in parts)
    if came != piece.nbytes:
        raise ProtocolError(f"expected {piece.nbytes} bytes of {piece.size} items from the server, got {came}")
    begin = 0
    for part in parts:
        end = begin + len(part)
        if piece.size == plan.size:
            out[begin:end] = part
        else:
            for (at, nbytes), (to, each) in zip(_regions(piece), _regions(plan), strict=True):
                low, high = max(at, begin), min(at + nbytes * piece.size, end)
                if low < high:
                    start = to + first * each + low - at
                    out[start : start + high - low] = part[low - begin : high - begin]
        begin = end


def _regions(plan: Plan) -> list[tuple[int, int]]:
    """(offset, bytes per item) of each column and of the mask."""
    regions = [(field.offset, field.nbytes // plan.size) for field in plan.fields]
    return regions if plan.mask_offset < 0 else [*regions, (plan.mask_offset, plan.length)]

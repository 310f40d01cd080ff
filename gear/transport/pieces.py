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

    from gear.plan import Plan
    from gear.transport.channel import Buffer

MOST = 1 << 30
"""Bytes of views of one item at most: a view may show any number of rows."""

FRAME = 32 << 20
"""Bytes per buffer of a message at most."""


def _pieces(plan: Plan) -> int:
    return max(1, -(-plan.nbytes // PIECE))


def along(plan: Plan, count: int) -> bool:
    """Whether the rows of so many items of the batch may come with their selection: twice a piece, as a message."""
    return count * plan.nbytes <= 2 * PIECE * plan.size


def cut(plan: Plan, lengths: npt.NDArray[np.int32]) -> list[slice]:
    """The items of each piece, so that all pieces of the batch are about equally large.

    lengths: int32[N] of the batch's items, or of those that come from one shard.
    """
    pieces, count = _pieces(plan), len(lengths)
    if not plan.packed:
        most = max(1, -(-plan.size // pieces))
        return [slice(begin, min(begin + most, count)) for begin in range(0, count, most)]
    steps = np.cumsum(np.minimum(lengths, plan.length), dtype=np.int64)
    wanted = np.arange(1, pieces) * plan.total // pieces
    bounds = np.unique(np.concatenate(([0], np.searchsorted(steps, wanted, "right"), [count])))
    return [slice(int(a), int(b)) for a, b in zip(bounds, bounds[1:], strict=False)]


def steps_of(plan: Plan, lengths: npt.NDArray[np.int32]) -> int:
    """`Plan.total` of a batch of these items laid out as `plan` does."""
    return int(np.minimum(lengths, plan.length).sum(dtype=np.int64)) if plan.packed else -1


def too_large(plan: Plan) -> bool:
    """Whether a piece is larger than anybody needs to ask for."""
    return (plan.size > 1 and plan.nbytes > 2 * PIECE + longest(plan)) or (plan.viewed and plan.nbytes > MOST)


def longest(plan: Plan) -> int:
    """Bytes of a packed piece's longest item at most: pieces of whole items may be that much larger."""
    if not plan.packed:
        return 0
    return sum(field.nbytes // max(1, plan.total) for field in plan.regions if field.timed) * plan.length


def split(memory: memoryview, unit: int = 1) -> list[memoryview]:
    """The memory as buffers of a message, whole units of so many bytes each."""
    step = max(1, FRAME // unit) * unit
    return [memory[at : at + step] for at in range(0, len(memory), step)]


def places(piece: Plan, plan: Plan, first: int, out: npt.NDArray[np.uint8], before: int = 0) -> tuple[memoryview, ...]:
    """Where the bytes of a piece that begins with item `first` belong in the batch `out`, uint8[plan.nbytes], in turn.

    before: steps of the items before it, if they are packed.
    """
    if piece.size == plan.size:
        return (out.data[: piece.nbytes],)
    found, at = [], 0
    for mine, whole in zip(piece.regions, plan.regions, strict=True):
        done = before * whole.nbytes // plan.total if plan.packed and whole.timed else first * whole.nbytes // plan.size
        start = whole.offset + done
        found += [memoryview(bytearray(mine.offset - at)), out.data[start : start + mine.nbytes]]
        at = mine.offset + mine.nbytes
    return (*found, memoryview(bytearray(piece.nbytes - at)))


def place(
    piece: Plan, plan: Plan, first: int, frames: Sequence[Buffer], out: npt.NDArray[np.uint8], before: int = 0
) -> None:
    """Copy a piece that begins with item `first` to where its columns lie in the batch `out`, uint8[plan.nbytes].

    before: steps of the items before it, if they are packed.

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
            for mine, whole in zip(piece.regions, plan.regions, strict=True):
                low, high = max(mine.offset, begin), min(mine.offset + mine.nbytes, end)
                if low < high:
                    packed = plan.packed and whole.timed
                    done = before * whole.nbytes // plan.total if packed else first * whole.nbytes // plan.size
                    start = whole.offset + done + low - mine.offset
                    out[start : start + high - low] = part[low - begin : high - begin]
        begin = end

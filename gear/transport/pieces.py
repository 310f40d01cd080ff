"""Cutting a batch into pieces that travel one by one, and putting them together again.

A piece is some whole items, laid out by a plan of its own: the same views, fewer items. Both ends make that plan
from the table's layout, so that no plan ever travels. A piece is asked for by itself. Over a lane it is cut once more,
into grains: they are gathered into the same small memory, each sent while it is still in a core's cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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

LARGEST = 16 << 20
"""The same of a piece at most: over a lane, where nobody keeps it, a larger one costs less."""

GRAIN, PACKED_GRAIN = 1 << 18, 1 << 20
"""Bytes of a grain at most; of packed items, each of whose grains has a plan of its own, a multiple."""

FRAME = 32 << 20
"""Bytes per buffer of a message at most."""


def most(laned: bool) -> int:
    """Bytes of a piece that is asked for by itself."""
    return LARGEST if laned else PIECE


def along(plan: Plan, count: int, laned: bool) -> bool:
    """Whether the rows of so many items of the batch may come with their selection: as a message twice a piece."""
    return count * plan.nbytes <= (most(True) if laned else 2 * most(False)) * plan.size


def grains(plan: Plan, lengths: npt.NDArray[np.int32]) -> list[slice]:
    """The items of each grain of a piece."""
    return cut(plan, lengths, PACKED_GRAIN if plan.packed else GRAIN)


def cut(plan: Plan, lengths: npt.NDArray[np.int32], nbytes: int) -> list[slice]:
    """The items of each piece of about so many bytes, so that all are about equally large.

    lengths: int32[N] of the batch's items, or of those that come from one shard.
    """
    pieces, count = max(1, -(-plan.nbytes // nbytes)), len(lengths)
    if not plan.packed:
        most = max(1, -(-plan.size // pieces))
        return [slice(begin, min(begin + most, count)) for begin in range(0, count, most)]
    steps = np.cumsum(np.minimum(lengths, plan.length), dtype=np.int64)
    wanted = np.arange(1, pieces) * plan.total // pieces
    bounds = np.unique(np.concatenate(([0], np.searchsorted(steps, wanted, "right"), [count])))
    return [slice(int(a), int(b)) for a, b in zip(bounds, bounds[1:], strict=False)]


def too_large(plan: Plan) -> bool:
    """Whether a piece is larger than anybody needs to ask for."""
    return (plan.size > 1 and plan.nbytes > LARGEST + longest(plan)) or (plan.viewed and plan.nbytes > MOST)


def longest(plan: Plan) -> int:
    """Bytes of a packed piece's longest item at most: pieces of whole items may be that much larger."""
    if not plan.packed:
        return 0
    return sum(field.nbytes // max(1, plan.total) for field in plan.regions if field.timed) * plan.length


def split(memory: memoryview, unit: int = 1) -> list[memoryview]:
    """The memory as buffers of a message, whole units of so many bytes each."""
    step = max(1, FRAME // unit) * unit
    return [memory[at : at + step] for at in range(0, len(memory), step)]


class Piece(NamedTuple):
    """Some items of a selection, and where they go: as number `first` of the batch, behind so many steps if packed."""

    plan: Plan
    items: slice
    first: int
    before: int


def runs(pieces: Sequence[Piece], plan: Plan) -> list[tuple[int, int]]:
    """Where the bytes of pieces, one behind the other, belong in the batch: begins and ends; (-N, 0): N go nowhere."""
    found: list[tuple[int, int]] = []
    for piece in pieces:
        if piece.plan.size == plan.size:
            found.append((0, plan.nbytes))
            continue
        at = 0
        for mine, whole in zip(piece.plan.regions, plan.regions, strict=True):
            if not mine.nbytes:
                continue
            if mine.offset > at:
                found.append((at - mine.offset, 0))
            packed = plan.packed and whole.timed
            done = piece.before * whole.nbytes // plan.total if packed else piece.first * whole.nbytes // plan.size
            found.append((whole.offset + done, whole.offset + done + mine.nbytes))
            at = mine.offset + mine.nbytes
        if piece.plan.nbytes > at:
            found.append((at - piece.plan.nbytes, 0))
    return found


def places(where: Sequence[tuple[int, int]], out: npt.NDArray[np.uint8]) -> list[memoryview]:
    """That memory of the batch `out`, uint8[plan.nbytes] or more."""
    memory = out.data
    return [memory[begin:end] if begin >= 0 else memoryview(bytearray(-begin)) for begin, end in where]


def place(frames: Sequence[Buffer], into: Sequence[memoryview]) -> None:
    """Copy what came to where it belongs.

    Raises
    ------
    ProtocolError
        If it is not as large as its plan says.
    """
    came, wanted = sum(map(len, frames)), sum(map(len, into))
    if came != wanted:
        raise ProtocolError(f"expected {wanted} bytes of rows from the server, got {came}")
    at, parts = 0, iter([memoryview(frame) for frame in frames if len(frame)])
    part = memoryview(b"")
    for view in into:
        done = 0
        while done < len(view):
            if at == len(part):
                part, at = next(parts), 0
            count = min(len(view) - done, len(part) - at)
            view[done : done + count] = part[at : at + count]
            done, at = done + count, at + count

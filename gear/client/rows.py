"""The columns of a table as strided arrays over its blocks, and writing rows through them.

One array per column, ``[blocks, block_steps, *shape]``, made once per table: a run of neighbouring blocks
is then one NumPy assignment, without a compiled kernel. The same layout is laid over private memory for
rows that have no leased block yet.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gear.client.values import storage_dtype
from gear.plan import make_plan
from gear.views import View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from gear.devices.arena import Arena
    from gear.storage.layout import Layout


class Rows:
    """Per-step and per-trajectory columns of a segment, those that come with an insert, in the table's order.

    Attributes
    ----------
    strips : dtype[blocks, block_steps, *shape] per per-step column; those in the `arena` of a device are written alike.
    widths : int64[C], bytes of a row of each.
    values : dtype[slots, *shape] per per-trajectory column.
    versions : int64[slots], the policy version of each trajectory, where the table has them.
    """

    def __init__(self, layout: Layout, segment: npt.NDArray[np.uint8], arena: Arena | None = None) -> None:
        self.layout, self._segment, self.arena = layout, segment, arena
        self.block_steps = layout.block_steps
        self.blocks = segment[layout.regions["arena"].offset :][: layout.blocks * layout.block_bytes].reshape(
            layout.blocks, layout.block_bytes
        )
        self.widths = np.array([p.width for p in layout.written("step")], np.int64)
        self.strips = strips(layout, segment, layout.regions["arena"].offset, layout.blocks, arena)
        base = layout.regions["trajectories"].offset
        self.values = [
            _strided(segment, base + p.offset, storage_dtype(p.column), (layout.slots, *p.column.shape), (p.stride,))
            for p in layout.per_trajectory
        ]
        self.versions = layout.view(segment, "versions") if layout.table.versioned else None
        # Rows of neighbouring blocks that follow without a gap need no time axis of their own.
        self._flat = _flat(layout, segment)
        self._plan: npt.NDArray[np.int64] | None = None

    def write(self, blocks: Sequence[int], first: int, arrays: Sequence[np.ndarray]) -> None:
        """Write `arrays` (dtype[n, *shape] per step column) from row `first` of the chain `blocks` on."""
        if type(blocks) is range:
            self._write_run(blocks.start, first, arrays, 0, len(arrays[0]))
            return
        steps, done, total = self.block_steps, 0, len(arrays[0])
        for ordinal, block, count in _runs(blocks):
            skip = max(0, first + done - ordinal * steps)
            take = min(count * steps - skip, total - done)
            if take > 0:
                self._write_run(block, skip, arrays, done, take)
                done += take

    def write_many(
        self,
        blocks: npt.NDArray[np.int32],
        needs: npt.NDArray[np.int64],
        steps: npt.NDArray[np.int64],
        sources: npt.NDArray[np.int64],
    ) -> None:
        """Write the rows of several trajectories by compiled code.

        Parameters
        ----------
        blocks : int32[sum of needs]
            Those of each trajectory, one behind the other.
        needs, steps : int64[K]
            How many blocks and how many rows each trajectory has.
        sources : int64[C, K]
            Per step column, the address of each trajectory's first row; the others lie behind it.
        """
        from gear.kernels.host_insert import write_columns  # who inserts one by one never imports the compiler

        columns = [p.column for p in self.layout.written("step")]
        if self.arena is not None:
            self._write_there(blocks, needs, steps, sources)
            here = [n for n, column in enumerate(columns) if column.placement == "host"]
            columns, sources = [columns[n] for n in here], np.ascontiguousarray(sources[here])
            if not columns:
                return
        if self._plan is None:
            self._plan = make_plan(self.layout, tuple(View(c.name) for c in columns), 1, 1).rows
        write_columns(self._segment, self._plan, blocks, needs, steps, sources)

    def _write_there(
        self,
        blocks: npt.NDArray[np.int32],
        needs: npt.NDArray[np.int64],
        steps: npt.NDArray[np.int64],
        sources: npt.NDArray[np.int64],
    ) -> None:
        """The columns on the device, block by block."""
        each, ends = self.block_steps, np.cumsum(needs)
        for place, strip, origins in zip(self.layout.written("step"), self.strips, sources, strict=True):
            if place.column.placement != "device":
                continue
            given = zip(ends.tolist(), needs.tolist(), steps.tolist(), origins.tolist(), strict=True)
            pieces = [
                ((int(blocks[end - need + ordinal]), slice(0, min(each, rows - row))), source + row * place.width)
                for end, need, rows, source in given
                for ordinal, row in enumerate(range(0, rows, each))
            ]
            strip.write_from(pieces)  # type: ignore[attr-defined]

    def private_block(self) -> npt.NDArray[np.uint8]:
        """Memory for the rows of one block, zeroed."""
        return np.zeros(self.layout.full_block_bytes, np.uint8)

    def put_block(self, block: int, memory: npt.NDArray[np.uint8]) -> None:
        """Write what such memory holds into a block."""
        size = self.layout.block_bytes
        self.blocks[block] = memory[:size]
        if self.arena is not None:
            self.arena.blocks[block] = memory[size:]

    def write_row(self, block: int, row: int, values: Sequence[np.ndarray | None]) -> None:
        """Write one row; columns without a value become zero bytes."""
        for strip, value in zip(self.strips, values, strict=True):
            strip[block, row] = 0 if value is None else value

    def write_values(self, slot: int, values: Sequence[np.ndarray]) -> None:
        """Write the per-trajectory columns of a slot."""
        for column, value in zip(self.values, values, strict=True):
            column[slot] = value

    def _write_run(self, block: int, first: int, arrays: Sequence[np.ndarray], at: int, count: int) -> None:
        """Rows at..at+count of `arrays` into the neighbouring blocks from `block` on, from row `first`."""
        steps = self.block_steps
        whole = at == 0 and count == len(arrays[0])
        if self._flat is not None:
            start = block * steps + first
            for flat, array in zip(self._flat, arrays, strict=True):
                flat[start : start + count] = array if whole else array[at : at + count]
            return
        block, first = block + first // steps, first % steps
        lead = min((steps - first) % steps, count)
        full, rest = divmod(count - lead, steps)
        middle = block + (first > 0)
        for strip, array in zip(self.strips, arrays, strict=True):
            if not whole:
                array = array[at : at + count]
            if lead:
                strip[block, first : first + lead] = array[:lead]
            if full:
                part = array if not lead and not rest else array[lead : lead + full * steps]
                strip[middle : middle + full] = part.reshape(full, steps, *array.shape[1:])
            if rest:
                strip[middle + full, :rest] = array[count - rest :]


def strips(
    layout: Layout, memory: npt.NDArray[np.uint8], offset: int, blocks: int, arena: Arena | None = None
) -> list[np.ndarray]:
    """dtype[blocks, block_steps, *shape] per per-step column over `blocks` blocks at `offset`.

    Columns on a device lie in its `arena`; without one they lie behind the others of each block.
    """
    apart = layout.block_bytes + (layout.device_block_bytes if arena is None else 0)
    made: list[np.ndarray] = []
    for p in layout.written("step"):
        dtype, shape, at = storage_dtype(p.column), p.column.shape, offset + p.offset
        if layout.device_block_bytes and p.column.placement == "device":
            if arena is not None:
                made.append(arena.strip(p.offset, p.stride, dtype, shape))  # type: ignore[arg-type]
                continue
            at += layout.block_bytes
        made.append(_strided(memory, at, dtype, (blocks, layout.block_steps, *shape), (apart, p.stride)))
    return made


def _flat(layout: Layout, segment: npt.NDArray[np.uint8]) -> list[np.ndarray] | None:
    """dtype[blocks * block_steps, *shape] per column where all rows of the arena are equally far apart."""
    places = layout.written("step")
    if layout.device_block_bytes or any(p.stride * layout.block_steps != layout.block_bytes for p in places):
        return None
    base, rows = layout.regions["arena"].offset, layout.blocks * layout.block_steps
    return [
        _strided(segment, base + p.offset, storage_dtype(p.column), (rows, *p.column.shape), (p.stride,))
        for p in places
    ]


def _strided(
    memory: npt.NDArray[np.uint8], offset: int, dtype: np.dtype, shape: tuple[int, ...], outer: tuple[int, ...]
) -> np.ndarray:
    """An array of `shape` whose first axes step by `outer` bytes and whose other axes are dense."""
    inner = shape[len(outer) :]
    dense = [math.prod(inner[axis + 1 :]) * dtype.itemsize for axis in range(len(inner))]
    return np.ndarray(shape, dtype, memory, offset, (*outer, *dense))


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of neighbouring numbers: (index of the first, its block, how many)."""
    start = 0
    for index, (one, two) in enumerate(pairwise(blocks), 1):
        if two != one + 1:
            yield start, blocks[start], index - start
            start = index
    yield start, blocks[start], len(blocks) - start

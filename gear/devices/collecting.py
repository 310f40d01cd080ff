"""Gathering a table's rows on a GPU, straight from where they are stored: mapped memory of the host, or the device's.

A batch is a launch for each of the two memories that its columns lie in: a block of an item is found by the directory,
which is on the host, and then either arena is only an address; two arenas in one launch would cost every column two
more numbers of the plan, and a batch of one memory, the common case, would pay for it. What a plan needs on the device
(scratch, the plan itself) is made once and kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from gear.devices.seam import on
from gear.kernels import records as r
from gear.kernels.cuda_gather import Gather
from gear.kernels.cuda_gather_views import GatherViews
from gear.schema import Whole
from gear.views import Timestep

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gear.devices.arena import Arena
    from gear.devices.memory import MappedSegment
    from gear.plan import Plan
    from gear.storage.layout import Layout

MOST_READY = 64
"""Plans kept ready, those used last."""


class Collector:
    """Gathers batches of one table on the device in use. Thread-safe; calls follow each other on their stream.

    Parameters
    ----------
    layout : Layout
    mapped : the table's segment.
    arena : the blocks of its columns on a device, if it has any.
    number : of the device in use; columns on another one are not to be had there.
    """

    def __init__(self, layout: Layout, mapped: MappedSegment, arena: Arena | None, number: int) -> None:
        self._layout, self._mapped, self._arena, self._number = layout, mapped, arena, number
        self._lock = threading.Lock()
        self._ready: OrderedDict[object, list[Gather | GatherViews]] = OrderedDict()

    def tables(self, plan: Plan) -> list[npt.NDArray[np.int64]]:
        """What the launches of a batch are given that is laid out like no other, of items of any lengths: it goes with
        the batch. None of other plans, which stay on the device.
        """
        varying = plan.packed or isinstance(plan.table.item, Whole)
        return [rows for rows, _ in self._split(plan)] if varying else []

    def __call__(
        self,
        plan: Plan,
        items: int,
        total: int,
        starts: Any,
        lengths: Any,
        neighbours: Any,
        out: Any,
        stream: Any,
        tables: Sequence[Any] = (),
    ) -> None:
        """Launch a batch on a stream of Numba. Raises DeviceError if some of its columns lie on another device.

        Parameters
        ----------
        items, total : how many items there are, and their steps if they are packed (else -1).
        starts, lengths, neighbours, out
            As of `kernels.collect.collect`, on the device.
        tables : `tables` of the plan, on the device; without them they are copied there, which waits.
        """
        with self._lock:
            parts = self._made_ready(plan, items, total, len(neighbours) > 0, out, stream, bool(tables))
            for ready, table in zip(parts, tables or [None] * len(parts), strict=True):
                if isinstance(ready, GatherViews):
                    ready(self._mapped.span, starts, lengths, neighbours, out, stream, table)
                else:
                    ready(self._mapped.span, starts, lengths, out, stream, table)

    def to_host(
        self,
        plan: Plan,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        neighbours: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> None:
        """Gather into memory of the host, which holds the batch afterwards."""
        with on(self._number):
            self._to_host(plan, starts, lengths, neighbours, out)

    def _to_host(
        self,
        plan: Plan,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        neighbours: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> None:
        there = cuda.to_device(out)  # what no column writes stays as it is
        begin, length = (cuda.to_device(np.ascontiguousarray(array)) for array in (starts, lengths))
        near = cuda.to_device(neighbours) if len(neighbours) else neighbours
        self(plan, len(starts), plan.steps_of(lengths), begin, length, near, there, 0)
        there.copy_to_host(out)

    def _made_ready(
        self, plan: Plan, items: int, total: int, split: bool, out: Any, stream: Any, fits: bool
    ) -> list[Gather | GatherViews]:
        # Of each stream its own: launches on two of them would write to one scratch.
        key: object = (plan.views, plan.pads.tobytes(), split, stream)
        if not fits:
            key = plan.rows.tobytes(), plan.pads.tobytes(), items, total, split, len(out), stream
        ready = self._ready.get(key)
        if ready is not None:
            self._ready.move_to_end(key)
            for one, (rows, arena) in zip(ready, self._split(plan), strict=True) if fits else ():
                one.fit(self._mapped.span, rows, items, out, max(total, 0) if plan.viewed else total, arena)
            return ready
        while len(self._ready) >= MOST_READY:
            self._ready.popitem(last=False)
        made: list[Gather | GatherViews] = []
        segment = self._mapped.span
        for rows, arena in self._split(plan):
            if plan.viewed:
                made.append(GatherViews(segment, rows, plan.pads, items, out, max(total, 0), split, arena))
            else:
                made.append(Gather(segment, rows, plan.pads, items, out, total, arena))
        self._ready[key] = made  # only whole: the device may have had no memory for all of it
        return made

    def _split(self, plan: Plan) -> list[tuple[npt.NDArray[np.int64], Any]]:
        """The plan's rows by memory: plan rows, and the arena on the device or None; the first makes the mask."""
        there = np.array([_column_on_device(self._layout, view) for view in plan.views], np.bool_)
        if self._arena is None or not there.any():
            return [(plan.rows, None)]
        if self._arena.number != self._number:
            raise self._arena.elsewhere(self._number)
        parts: list[tuple[npt.NDArray[np.int64], Any]] = []
        if not there.all():
            parts.append((plan.rows[np.concatenate(([True], ~there))].copy(), None))
        rows = plan.rows[np.concatenate(([True], there))].copy()
        rows[0, r.ARENA] = self._arena.memory.address - self._mapped.address
        rows[0, r.BLOCK_BYTES] = self._layout.device_block_bytes
        if parts:
            rows[0, r.MASK] = -1
        return [*parts, (rows, self._arena.memory.span)]


def _column_on_device(layout: Layout, view: Any) -> bool:
    return not isinstance(view, Timestep) and layout.table.column(view.column).placement == "device"

"""Memory on a GPU that a batch is gathered into: what a data path is given in place of an array of the host.

It copies what the kernels are told about a batch (where its items begin, how long they are) by one asynchronous copy
from page-locked memory, launches, and says when its memory may be written again. Nothing is allocated once it has seen
the largest batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gear.devices.reading import collector_of
from gear.devices.streams import as_table, for_kernels

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.batch import Selection
    from gear.devices.streams import Stream
    from gear.plan import Plan
    from gear.transport.base import OpenTable


class Target:
    """uint8[nbytes] on a device.

    Attributes
    ----------
    memory : the tensor.
    done : event of the last gathering into it.
    """

    def __init__(self, stream: Stream, nbytes: int) -> None:
        self.stream, self.memory = stream, stream.allocate(nbytes)
        self.done, self._free = stream.event(), stream.event()
        self._taken = self._begun = False
        self._staged = stream.page_locked(0)
        self._there = self.memory[:0]
        self._tables: dict[tuple[int, tuple[int, ...]], Any] = {}

    def __len__(self) -> int:
        return len(self.memory)

    def taken_back(self) -> None:
        """Its consumer has queued all that uses it on its current stream: write it again after that."""
        self.stream.mark_consumer(self._free)
        self._taken = True

    def wait(self) -> None:
        """Until the last gathering is through."""
        if self._begun:
            self.done.synchronize()

    def gather(self, table: OpenTable, plan: Plan, selection: Selection, neighbours: npt.NDArray[np.int32]) -> None:
        """Launch the gathering of the items of a selection by `plan`; nothing waits for it."""
        stream, starts, lengths = self.stream, selection.starts, selection.lengths
        collector = collector_of(table, stream.number)
        with stream.here():
            tables, given = self._stage(collector.tables(plan), starts, lengths, neighbours)
            if self._taken:
                stream.follow(self._free)
                self._taken = False
            collector(plan, len(starts), plan.steps_of(lengths), *given, for_kernels(self.memory), stream.numba, tables)
            stream.record(self.done)
            self._begun = True

    def _stage(
        self,
        plans: list[npt.NDArray[np.int64]],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        neighbours: npt.NDArray[np.int32],
    ) -> tuple[list[Any], tuple[Any, Any, Any]]:
        self.wait()  # the copy of before has been made
        arrays: tuple[npt.NDArray[np.integer], ...] = (*(p.reshape(-1) for p in plans), starts, lengths, neighbours)
        ends = np.cumsum([-(-array.nbytes // 8) * 8 for array in arrays]).tolist()
        if ends[-1] > len(self._staged):
            self._staged = self.stream.page_locked(ends[-1] + ends[-1] // 4)
            self._there = self.stream.allocate(len(self._staged))
            self._tables.clear()
        staged = self._staged.numpy()
        for array, begin in zip(arrays, [0, *ends], strict=False):
            staged[begin : begin + array.nbytes] = array.view(np.uint8)
        self._there[: ends[-1]].copy_(self._staged[: ends[-1]], non_blocking=True)
        parts = [self._there[b : b + a.nbytes] for a, b in zip(arrays, [0, *ends], strict=False)]
        tables = [self._table(b, p.shape) for b, p in zip([0, *ends], plans, strict=False)]
        one, two, three = parts[len(plans) :]
        near = for_kernels(three.view(torch.int32)) if len(neighbours) else neighbours
        return tables, (for_kernels(one.view(torch.int64)), for_kernels(two.view(torch.int32)), near)

    def _table(self, begin: int, shape: tuple[int, ...]) -> Any:
        """A plan in the memory of the device, as kernels take it; the same array as long as it lies there."""
        table = self._tables.get((begin, shape))
        if table is None:
            part = self._there[begin : begin + 8 * shape[0] * shape[1]]
            table = self._tables[begin, shape] = as_table(part.view(torch.int64).view(shape))
        return table

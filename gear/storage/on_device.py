"""What a table has on the GPU of its shard: the blocks of some columns, and the sums by which it is drawn.

The host's segment is mapped for the GPU, which reads directory and host columns where they lie. Single writer.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from gear.devices.arena import Arena, number_of
from gear.devices.memory import MappedSegment
from gear.schema import Prioritized

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.devices.collecting import Collector
    from gear.plan import Plan
    from gear.schema import Table
    from gear.storage.draws_there import DrawsThere
    from gear.storage.layout import Layout


class OnDevice:
    """A table's part on one GPU.

    Parameters
    ----------
    layout, segment : the table's.
    gpu : str
        UUID of the device.
    arena : Arena, optional
        The blocks there, where they are filled already.

    Attributes
    ----------
    arena : the blocks of its columns there, None if it has none.
    draws : its sum tree there, None where the host draws.

    Raises
    ------
    DeviceError, InsufficientMemory
    """

    def __init__(self, layout: Layout, segment: npt.NDArray[np.uint8], gpu: str, arena: Arena | None = None) -> None:
        self.gpu, self._layout, self._segment = gpu, layout, segment
        self.mapped = MappedSegment(segment, number_of(gpu))
        weakref.finalize(self, self.mapped.close)
        self.arena = Arena(layout, gpu) if layout.device_bytes and arena is None else arena
        self.draws: DrawsThere | None = None
        self._collector: Collector | None = None

    def collect(
        self,
        segment: npt.NDArray[np.uint8],
        plan: Plan,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        neighbours: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
    ) -> None:
        """`kernels.collect.collect` for a table some of whose columns lie on the device: by it, and copied back."""
        if self._collector is None:
            from gear.devices.collecting import Collector

            self._collector = Collector(self._layout, self.mapped, self.arena, number_of(self.gpu))
        self._collector.to_host(plan, starts, lengths, neighbours, out)

    def start_draws(self) -> None:
        """Draw there from now on, if the table is one that a GPU draws from."""
        if draws_there(self._layout.table):
            from gear.storage.draws_there import DrawsThere

            self.draws = DrawsThere(self._layout, self._segment, number_of(self.gpu))

    def close(self) -> None:
        """Let go of device memory; nothing reads it any more."""
        if self.arena is not None:
            self.arena.close()


def draws_there(table: Table) -> bool:
    """Whether a GPU draws a table's items: by priority, any number of times, several times in a batch.

    What is used up or may come once in a batch is drawn one by one, each draw knowing the one before: by the host.
    """
    return isinstance(table.sampler, Prioritized) and not table.max_times_sampled and not table.distinct

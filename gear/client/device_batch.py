"""Batches that kernels gather on the learner's own GPU: tensors over memory there, filled without the host's help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gear.batch import Batch
from gear.client.tensors import TensorBatch
from gear.devices.target import Target
from gear.plan import item_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from gear.devices.streams import Stream
    from gear.plan import Plan


class DeviceBatch(TensorBatch):
    """A batch on a GPU. `buffer` is a `Target`, which data paths gather into."""

    __slots__ = ()

    on_device = True

    def __init__(self, plan: Plan, stream: Stream) -> None:
        self._device = stream.device
        self._tensors = {}
        self._transient = False
        room = (
            0 if item_length(plan.table) and not plan.packed else plan.nbytes // 4
        )  # the next batch may be somewhat larger
        self._buffer: Target = Target(stream, plan.nbytes + room)  # type: ignore[assignment]
        self._memory = self._buffer.memory
        self._lay_out(plan)

    def reuse(self, plan: Plan) -> None:
        """Lay the arrays of `plan` over the memory there is, which is written after what its consumer has queued."""
        if not self._transient:
            self._buffer.taken_back()
        super().reuse(plan)

    def arrived(self) -> None:
        """Nothing to bring: it is there when its event is."""

    def handed(self) -> None:
        """The caller's current stream goes on when the batch is there."""
        self._buffer.stream.hand_over(self._buffer.done, self._memory)

    def taken_back(self) -> None:
        """The caller's current stream has all that uses it."""
        self._buffer.taken_back()

    def settle(self) -> None:
        """Wait until it is there."""
        self._buffer.wait()

    @property
    def afterwards(self) -> Callable[[Callable[[], None]], None]:
        """Does something once it is there; nobody waits."""
        return self._buffer.stream.after

    @property
    def mask(self) -> Any:
        """As `Batch.mask`."""
        plan = self._plan
        if plan.mask_offset < 0:
            return torch.ones(plan.total if plan.packed else plan.size, dtype=torch.bool, device=self._device)
        part = self._memory[plan.mask_offset : plan.mask_offset + plan.size * plan.length]
        return part.view(torch.bool).view(plan.size, plan.length)

    def copy(self) -> Batch:
        """A batch with the same content in memory of its own."""
        twin = DeviceBatch(self._plan, self._buffer.stream)
        size = self._plan.nbytes
        twin._memory[:size].copy_(self._memory[:size])
        twin.handed()
        twin.fill(self.selection, self._beta, self._normalize)
        return twin

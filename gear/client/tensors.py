"""Batches of torch tensors: views of the batch's buffer on the CPU, of one copy of it on a GPU.

Importing this module imports torch; nothing else of the client does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gear.batch import Batch
from gear.devices import seam
from gear.errors import DeviceError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gear.batch import NewBatch
    from gear.plan import Field, Plan


class TensorBatch(Batch):
    """A batch whose arrays, lengths, mask and weights are torch tensors; ids and probabilities stay NumPy."""

    __slots__ = ("_device", "_memory", "_tensors")

    def __init__(
        self, plan: Plan, buffer: npt.NDArray[np.uint8] | None = None, device: torch.device | None = None
    ) -> None:
        self._device = device or torch.device("cpu")
        self._tensors: dict[str, torch.Tensor] = {}
        super().__init__(plan, buffer)
        self._memory = torch.from_numpy(self._buffer)
        if self._device.type != "cpu":
            self._memory = torch.empty_like(self._memory, device=self._device)

    def _lay_out(self, plan: Plan) -> None:
        super()._lay_out(plan)
        self._tensors.clear()

    def _like(self, buffer: npt.NDArray[np.uint8]) -> TensorBatch:
        twin = TensorBatch(self._plan, buffer, self._device)
        twin.arrived()
        return twin

    def arrived(self) -> None:
        """Bring the buffer to the device, in one copy."""
        if self._device.type != "cpu":
            self._memory.copy_(torch.from_numpy(self._buffer))

    def __getitem__(self, name: str) -> Any:
        tensor = self._tensors.get(name)
        if tensor is None:
            tensor = self._tensors[name] = self._array(self._plan.by_name[name])
        return tensor

    def _array(self, field: Field) -> Any:
        part = self._memory[field.offset : field.offset + field.nbytes]
        return part.view(getattr(torch, field.dtype.name)).view(field.shape)

    def _wrap(self, array: np.ndarray) -> Any:
        return torch.from_numpy(array).to(self._device)


def tensor_batches(device: str, local: bool) -> NewBatch:
    """What makes batches for `device`.

    Parameters
    ----------
    local : bool
        Rows are read where they are stored: the device's kernels do that. Else they come to the host and are copied.

    Raises
    ------
    DeviceError
        If there is no such device, or packages to use it are missing.
    """
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"device {device!r}: expected 'cpu' or 'cuda:N'; torch says: {error}") from None
    if target.type == "cuda":
        number = target.index or 0
        if seam.SIMULATED:
            count, target = len(seam.driver().devices()), torch.device("cpu")
        else:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if number >= count:
            raise DeviceError(
                f"device {device!r} is not there: torch sees {count} CUDA devices; use device='cpu' or None"
            )
        if local:
            return _by_kernels(number)
    elif target.type != "cpu":
        raise DeviceError(f"device {device!r} is not supported; use 'cpu', 'cuda:N' or None for NumPy")
    return lambda plan, buffer: TensorBatch(plan, buffer, target)


def _by_kernels(number: int) -> NewBatch:
    from gear.devices.choice import check_usable

    check_usable(seam.driver(), f"device 'cuda:{number}': ")
    from gear.client.device_batch import DeviceBatch
    from gear.devices.streams import stream_of

    def new_batch(plan: Plan, buffer: npt.NDArray[np.uint8] | None) -> Batch:
        return DeviceBatch(plan, stream_of(number))

    new_batch.on_device = True  # type: ignore[attr-defined]
    return new_batch

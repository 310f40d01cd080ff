"""Which kind of batch a client hands out: NumPy arrays, or torch tensors of the host or a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gear.batch import Batch

if TYPE_CHECKING:
    from gear.batch import NewBatch


def batches(device: str | None, local: bool) -> NewBatch:
    """What makes batches for `device`; `local`: rows are read where they are stored.

    Raises
    ------
    DeviceError
    """
    if device is None:
        return Batch
    from gear.client.tensors import tensor_batches

    return tensor_batches(str(device), local)

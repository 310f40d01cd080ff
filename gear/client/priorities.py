"""Priorities and ids as the user gives them, checked before they travel."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from gear.errors import DataError
from gear.schema import Step, Table, Window

LARGEST = float(np.finfo(np.float32).max)


def item_count(table: Table, steps: int) -> int:
    """Items of an ended trajectory of that many steps."""
    item = table.item
    if isinstance(item, Step):
        return steps
    if isinstance(item, Window):
        if item.edge == "inside":
            return (steps - item.length) // item.stride + 1 if steps >= item.length else 1
        return -(-steps // item.stride)
    return 1


def as_priorities(values: object, expected: int | None = None) -> npt.NDArray[np.float64]:
    """Raw priorities as float64[N]: finite, not negative, at most the largest float32.

    Raises
    ------
    DataError
        Naming the first bad value, or both lengths where `expected` differs.
    """
    array = _numbers("priorities", values)
    if array.ndim != 1 or (expected is not None and len(array) != expected):
        want = "N" if expected is None else str(expected)
        raise DataError(f"priorities: expected shape [{want}], one per item, got {list(array.shape)}")
    if array.dtype != np.float64:
        array = array.astype(np.float64)
    if array.size and not (np.minimum.reduce(array) >= 0 and np.maximum.reduce(array) <= LARGEST):  # so of a NaN
        index = int(np.argmin((array >= 0) & (array <= LARGEST)))
        raise DataError(
            f"priorities[{index}] is {array[index]:g}; expected a finite number in [0, {LARGEST:g}]; "
            "nothing was applied"
        )
    return array


def as_ids(values: object) -> npt.NDArray[np.int64]:
    """Item ids as int64[N].

    Raises
    ------
    DataError
        If they are no ids.
    """
    array = _numbers("ids", values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"ids: expected int64[N] as in batch.ids, got {array.dtype}{list(array.shape)}")
    if array.dtype != np.int64:
        array = array.astype(np.int64)
    if array.size and np.minimum.reduce(array) < 0:
        index = int(np.argmax(array < 0))
        raise DataError(f"ids[{index}] is {array[index]}, which is no id; pass them as they came in batch.ids")
    return array


def _numbers(what: str, values: object) -> np.ndarray:
    """Anything array-like as an array of real numbers."""
    torch = sys.modules.get("torch")
    given: Any = values
    if torch is not None and isinstance(given, torch.Tensor):
        given = given.detach().cpu()
        given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise DataError(f"{what}: expected one number per item: {error}") from None
    if array.dtype.kind not in "fiu":
        if array.dtype.name != "bfloat16":  # a name takes longer to make than all else here
            raise DataError(f"{what}: expected numbers, got dtype {array.dtype}")
        array = array.astype(np.float32)
    return array

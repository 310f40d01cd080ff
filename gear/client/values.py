"""One value of one column: arrays are checked, Python scalars take the column's dtype.

A bfloat16 column is handled as its 16 raw bits (uint16), so that an actor needs no library for it.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np

from gear.columns import DTYPES, Column
from gear.errors import DataError

Axis = Literal["", "T", "N"]
"""The leading axis of a value: none (one row), time, or one row per environment or trajectory."""

_DTYPES: dict[str, np.dtype] = {}
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def storage_dtype(column: Column) -> np.dtype:
    """The dtype whose bytes the column stores; uint16 for bfloat16."""
    name = "uint16" if column.dtype == "bfloat16" else column.dtype
    if name not in _DTYPES:
        _DTYPES[name] = np.dtype(name)
    return _DTYPES[name]


def array_of(column: Column, value: Any, axis: Axis = "") -> np.ndarray:
    """`value` as storage_dtype[*shape], with a leading axis if one is named. It may be a view of `value`.

    A value on a GPU (torch's, or one with `__cuda_array_interface__` or DLPack) of a column on a device stays there, as
    a `DeviceValue`; of any other column it is copied to the host.

    Raises
    ------
    DataError
        If dtype, shape or range do not fit.
    """
    kind = type(value)
    if kind is np.ndarray and value.dtype is _DTYPES.get(column.dtype):
        shape = value.shape
        if shape == column.shape if not axis else shape and shape[1:] == column.shape:  # as most values are
            return value  # type: ignore[no-any-return]
    if isinstance(value, np.generic) and not axis and not column.shape and value.dtype is _DTYPES.get(column.dtype):
        return np.asarray(value)  # a scalar of the column's own dtype, as rewards and versions often are
    if column.placement == "device" and kind not in (np.ndarray, bool, int, float, list, tuple):
        there = _on_device(value)
        if there is not None:
            return _fitting(column, *there, axis)
    if kind in (bool, int, float):
        array, name = _weak(column, value, {kind}), column.dtype
    elif isinstance(value, (list, tuple)):
        array, name = _sequence(column, value, axis)
    else:
        array, name = _strong(column, value, axis)
    return _fitting(column, array, name, axis)


def _fitting(column: Column, array: np.ndarray, name: str, axis: Axis) -> np.ndarray:
    """The array if its dtype, `name`, and its shape are those of the column."""
    if name != column.dtype:
        hint = f"cast it or declare {name}" if name in DTYPES else f"cast it to {column.dtype}"
        raise _mismatch(column, axis, f"{name}{list(array.shape)}", hint)
    shape = array.shape
    if (shape[1:] if axis else shape) != column.shape or (axis and not shape):
        inner = shape[1:] if axis else shape
        remedy = f"reshape it or declare shape {inner}"
        if axis and shape == column.shape:
            remedy = f"a column per step needs the {'time' if axis == 'T' else 'environment'} axis first"
        elif not axis and shape[1:] == column.shape and shape:
            remedy = "one row is meant here, without a time axis"
        raise _mismatch(column, axis, f"{name}{list(shape)}", remedy)
    return array


def rows_of(column: Column, value: Any, rows: int) -> np.ndarray:
    """`value` as storage_dtype[rows, *shape], one row per environment or trajectory.

    Raises
    ------
    DataError
    """
    array = array_of(column, value, "N")
    if len(array) != rows:
        raise DataError(f"column {column.name!r}: expected {rows} rows, one for each of {rows}, got {len(array)}")
    return array


def _mismatch(column: Column, axis: Axis, got: str, remedy: str) -> DataError:
    axes = ", ".join([*([axis] if axis else []), *map(str, column.shape)])
    return DataError(f"column {column.name!r}: expected {column.dtype}[{axes}], got {got}; {remedy}")


def _strong(column: Column, value: Any, axis: Axis) -> tuple[np.ndarray, str]:
    """Something that has a dtype, as an array of raw storage and the name of that dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.layout != torch.strided:
            raise _mismatch(column, axis, f"a {value.layout} tensor", "make it dense")
        return (value.view(torch.int16).numpy().view(np.uint16) if name == "bfloat16" else value.numpy()), name
    if isinstance(value, np.ma.MaskedArray):
        raise _mismatch(column, axis, "a masked array", "fill it, and store the mask as a column of its own")
    if not hasattr(value, "__array__") or hasattr(value, "__cuda_array_interface__"):
        there = _on_device(value)
        if there is not None:
            return there[0].copy(), there[1]
        text = ", text encoded as such" if isinstance(value, (str, bytes)) else ""
        raise _mismatch(
            column, axis, f"a {type(value).__name__}", f"give an array, a tensor or a list of numbers{text}"
        )
    array = np.asarray(value)
    name = array.dtype.name
    if not array.dtype.isnative:
        name = f"{name} of the other byte order"
    return (array.view(np.uint16) if name == "bfloat16" else array), name


def _on_device(value: Any) -> tuple[Any, str] | None:
    """A value that lies on a GPU, and the name of its dtype; None for all others."""
    if not (hasattr(value, "__cuda_array_interface__") or hasattr(value, "__dlpack_device__")):
        return None
    from gear.devices.arena import device_value

    there = device_value(value)
    return None if there is None else (there, there.name)


def _sequence(column: Column, value: list[Any] | tuple[Any, ...], axis: Axis) -> tuple[np.ndarray, str]:
    """A list: of Python scalars (weakly typed), or of things that have a dtype, stacked."""
    kinds: set[type] = set()
    _kinds_of(value, kinds)
    if kinds <= {bool, int, float}:
        return _weak(column, value, kinds), column.dtype
    rows: list[np.ndarray] = []
    for index, row in enumerate(value):
        array, name = _sequence(column, row, "") if isinstance(row, (list, tuple)) else _strong(column, row, "")
        if name != column.dtype or (rows and array.shape != rows[0].shape):
            expected = f"{column.dtype}{list(rows[0].shape if rows else column.shape[not axis :])}"
            raise DataError(
                f"column {column.name!r}: element {index} of the list is {name}{list(array.shape)}, expected "
                f"{expected}; cast it or make the elements alike"
            )
        rows.append(array)
    return np.stack(rows), column.dtype


def _kinds_of(value: Any, kinds: set[type]) -> None:
    """Add the types of the leaves of nested lists."""
    for element in value:
        if isinstance(element, (list, tuple)):
            _kinds_of(element, kinds)
        else:
            kinds.add(type(element))


def _weak(column: Column, value: Any, kinds: set[type]) -> np.ndarray:
    """Python scalars in the column's dtype: int -> float, never float -> int, bool only to bool."""
    name = column.dtype
    told = " and ".join(sorted(k.__name__ for k in kinds))
    allowed: set[type] = {bool} if name == "bool" else {int, float} if name in _FLOATS else {int}
    if not kinds <= allowed:
        raise DataError(
            f"column {column.name!r}: expected {name}, got Python {told}; convert it or declare another dtype"
        )
    try:
        wide: np.ndarray = np.array(value, _wide(name) if kinds else storage_dtype(column))
    except OverflowError:
        raise DataError(f"column {column.name!r}: a number of Python {told} is out of the range of {name}") from None
    except ValueError:
        raise DataError(f"column {column.name!r}: the nested lists have unequal lengths; expected one shape") from None
    if not kinds:  # an empty list has no dtype to check and no shape to lose
        return wide.reshape(0, *column.shape) if wide.shape == (0,) else wide
    array, fits = _narrow(name, wide)
    if not fits.all():
        index = [int(i) for i in np.argwhere(~fits)[0]]
        raise DataError(
            f"column {column.name!r}: {wide[tuple(index)]} at {index} is out of the range of {name}; "
            "clip it or declare a wider dtype"
        )
    return array


def _wide(name: str) -> np.dtype:
    if name == "bool":
        return np.dtype(np.bool_)
    return np.dtype(np.float64 if name in _FLOATS else np.uint64 if name == "uint64" else np.int64)


def _narrow(name: str, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`wide` as storage of dtype `name`, and where its value is within range."""
    if name == "bfloat16":
        import ml_dtypes

        with np.errstate(over="ignore", invalid="ignore"):
            rounded = wide.astype(ml_dtypes.bfloat16)
        return rounded.view(np.uint16), np.isfinite(rounded.astype(np.float32)) | ~np.isfinite(wide)
    if name in _FLOATS:
        with np.errstate(over="ignore"):
            narrow = wide.astype(name)
        return narrow, np.isfinite(narrow) | ~np.isfinite(wide)
    if name == "bool":
        return wide, np.ones(wide.shape, np.bool_)
    limits = np.iinfo(name)
    return wide.astype(name), (wide >= limits.min) & (wide <= limits.max)


def fast_scalar(column: Column) -> tuple[type | None, float, float]:
    """The Python type that a scalar column takes as it is, and between which bounds; None for other columns."""
    name = column.dtype
    if column.shape or name == "bfloat16":
        return None, 0, 0
    if name == "bool":
        return bool, 0, 1
    if name in _FLOATS:
        largest = float(np.finfo(name).max)
        return float, -largest, largest
    limits = np.iinfo(name)
    return int, int(limits.min), int(limits.max)

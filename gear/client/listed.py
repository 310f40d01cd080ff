"""A list of trajectories, checked column by column: what fits as it is costs a few calls for all of them.

Whatever is out of the ordinary (a list of numbers, a tensor, a wrong dtype) is left to `Codec.trajectory`, which takes
one at a time, converts what may be converted and says what is wrong with which column.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gear.client.values import storage_dtype
from gear.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from gear.client.encode import Codec
    from gear.client.port import Port
    from gear.schema import Column

_DTYPE, _SHAPE = attrgetter("dtype"), attrgetter("shape")


class Listed(NamedTuple):
    """N trajectories that fit their table.

    Attributes
    ----------
    lengths : int64[N], steps of each.
    sources : int64[C, N], address of the first row of each, per step column; the others lie behind it.
    values : dtype[N, *shape] per per-trajectory column.
    longest : steps of the longest.
    arrays : what the addresses lie in.
    """

    lengths: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    values: list[np.ndarray]
    longest: int
    arrays: object


def listed(port: Port, trajectories: Sequence[Mapping[str, Any]]) -> Listed:
    """Trajectories as columns.

    Raises
    ------
    DataError
        Naming the trajectory, and the column of it, that does not fit.
    """
    made = _at_once(port.codec, trajectories)
    if made is not None and made.longest <= port.max_length:
        return made
    encoded = []
    for index, trajectory in enumerate(trajectories):
        try:
            encoded.append(port.codec.trajectory(trajectory))
            port.pieces(encoded[-1].steps)
        except DataError as error:
            raise refused(index, len(trajectories), error) from None
    arrays = [list(map(dense, column)) for column in zip(*(one.arrays for one in encoded), strict=True)]
    return Listed(
        np.array([one.steps for one in encoded], np.int64),
        np.array([list(map(address, column)) for column in arrays], np.int64).reshape(len(arrays), len(encoded)),
        [np.stack(column) for column in zip(*(one.rows for one in encoded), strict=True)],
        max(one.steps for one in encoded),
        arrays,
    )


def address(array: np.ndarray) -> int:
    """Where the elements of an array begin; those of a `DeviceValue` lie on a device."""
    return int(array.address if hasattr(array, "address") else array.__array_interface__["data"][0])


def dense(array: np.ndarray) -> np.ndarray:
    """An array without gaps; a `DeviceValue` has none."""
    return array if hasattr(array, "address") else np.ascontiguousarray(array)


def refused(index: int, count: int, error: object) -> DataError:
    """The error for one of many trajectories."""
    return DataError(f"trajectory {index} of {count}: {error}; nothing was inserted")


def _at_once(codec: Codec, trajectories: Sequence[Mapping[str, Any]]) -> Listed | None:
    """The same without a word of Python for each trajectory; None if there is anything to convert or to refuse."""
    names = len(codec.step_columns) + len(codec.trajectory_columns)
    if not _all(type, trajectories, dict) or not _all(len, trajectories, names) or not _promise_kept():
        return None
    if any(c.dtype == "bfloat16" for c in codec.step_columns):  # in many forms, none of which is the stored one
        return None
    count = len(trajectories)
    try:  # as many names as columns, and each column is found: no other names
        steps = [np.fromiter(map(itemgetter(c.name), trajectories), object, count) for c in codec.step_columns]
        once = [list(map(itemgetter(c.name), trajectories)) for c in codec.trajectory_columns]
    except (KeyError, ValueError):  # one misses a column, or there are fewer of them by now
        return None
    from gear.kernels.host_insert import read_heads

    heads = codec.heads.copy()
    heads[:, 0] = list(map(address, steps))
    lengths, sources = np.empty(count, np.int64), np.empty((len(steps), count), np.int64)
    longest = read_heads(id(np.ndarray), heads, lengths, sources)
    if longest < 0:
        return None
    values = [_stacked(c, column) for c, column in zip(codec.trajectory_columns, once, strict=True)]
    if any(value is None for value in values):
        return None
    return Listed(lengths, sources, values, longest, steps)  # type: ignore[arg-type]


@functools.cache
def _promise_kept() -> bool:
    """Whether arrays have their fields where NumPy's C interface says, which `read_heads` goes by."""
    from gear.kernels import host_insert as place

    if sys.implementation.name != "cpython" or np.ndarray.__basicsize__ < place.FLAGS + 4:
        return False
    probe = np.empty((2, 3), np.int16)
    here = id(probe)
    words = [ctypes.c_int64.from_address(here + at).value for at in (place.TYPE, place.DATA, place.DESCRIPTION)]
    halves = [ctypes.c_int32.from_address(here + at).value for at in (place.AXES, place.FLAGS)]
    return words == [id(np.ndarray), address(probe), id(probe.dtype)] and halves == [2, probe.flags.num]


def _all(function: Callable[[Any], Any], values: Sequence[Any], expected: object) -> bool:
    """Whether a function gives the same for all values; no call of Python's for each if it is one of C's."""
    return list(map(function, values)).count(expected) == len(values)


def _stacked(column: Column, values: list[Any]) -> np.ndarray | None:
    """One value per trajectory, all of the column's own dtype and shape, as dtype[N, *shape]."""
    dtype, kind = storage_dtype(column), type(values[0])
    if column.dtype == "bfloat16" or not _all(type, values, kind):  # of bits alone nobody knows that they are meant
        return None
    if kind is np.ndarray:
        fit = _all(_DTYPE, values, dtype) and _all(_SHAPE, values, column.shape)
    else:
        fit = kind is dtype.type and not column.shape
    return np.array(values, dtype) if fit else None

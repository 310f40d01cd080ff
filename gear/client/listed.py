"""A list of trajectories, checked column by column: what fits as it is costs a few calls for all of them.

Whatever is out of the ordinary (a list of numbers, a tensor, a wrong dtype) is left to `Codec.trajectory`, which takes
one at a time, converts what may be converted and says what is wrong with which column.
"""

from __future__ import annotations

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

_DTYPE, _NDIM, _SHAPE = attrgetter("dtype"), attrgetter("ndim"), attrgetter("shape")


class Listed(NamedTuple):
    """N trajectories that fit their table.

    Attributes
    ----------
    lengths : int64[N], steps of each.
    columns : per step column, N arrays dtype[T, *shape].
    values : dtype[N, *shape] per per-trajectory column.
    """

    lengths: npt.NDArray[np.int64]
    columns: list[list[np.ndarray]]
    values: list[np.ndarray]


def listed(port: Port, trajectories: Sequence[Mapping[str, Any]]) -> Listed:
    """Trajectories as columns.

    Raises
    ------
    DataError
        Naming the trajectory, and the column of it, that does not fit.
    """
    made = _at_once(port.codec, trajectories)
    if made is not None and (not len(made.lengths) or int(made.lengths.max()) <= port.max_length):
        return made
    encoded = []
    for index, trajectory in enumerate(trajectories):
        try:
            encoded.append(port.codec.trajectory(trajectory))
            port.pieces(encoded[-1].steps)
        except DataError as error:
            raise refused(index, len(trajectories), error) from None
    return Listed(
        np.array([one.steps for one in encoded], np.int64),
        [list(column) for column in zip(*(one.arrays for one in encoded), strict=True)],
        [np.stack(column) for column in zip(*(one.rows for one in encoded), strict=True)],
    )


def refused(index: int, count: int, error: object) -> DataError:
    """The error for one of many trajectories."""
    return DataError(f"trajectory {index} of {count}: {error}; nothing was inserted")


def _at_once(codec: Codec, trajectories: Sequence[Mapping[str, Any]]) -> Listed | None:
    """The same without a word of Python for each trajectory; None if there is anything to convert or to refuse."""
    names = len(codec.step_columns) + len(codec.trajectory_columns)
    if not _all(type, trajectories, dict) or not _all(len, trajectories, names):
        return None
    try:  # as many names as columns, and each column is found: no other names
        steps = [list(map(itemgetter(c.name), trajectories)) for c in codec.step_columns]
        once = [list(map(itemgetter(c.name), trajectories)) for c in codec.trajectory_columns]
        lengths = list(map(len, steps[0]))
    except (KeyError, TypeError):
        return None
    if not min(lengths):
        return None
    if not all(_fit(c, column, lengths) for c, column in zip(codec.step_columns, steps, strict=True)):
        return None
    values = [_stacked(c, column) for c, column in zip(codec.trajectory_columns, once, strict=True)]
    if any(value is None for value in values):
        return None
    return Listed(np.array(lengths, np.int64), steps, values)  # type: ignore[arg-type]


def _fit(column: Column, values: list[Any], lengths: list[int]) -> bool:
    """Whether all values are arrays of the column's own dtype and shape, of these lengths."""
    if not _all(type, values, np.ndarray) or not _of_dtype(column, values):
        return False
    if not column.shape:  # no tuples, which the garbage collector would count
        return _all(_NDIM, values, 1) and list(map(len, values)) == lengths
    return list(map(_SHAPE, values)) == [(n, *column.shape) for n in lengths]


def _of_dtype(column: Column, values: list[Any]) -> bool:
    return column.dtype != "bfloat16" and _all(_DTYPE, values, storage_dtype(column))


def _all(function: Callable[[Any], Any], values: Sequence[Any], expected: object) -> bool:
    """Whether a function gives the same for all values; no call of Python's for each if it is one of C's."""
    return list(map(function, values)).count(expected) == len(values)


def _stacked(column: Column, values: list[Any]) -> np.ndarray | None:
    """One value per trajectory, all of the column's own dtype and shape, as dtype[N, *shape]."""
    dtype = storage_dtype(column)
    if not _all(type, values, type(values[0])) or type(values[0]) not in (np.ndarray, dtype.type):
        return None
    if type(values[0]) is np.ndarray and not (_of_dtype(column, values) and _all(_SHAPE, values, column.shape)):
        return None
    if column.shape and type(values[0]) is not np.ndarray:
        return None
    return np.array(values, dtype)

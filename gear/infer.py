"""A table proposed from one trajectory: `table_like`, and the line that errors show to write it.

Reads only shapes and dtypes, never values, so a NumPy array and a torch tensor are alike and torch is never
imported. It guesses nothing silently: what could be meant two ways is refused with both readings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from gear.errors import DataError, SchemaError
from gear.schema import Capacity, Column, Steps, Table, dtype_name, flatten


class _Kind(NamedTuple):
    """Shape and dtype of a value; `plain` if it is made of Python numbers only."""

    shape: tuple[int, ...]
    dtype: str
    plain: bool


def table_like(
    name: str,
    trajectory: Mapping[str, Any],
    capacity: Capacity | int,
    *,
    length: int | None = None,
    **overrides: Any,
) -> Table:
    """Propose a table that takes trajectories like this one.

    Nested dicts become columns named ``a/b``. Arrays and tensors whose first axis is the trajectory's
    length T become ``per="step"`` columns of the remaining axes; scalars, arrays without axes and arrays
    of another first axis become ``per="trajectory"``. Arrays and tensors keep their dtype; Python floats
    become float32, ints int64, bools bool, also inside lists.

    Parameters
    ----------
    name : str
    trajectory : dict of arrays, tensors, lists or scalars
    capacity : Steps, Trajectories, Bytes or int
        A number n means ``Steps(n)``.
    length : int, optional
        T. Default: the length that most columns share; needed only where that is not clear.
    **overrides
        Further fields of `Table`, such as ``item=``, ``sampler=``, ``columns=``.

    Raises
    ------
    SchemaError
        If the trajectory is empty, its length cannot be told, or a value has no dtype a column may have.

    Examples
    --------
    >>> import numpy as np
    >>> traj = {"obs": np.zeros((20, 3), np.float32), "reward": [0.0] * 20, "goal": 7}
    >>> [(c.name, c.shape, c.dtype, c.per) for c in table_like("replay", traj, capacity=1000).columns]
    [('obs', (3,), 'float32', 'step'), ('reward', (), 'float32', 'step'), ('goal', (), 'int64', 'trajectory')]
    """
    columns = overrides.pop("columns", None) or _columns(name, trajectory, length)
    return Table(name, columns, Steps(capacity) if isinstance(capacity, int) else capacity, **overrides)


def suggest(name: str, trajectory: Mapping[str, Any] | None = None) -> str:
    """The line a user should write to create the table `name`; never raises.

    Parameters
    ----------
    name : str
    trajectory : dict, optional
        What was to be inserted; its columns are listed behind the line.
    """
    line = f'client.create_table(gear.table_like("{name}", trajectory, capacity=gear.Steps(1_000_000)))'
    if trajectory is None:
        return line
    try:
        columns = _columns(name, trajectory, None)
    except Exception:  # whatever was inserted, the message about the missing table comes first
        return line
    return f"{line}  # columns: {', '.join(map(_text, columns))}"


def _text(column: Column) -> str:
    shape = f"[{', '.join(map(str, column.shape))}]" if column.shape else ""
    return f"{column.name} {column.dtype}{shape}" + (" per trajectory" if column.per == "trajectory" else "")


def _columns(name: str, trajectory: Mapping[str, Any], length: int | None) -> list[Column]:
    owner = f"table_like({name!r})"
    if not isinstance(trajectory, Mapping):
        raise SchemaError(f"{owner}: expected a dict of arrays, got {type(trajectory).__name__}")
    try:
        flat = flatten(trajectory)
    except DataError as error:
        raise SchemaError(f"{owner}: {error}") from None
    if not flat:
        raise SchemaError(f"{owner}: the trajectory is empty; give it at least one array with a time axis")
    kinds = {key: _kind(f"{owner}: column {key!r}", value) for key, value in flat.items()}
    steps = _length(owner, kinds) if length is None else length
    columns = []
    for key, (shape, dtype, _) in kinds.items():
        if shape and shape[0] == steps:
            columns.append(Column(key, shape[1:], dtype))
        else:
            columns.append(Column(key, shape, dtype, per="trajectory"))
    if all(c.per == "trajectory" for c in columns):
        raise SchemaError(f"{owner}: no column has length={length} rows; the lengths are {_lengths(kinds)}")
    return columns


def _length(owner: str, kinds: dict[str, _Kind]) -> int:
    """The first axis that most columns share, refused where another reading is as good."""
    counts = Counter(kind.shape[0] for kind in kinds.values() if kind.shape)
    if not counts:
        raise SchemaError(
            f"{owner}: every value is a scalar, so the trajectory has no time axis; give arrays of T rows"
        )
    (steps, most), *others = counts.most_common()
    remedy = "say which is the trajectory's with length=, or declare the columns with gear.Table"
    if others and others[0][1] == most:
        raise SchemaError(f"{owner}: the columns' lengths differ ({_lengths(kinds)}); {remedy}")
    if steps == 0:
        raise SchemaError(f"{owner}: the trajectory has zero steps ({_lengths(kinds)}); give one of at least one step")
    for key, kind in kinds.items():
        if kind.shape and abs(kind.shape[0] - steps) == 1:
            raise SchemaError(
                f"{owner}: column {key!r} has {kind.shape[0]} rows where others have {steps}; all columns of a "
                f"trajectory are equally long: leave the last observation out (a writer's end(final=...) stores it), "
                f"or if the column is one value per trajectory, {remedy}"
            )
    return steps


def _lengths(kinds: dict[str, _Kind]) -> str:
    return ", ".join(f"{key} {kind.shape[0]}" for key, kind in kinds.items() if kind.shape)


def _kind(owner: str, value: object) -> _Kind:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _Kind(tuple(int(n) for n in value.shape), dtype_name(value.dtype, owner), False)
    if isinstance(value, bool):
        return _Kind((), "bool", True)
    if isinstance(value, int):
        return _Kind((), "int64", True)
    if isinstance(value, float):
        return _Kind((), "float32", True)
    if isinstance(value, (list, tuple)):
        return _kind_of_list(owner, value)
    raise SchemaError(
        f"{owner}: expected an array, a tensor, a list or a number, got {type(value).__name__}; convert it to an array"
    )


def _kind_of_list(owner: str, values: list[Any] | tuple[Any, ...]) -> _Kind:
    kinds = {_kind(owner, value) for value in values}
    if not kinds:
        return _Kind((0,), "float32", True)
    shapes = {kind.shape for kind in kinds}
    if len(shapes) > 1:
        raise SchemaError(f"{owner}: the list is ragged, with rows of shapes {sorted(shapes)}; make them equal")
    dtypes, plain = {kind.dtype for kind in kinds}, all(kind.plain for kind in kinds)
    if plain and dtypes == {"int64", "float32"}:
        dtypes = {"float32"}
    if len(dtypes) > 1:
        raise SchemaError(f"{owner}: the list mixes {', '.join(sorted(dtypes))}; convert it to one dtype")
    return _Kind((len(values), *shapes.pop()), dtypes.pop(), plain)

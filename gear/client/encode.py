"""Trajectories as the user gives them, checked and turned into arrays of exactly the declared kind.

Arrays and tensors must have the declared dtype and shape: nothing is ever cast in silence. Python scalars
and lists of them have no dtype of their own and take the column's, if it can hold them. Nothing here
touches a table's memory; a `Codec` either returns arrays that fit or raises `DataError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gear.client.values import array_of, rows_of, storage_dtype
from gear.columns import flatten
from gear.errors import DataError
from gear.schema import Table

if TYPE_CHECKING:
    import numpy.typing as npt

MOST_LENGTHS = 4096
"""Lengths whose shapes a codec remembers."""


class Encoded(NamedTuple):
    """A trajectory that fits its table.

    Attributes
    ----------
    steps : number of steps, T.
    arrays : dtype[T, *shape] for each per-step column, in the order of `Codec.step_columns`.
    rows : dtype[*shape] for each per-trajectory column, in the order of `Codec.trajectory_columns`.
    """

    steps: int
    arrays: list[np.ndarray]
    rows: list[np.ndarray]


class Codec:
    """Checks what is inserted into one table.

    Parameters
    ----------
    table : Table

    Attributes
    ----------
    heads : what the arrays of each per-step column look like, int64[C, 3 + D], as `read_heads` takes it.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.step_columns = tuple(c for c in table.columns if c.per == "step" and not c.late)
        self.trajectory_columns = tuple(c for c in table.columns if c.per == "trajectory" and not c.late)
        self._names = frozenset(c.name for c in table.columns if not c.late)
        self._step_names = frozenset(c.name for c in self.step_columns)
        self._trajectory_names = frozenset(c.name for c in self.trajectory_columns)
        axes = max(len(c.shape) for c in self.step_columns)
        heads = [(0, id(storage_dtype(c)), len(c.shape), *c.shape) for c in self.step_columns]
        self.heads = np.array([(*head, *(0,) * (3 + axes - len(head))) for head in heads], np.int64)
        self._first = self.step_columns[0].name
        self._shapes: dict[int, list[tuple[str, np.dtype | None, tuple[int, ...]]]] = {}

    def trajectory(self, trajectory: Mapping[str, Any]) -> Encoded:
        """A whole trajectory, per-trajectory columns included.

        Raises
        ------
        DataError
            Naming the column, what was expected and what came.
        """
        tree = self._flat(trajectory, self._names, "trajectory")
        steps, arrays = self._steps(tree)
        return Encoded(steps, arrays, [array_of(c, tree[c.name]) for c in self.trajectory_columns])

    def packed(
        self, values: Mapping[str, Any], offsets: Any
    ) -> tuple[npt.NDArray[np.int64], list[np.ndarray], list[np.ndarray]]:
        """Trajectories behind each other: (int64[N + 1], dtype[sum T, *shape] each, dtype[N, *shape] each).

        What the offsets say is not checked.
        """
        bounds = np.asarray(offsets)
        if bounds.ndim != 1 or not bounds.size or bounds.dtype.kind not in "iu":
            raise DataError(f"offsets: expected int64[N + 1], got {bounds.dtype}{list(bounds.shape)}")
        bounds = bounds.astype(np.int64)
        tree = self._flat(values, self._names, "packed trajectories")
        arrays = [array_of(c, tree[c.name], "T") for c in self.step_columns]
        total, count = len(arrays[0]), len(bounds) - 1
        if any(len(array) != total for array in arrays):
            raise self._unequal(arrays)
        return bounds, arrays, [rows_of(c, tree[c.name], count) for c in self.trajectory_columns]

    def chunk(self, chunk: Mapping[str, Any]) -> tuple[int, list[np.ndarray]]:
        """Consecutive steps: (n, [dtype[n, *shape] per per-step column])."""
        return self._steps(self._flat(chunk, self._step_names, "chunk"))

    def step(self, step: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """One step: every per-step column, without the time axis."""
        tree = self._flat(step, self._step_names, "step")
        return {c.name: array_of(c, tree[c.name]) for c in self.step_columns}

    def final(self, final: Mapping[str, Any]) -> list[np.ndarray | None]:
        """The last observation: any of the per-step columns, None for those not given."""
        tree = self._final(final)
        return [array_of(c, tree[c.name]) if c.name in tree else None for c in self.step_columns]

    def steps_of(self, step: Mapping[str, Any], count: int) -> list[np.ndarray]:
        """One step of `count` environments: dtype[count, *shape] per per-step column."""
        tree = self._flat(step, self._step_names, "step")
        return [rows_of(c, tree[c.name], count) for c in self.step_columns]

    def finals(self, final: Mapping[str, Any], count: int) -> list[np.ndarray | None]:
        """Last observations of `count` trajectories: dtype[count, *shape] per per-step column, None if not given."""
        tree = self._final(final)
        return [rows_of(c, tree[c.name], count) if c.name in tree else None for c in self.step_columns]

    def values_of(self, values: Mapping[str, Any], count: int) -> list[np.ndarray]:
        """The per-trajectory columns of `count` trajectories: dtype[count, *shape] each."""
        tree = self._flat(values, self._trajectory_names, "trajectory columns")
        return [rows_of(c, tree[c.name], count) for c in self.trajectory_columns]

    def trajectory_rows(self, values: Mapping[str, Any]) -> list[np.ndarray]:
        """The per-trajectory columns alone."""
        tree = self._flat(values, self._trajectory_names, "trajectory columns")
        return [array_of(c, tree[c.name]) for c in self.trajectory_columns]

    def _final(self, final: Mapping[str, Any]) -> Mapping[str, Any]:
        tree = _flatten(final, "final")
        self._refuse(sorted(tree.keys() - self._step_names), [], "final")
        if not tree:
            raise DataError("final: expected the last value of at least one per-step column, got an empty dict")
        return tree

    def _flat(self, given: Mapping[str, Any], names: frozenset[str], what: str) -> Mapping[str, Any]:
        """`given` with flat names, refused unless they are exactly `names`."""
        if isinstance(given, dict) and given.keys() == names:
            return given
        tree = _flatten(given, what)
        if tree.keys() != names:
            self._refuse(
                sorted(tree.keys() - names), [c.name for c in self.table.columns if c.name in names - tree.keys()], what
            )
        return tree

    def _refuse(self, extra: list[str], missing: list[str], what: str) -> None:
        if not extra and not missing:
            return
        parts = []
        if missing:
            parts.append(f"misses column{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}")
        if extra:
            parts.append(f"has {', '.join(map(repr, extra))}, which the table does not have here")
        known = ", ".join(f"{c.name} (per {c.per}{', late: fill it' * c.late})" for c in self.table.columns)
        raise DataError(f"{what} for table {self.table.name!r} {' and '.join(parts)}; its columns are {known}")

    def _steps(self, tree: Mapping[str, Any]) -> tuple[int, list[np.ndarray]]:
        """The per-step columns as arrays of one length."""
        first = tree[self._first]
        if type(first) is np.ndarray and first.ndim:
            steps = len(first)
            shapes = self._shapes.get(steps) or self._shapes_of(steps)
            arrays = []
            for name, dtype, shape in shapes:
                value = tree[name]
                if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                    break
                arrays.append(value)
            else:
                if steps:
                    return steps, arrays
        return self._checked_steps(tree)

    def _shapes_of(self, steps: int) -> list[tuple[str, np.dtype | None, tuple[int, ...]]]:
        """What the arrays of a trajectory of that length look like when nothing is to be done to them."""
        if len(self._shapes) >= MOST_LENGTHS:
            self._shapes.clear()
        shapes = self._shapes[steps] = [
            # bfloat16 arrives in many forms, none of which is the stored one
            (c.name, None if c.dtype == "bfloat16" else storage_dtype(c), (steps, *c.shape))
            for c in self.step_columns
        ]
        return shapes

    def _checked_steps(self, tree: Mapping[str, Any]) -> tuple[int, list[np.ndarray]]:
        arrays = [array_of(c, tree[c.name], "T") for c in self.step_columns]
        steps = len(arrays[0])
        if any(len(array) != steps for array in arrays):
            raise self._unequal(arrays)
        if steps == 0:
            raise DataError(f"trajectory for table {self.table.name!r} has zero steps; expected at least one")
        return steps, arrays

    def _unequal(self, arrays: list[np.ndarray]) -> DataError:
        counts = [(c.name, len(array)) for c, array in zip(self.step_columns, arrays, strict=True)]
        told = ", ".join(f"{name} {count}" for name, count in counts)
        return DataError(
            f"columns have unequal lengths: {told}; expected one row per step in each "
            "(a last observation goes into final=)"
        )


def _flatten(given: object, what: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise DataError(f"{what}: expected a dict of column name to array, got {type(given).__name__}")
    if not all(isinstance(name, str) for name in given):
        raise DataError(f"{what}: expected names as keys, got {sorted(map(repr, given))}")
    return flatten(given)

"""Views: how the columns of an item become tensors. Frozen data that travels; what is made of it is a plan's business.

Positions are steps of the trajectory relative to the item's first row. Without `offset` and `length` a view shows the
item's own rows; with them any rows of the trajectory. What a trajectory does not have is padding, and a mask says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from gear.columns import dtype_name
from gear.errors import SchemaError
from gear.rules import MAX_INT32, real, whole_number

FLOATING = ("float16", "bfloat16", "float32", "float64")


class Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all views have: which rows they show, where padding goes, and their name in the batch.

    Parameters
    ----------
    name : str, optional
        Key of the batch; default the column's name. Two views of one column need two names.
    offset : int
        First row shown, relative to the item's first one; may be negative.
    length : int, optional
        Rows shown, L; 0 (default): as many as the item has, of `Step` items one without a time axis. Not in the
        packed layout.
    pad : {"head", "tail"}, optional
        Where the padding goes. Default: where the rows are missing, so that position j is the same step in every
        column.
    value : bool, int or float
        Value of steps that are not there.
    dtype : str, optional
        Dtype of the result; default the column's own.
    """

    name: str = ""
    offset: int = 0
    length: int = 0
    pad: Literal["", "head", "tail"] = ""
    value: bool | int | float = 0
    dtype: str = ""

    def _check(self, column: object) -> None:
        kind = type(self).__name__
        if not isinstance(column, str):
            raise SchemaError(f"{kind}: column must be a name, got {column!r}")
        owner = f"{kind} {column!r}"
        if not isinstance(self.name, str):
            raise SchemaError(f"{owner}: name must be a string, got {self.name!r}")
        if self.pad is None:
            force_setattr(self, "pad", "")
        if self.pad not in ("", "head", "tail") or isinstance(self.pad, (int, float)):
            raise SchemaError(
                f"{owner}: pad must be 'head' or 'tail', got {self.pad!r}; the value of padding is value="
            )
        if not isinstance(self.value, (bool, int, float, np.number, np.bool_)):
            raise SchemaError(f"{owner}: value must be a number, got {self.value!r}")
        if isinstance(self.value, (np.number, np.bool_)):
            force_setattr(self, "value", self.value.item())
        force_setattr(self, "offset", whole_number(owner, "offset", self.offset, -MAX_INT32, MAX_INT32))
        force_setattr(self, "length", whole_number(owner, "length", self.length or 0, 0, MAX_INT32))
        if self.dtype is None:
            force_setattr(self, "dtype", "")
        if self.dtype != "":
            force_setattr(self, "dtype", dtype_name(self.dtype, owner))

    @property
    def moved(self) -> bool:
        """Whether the rows shown are not simply the item's own, in their places."""
        return bool(self.offset or self.length or self.pad)


class View(Shown, frozen=True, tag="view"):
    """One column.

    Parameters
    ----------
    column : str
        Name of the column.
    shift : int
        Value of that many steps later: 1 gives next observations. Where the trajectory ends before, it is its `final`
        row (zeros in columns that `final` did not give), and padding where none was given or the trajectory still
        grows: the view's mask is false there.
    stack : int, optional
        Frames stacked: [..., stack, *shape], the step's own last. 0: no such axis.
    fill : {"repeat", "zero"}
        What stands in a stack for frames before the trajectory's first: that one, or zeros.
    scale : float
        Factor of a floating `dtype`: value * scale, computed in float64 and rounded once (for bfloat16 by way of
        float32).

    Notes
    -----
    `dtype` converts from any dtype to a floating one, by way of float64, and between whole numbers, which wrap
    around as in C.
    """

    column: str
    shift: int = 0
    stack: int = 0
    fill: Literal["repeat", "zero"] = "repeat"
    scale: float = 1.0

    def __post_init__(self) -> None:
        self._check(self.column)
        owner = f"View {self.column!r}"
        force_setattr(self, "shift", whole_number(owner, "shift", self.shift, 0, MAX_INT32))
        force_setattr(self, "stack", whole_number(owner, "stack", self.stack, 0, MAX_INT32))
        if self.fill not in ("repeat", "zero"):
            raise SchemaError(f"{owner}: fill must be 'repeat' or 'zero', got {self.fill!r}")
        force_setattr(self, "scale", real(owner, "scale", self.scale, -1e300, 1e300))
        if self.scale != 1.0 and self.dtype not in FLOATING:
            raise SchemaError(f"{owner}: scale needs a floating dtype, got dtype={self.dtype!r}; use dtype='float32'")

    @property
    def key(self) -> str:
        """Its name in the batch."""
        return self.name or self.column

    @property
    def plain(self) -> bool:
        """Whether it is the column as it is stored."""
        changed = self.moved or self.shift or self.stack or self.dtype or self.scale != 1.0
        return not changed and self.key == self.column


class NStep(Shown, frozen=True, tag="n_step"):
    """Rewards of up to `n` steps, discounted: three arrays, ``name/return``, ``name/discount`` and ``name/steps``.

    With k the number of steps, fewer than `n` where the trajectory ends before: return = r[t] + gamma r[t+1] + ... +
    gamma^(k-1) r[t+k-1]; discount = gamma^k is the factor of the value of the observation k steps later (a view with
    ``shift=n``), 0 where that one is terminal. A trajectory that was truncated, or that still grows, bootstraps; where
    it has no such observation the mask of the shifted view says so.

    Parameters
    ----------
    column : str
        Rewards, of any dtype and shape.
    n : int
    gamma : float
        In [0, 1].

    Notes
    -----
    The return is float32 unless `dtype` says otherwise, the discount float32, steps int32; sums are float64. Sutton
    and Barto, "Reinforcement Learning" (2018), 7.1; truncation as in Pardo et al., "Time Limits in Reinforcement
    Learning" (2018).
    """

    column: str
    n: int
    gamma: float

    def __post_init__(self) -> None:
        self._check(self.column)
        owner = f"NStep {self.column!r}"
        force_setattr(self, "n", whole_number(owner, "n", self.n, 1, MAX_INT32))
        force_setattr(self, "gamma", real(owner, "gamma", self.gamma, 0.0, 1.0))
        _floating(owner, self.dtype)

    @property
    def key(self) -> str:
        """What its names in the batch begin with."""
        return self.name or self.column


class ReturnToGo(Shown, frozen=True, tag="return_to_go"):
    """Sum of this and all later rewards of the trajectory, discounted: r[t] + gamma r[t+1] + ...

    Rewards end where the trajectory ends, however it ends, or behind the last piece that is there (of one that was
    split). float32 unless `dtype` says otherwise; sums are float64. Chen et al., "Decision Transformer" (2021).

    Parameters
    ----------
    column : str
    gamma : float
        In [0, 1].
    """

    column: str
    gamma: float = 1.0

    def __post_init__(self) -> None:
        self._check(self.column)
        owner = f"ReturnToGo {self.column!r}"
        force_setattr(self, "gamma", real(owner, "gamma", self.gamma, 0.0, 1.0))
        _floating(owner, self.dtype)

    @property
    def key(self) -> str:
        """Its name in the batch."""
        return self.name or f"{self.column}/return_to_go"


class Timestep(Shown, frozen=True, tag="timestep"):
    """Number of each step in its trajectory, from 0, counted over the pieces of a split one; int64."""

    def __post_init__(self) -> None:
        self._check("")
        if self.dtype not in ("", "int64", "int32", "float32"):
            raise SchemaError(f"Timestep: dtype must be int64, int32 or float32, got {self.dtype!r}")

    @property
    def column(self) -> str:
        """No column."""
        return ""

    @property
    def key(self) -> str:
        """Its name in the batch."""
        return self.name or "timestep"


AnyView = View | NStep | ReturnToGo | Timestep


def _floating(owner: str, dtype: str) -> None:
    if dtype not in ("", *FLOATING):
        raise SchemaError(f"{owner}: dtype must be floating, got {dtype!r}; use one of {', '.join(FLOATING)}")


def as_views(columns: object) -> tuple[AnyView, ...]:
    """Column names and views as views; raises SchemaError for anything else or a name given twice."""
    if isinstance(columns, (str, Shown)) or not isinstance(columns, Iterable):
        raise SchemaError(f"views must be a sequence of View or column names, got {columns!r}")
    views = tuple(View(v) if isinstance(v, str) else v for v in columns)
    for view in views:
        if not isinstance(view, Shown):
            raise SchemaError(f"views must be View or column names, got {view!r}")
    names = [v.key for v in views]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise SchemaError(
            f"views are named twice: {', '.join(twice)}; give each a name of its own, as View(..., name=) or "
            "n_step(..., name=)"
        )
    return views

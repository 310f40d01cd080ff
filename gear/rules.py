"""How a table is sized and drawn from: capacities, items, samplers and removers.

Small frozen values, validated when constructed, equal by value, tagged by class on the wire. They say
what is wanted; the code that does it lives in `storage` and `selection`. The checks that `schema` shares
stand here too. Nothing here knows a column, memory, sockets or kernels.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from gear.errors import SchemaError

MAX_ALPHA = 4.0
MAX_EPS = 1e30
MAX_INT32 = 2**31 - 1
MAX_WHOLE = 2**63 - 1
"""Largest whole number of any field: what fits an int64 of the directory and of msgpack alike."""


def require(condition: bool, message: str) -> None:
    """Raise `SchemaError` with `message` unless `condition` holds."""
    if not condition:
        raise SchemaError(message)


def whole_number(owner: str, field: str, value: object, least: int = 1, most: int = MAX_WHOLE) -> int:
    """`value` as int, refused unless it is a whole number in [least, most] (a bool is no number here)."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and least <= int(value) <= most:
        return int(value)
    bound = "" if most == MAX_WHOLE and not (isinstance(value, int) and value > most) else f" and <= {most}"
    raise SchemaError(f"{owner}: {field} must be a whole number >= {least}{bound}, got {value!r}")


def real(owner: str, field: str, value: object, least: float, most: float = math.inf) -> float:
    """`value` as float, refused unless it is a number in [least, most]; NaN never is."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an int beyond every float
            number = math.nan
        if least <= number <= most:
            return number
    raise SchemaError(f"{owner}: {field} must be a number in [{least:g}, {most:g}], got {value!r}")


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frozen value; a subclass with a `tag` names its class on the wire."""


class Steps(Spec, frozen=True, tag="steps"):
    """At most `n` committed steps, all trajectories together."""

    n: int

    def __post_init__(self) -> None:
        force_setattr(self, "n", whole_number("Steps", "n", self.n))


class Trajectories(Spec, frozen=True, tag="trajectories"):
    """At most `n` committed trajectories; memory is sized by the table's `mean_length`."""

    n: int

    def __post_init__(self) -> None:
        force_setattr(self, "n", whole_number("Trajectories", "n", self.n))


class Bytes(Spec, frozen=True, tag="bytes"):
    """At most `n` bytes of blocks, padding included."""

    n: int

    def __post_init__(self) -> None:
        force_setattr(self, "n", whole_number("Bytes", "n", self.n))


Capacity = Steps | Trajectories | Bytes


class Whole(Spec, frozen=True, tag="whole"):
    """An item is a whole trajectory; batches are padded at the tail to the longest one drawn."""


class Step(Spec, frozen=True, tag="step"):
    """An item is one row, drawable once `n` rows follow it or its trajectory ended."""

    n: int = 1

    def __post_init__(self) -> None:
        force_setattr(self, "n", whole_number("Step", "n", self.n, 0, MAX_INT32))


class Window(Spec, frozen=True, tag="window"):
    """An item is `length` consecutive rows of one trajectory; every `stride`-th position counts.

    Parameters
    ----------
    length : int
        Rows per item, L.
    stride : int
        Distance between the positions of neighbouring items.
    edge : {"inside", "tail", "head"}
        ``inside``: starts 0..T-L, and a single window padded at the tail if T < L. ``tail``: every
        start 0..T-1, padded at the tail. ``head``: every end 0..T-1, padded at the head.
    """

    length: int
    stride: int = 1
    edge: Literal["inside", "tail", "head"] = "inside"

    def __post_init__(self) -> None:
        force_setattr(self, "length", whole_number("Window", "length", self.length, 1, MAX_INT32))
        force_setattr(self, "stride", whole_number("Window", "stride", self.stride, 1, MAX_INT32))
        require(
            self.edge in ("inside", "tail", "head"),
            f"Window: edge must be 'inside', 'tail' or 'head', got {self.edge!r}",
        )


Item = Whole | Step | Window


class Uniform(Spec, frozen=True, tag="uniform"):
    """Every item with the same probability, or every trajectory.

    Parameters
    ----------
    over : {"items", "trajectories"}
        ``items``: each item with probability 1 / items, so that long trajectories are drawn from more often.
        ``trajectories``: a trajectory uniformly, then one of its items uniformly; with ``distinct`` tables this
        is the law of a batch's first draw.
    """

    over: Literal["items", "trajectories"] = "items"

    def __post_init__(self) -> None:
        require(
            self.over in ("items", "trajectories"),
            f"Uniform: over must be 'items' or 'trajectories', got {self.over!r}",
        )


class Prioritized(Spec, frozen=True, tag="prioritized"):
    """Items with probability proportional to (priority + eps) ** alpha (Schaul et al., 2016).

    An item with priority + eps = 0 is never drawn, whatever alpha.
    """

    alpha: float = 0.6
    eps: float = 0.0

    def __post_init__(self) -> None:
        force_setattr(self, "alpha", real("Prioritized", "alpha", self.alpha, 0.0, MAX_ALPHA))
        force_setattr(self, "eps", real("Prioritized", "eps", self.eps, 0.0, MAX_EPS))


class Fifo(Spec, frozen=True, tag="fifo"):
    """The oldest first, by the order of commits."""


class Lifo(Spec, frozen=True, tag="lifo"):
    """The newest first: the trajectory whose first commit came last, its last item first."""


class MaxHeap(Spec, frozen=True, tag="max_heap"):
    """The largest priority first; of equal ones the one inserted or updated least recently, as in Reverb."""


class MinHeap(Spec, frozen=True, tag="min_heap"):
    """The smallest priority first, 0 included; of equal ones the one inserted or updated least recently."""


class Epochs(Spec, frozen=True, tag="epochs"):
    """Every stored item once per epoch, in an order shuffled by the table's seed; a sampler only.

    An item inserted in mid-epoch joins the epoch that runs, an item drawn and not delivered goes back into it.
    An epoch ends with the first draw that finds nothing left in it.
    """


class Fresh(Spec, frozen=True, tag="fresh"):
    """The newest policy version first, of equal versions the oldest by the order of commits; a sampler only."""


Sampler = Uniform | Prioritized | Fifo | Lifo | MaxHeap | MinHeap | Epochs | Fresh
Remover = Uniform | Prioritized | Fifo | Lifo | MaxHeap | MinHeap

"""How a table is sized, drawn from and held back: capacities, items, samplers and removers, limiters.

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
    """Every item with the same probability."""


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


Sampler = Uniform | Prioritized | Fifo
Remover = Uniform | Prioritized | Fifo


class MinSize(Spec, frozen=True, tag="min_size"):
    """Samples wait until the table holds at least `n` items; inserts never wait."""

    n: int = 1

    def __post_init__(self) -> None:
        force_setattr(self, "n", whole_number("MinSize", "n", self.n))


class SampleToInsertRatio(Spec, frozen=True, tag="sample_to_insert_ratio"):
    """Keep sampled items / inserted items near a ratio, with Reverb's semantics.

    With D = samples_per_insert * inserts - samples, a sample waits while the table holds fewer than
    `min_size` items or D - 1 < low; an insert waits while D + samples_per_insert > high, unless the
    table stays at or below `min_size` items. A commit of many items is admitted whole when its first
    item is.

    Parameters
    ----------
    samples_per_insert : float
        Target ratio, > 0.
    min_size : int
        Items needed before the first sample.
    error_buffer : float or (float, float)
        A number e allows D in ``samples_per_insert * min_size -+ e``; a pair is (low, high) itself.
    """

    samples_per_insert: float
    min_size: int
    error_buffer: float | tuple[float, float]

    def __post_init__(self) -> None:
        name = "SampleToInsertRatio"
        ratio = real(name, "samples_per_insert", self.samples_per_insert, 0.0)
        require(0 < ratio < math.inf, f"{name}: samples_per_insert must be > 0 and finite, got {ratio!r}")
        force_setattr(self, "samples_per_insert", ratio)
        force_setattr(self, "min_size", whole_number(name, "min_size", self.min_size))
        if isinstance(self.error_buffer, (tuple, list)):
            require(len(self.error_buffer) == 2, f"{name}: error_buffer as a pair is (low, high)")
            low, high = (real(name, "error_buffer", x, -math.inf) for x in self.error_buffer)
            force_setattr(self, "error_buffer", (low, high))
        else:
            force_setattr(self, "error_buffer", real(name, "error_buffer", self.error_buffer, 0.0))
        low, high = self.bounds
        least = 2 * max(1.0, ratio)
        require(
            math.isfinite(low) and math.isfinite(high) and high - low >= least,
            f"{name}: error_buffer allows differences in [{low:g}, {high:g}], a span of {high - low:g}; "
            f"with samples_per_insert={ratio:g} it must be finite and at least {least:g} or "
            "inserts and samples can block each other for ever",
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """(low, high) of samples_per_insert * inserts - samples."""
        if isinstance(self.error_buffer, tuple):
            return self.error_buffer
        middle = self.samples_per_insert * self.min_size
        return middle - self.error_buffer, middle + self.error_buffer


Limiter = MinSize | SampleToInsertRatio

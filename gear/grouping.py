"""Groups of trajectories that are drawn together, and the filters that a whole group must pass.

Small frozen values like those of `rules`. Filters are pure functions of one number per member. Nothing here knows
memory, sockets or kernels.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from msgspec.structs import force_setattr

from gear.errors import DataError
from gear.rules import MAX_INT32, Spec, real, require, whole_number

MOST_MEMBERS = 4096
KEY_BYTES = 32
"""Bytes of a stored key: its kind, then the number or the text."""

Key = int | str | bytes


class NonzeroVariance(Spec, frozen=True, tag="nonzero_variance"):
    """Only groups whose members do not all have the same value in `column`.

    Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476): a group of equal rewards has advantage 0 throughout and
    teaches nothing.
    """

    column: str

    def keeps(self, values: np.ndarray) -> bool:
        """Whether a group with these values, dtype[members], stays."""
        return bool((values != values[0]).any())


class MeanBetween(Spec, frozen=True, tag="mean_between"):
    """Only groups whose mean of `column` lies between two bounds, both excluded: prompts half solved."""

    column: str
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        for field in ("low", "high"):
            force_setattr(self, field, real("MeanBetween", field, getattr(self, field), -math.inf))
        require(self.low < self.high, f"MeanBetween: expected low < high, got {self.low!r} and {self.high!r}")

    def keeps(self, values: np.ndarray) -> bool:
        """Whether a group with these values, dtype[members], stays."""
        return self.low < float(np.mean(values, dtype=np.float64)) < self.high


Filter = NonzeroVariance | MeanBetween


class Groups(Spec, frozen=True, tag="groups"):
    """Whole groups of `size` trajectories inserted with the same key, the group first that was complete first.

    A batch holds whole groups, members adjacent, and its size counts groups. Each group is delivered once (to each
    consumer, where the table declares some). Removers take whole groups too.

    Parameters
    ----------
    size : int
        Members of a group.
    deadline : float
        Seconds from a group's first member after which it is not waited for any more.
    short : {"drop", "deliver"}
        What becomes of it then: dropped, counted and logged, or delivered with the members that came.
    filter : NonzeroVariance or MeanBetween, optional
        Which groups are delivered; the others are dropped and counted. It looks at a column with one number per
        trajectory, once every member has it.
    """

    size: int
    deadline: float = math.inf
    short: Literal["drop", "deliver"] = "drop"
    filter: Filter | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "size", whole_number("Groups", "size", self.size, 1, min(MAX_INT32, MOST_MEMBERS)))
        force_setattr(self, "deadline", real("Groups", "deadline", self.deadline, 0.0))
        require(self.short in ("drop", "deliver"), f"Groups: short must be 'drop' or 'deliver', got {self.short!r}")
        require(
            self.filter is None or isinstance(self.filter, (NonzeroVariance, MeanBetween)),
            f"Groups: filter must be NonzeroVariance or MeanBetween, got {self.filter!r}",
        )


def encode_key(key: object) -> np.ndarray:
    """A group's key as it is stored: uint8[KEY_BYTES], equal exactly where keys are equal.

    Raises
    ------
    DataError
        If it is no int64, and no str or bytes of at most 30 bytes.
    """
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool) and -(2**63) <= int(key) < 2**63:
        data = b"\x01\x08" + int(key).to_bytes(8, "little", signed=True)
    elif isinstance(key, (str, bytes)) and len(raw := key.encode() if isinstance(key, str) else key) <= KEY_BYTES - 2:
        data = bytes([2 if isinstance(key, str) else 3, len(raw)]) + raw
    else:
        raise DataError(f"group: expected an int64, or str or bytes of at most {KEY_BYTES - 2} bytes, got {key!r}")
    return np.frombuffer(data.ljust(KEY_BYTES, b"\0"), np.uint8)


def decode_key(data: bytes) -> Key:
    """The key again; what no key can have become is returned as bytes."""
    kind, raw = data[0], data[2 : 2 + data[1]]
    if kind == 1:
        return int.from_bytes(raw, "little", signed=True)
    return raw.decode(errors="replace") if kind == 2 else bytes(raw)

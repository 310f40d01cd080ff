"""Named arrays that travel together: what each is, and where it lies in one buffer.

The weights of a model, say: `Client.publish` takes them and `Client.fetch` returns them. Nothing here knows a table,
sockets or torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from gear.columns import DTYPES
from gear.errors import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

ALIGN = 64
MOST_ENTRIES = 1 << 16
LONGEST_NAME = 512
_MOST_BYTES = 1 << 48


class Entry(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One array: its name, dtype (one of `DTYPES`) and shape."""

    name: Annotated[str, Meta(max_length=LONGEST_NAME)]
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**48)], ...], Meta(max_length=64)]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * DTYPES[self.dtype]


Entries = Annotated[tuple[Entry, ...], Meta(min_length=1, max_length=MOST_ENTRIES)]


class Published(NamedTuple):
    """What `Client.fetch` returns: the version, from 1 on, and the arrays by their flat names."""

    version: int
    arrays: dict[str, Any]


def lay_out(entries: Sequence[Entry]) -> tuple[list[int], int]:
    """Offset of each array in the buffer, and the bytes of the buffer.

    Raises
    ------
    DataError
        If a dtype is none of `DTYPES`, a name comes twice, or all are larger than any memory.
    """
    offsets, at = [], 0
    for entry in entries:
        if entry.dtype not in DTYPES:
            raise DataError(f"array {entry.name!r}: dtype {entry.dtype!r} is not supported; use {', '.join(DTYPES)}")
        offsets.append(at)
        at += -(-entry.nbytes // ALIGN) * ALIGN
    if len({entry.name for entry in entries}) != len(entries):
        names = [entry.name for entry in entries]
        raise DataError(f"arrays are named twice: {', '.join(sorted({n for n in names if names.count(n) > 1})[:8])}")
    if at > _MOST_BYTES:
        raise DataError(f"the arrays take {at} bytes, more than any memory has")
    return offsets, at


class Parcel(NamedTuple):
    """Arrays on their way: `parts` holds the bytes of each, uint8[nbytes], which stay the caller's."""

    entries: tuple[Entry, ...]
    offsets: list[int]
    nbytes: int
    parts: list[npt.NDArray[np.uint8]]

    def write(self, begin: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill `out`, uint8[N], with the bytes from `begin` on; gaps between arrays become 0."""
        end, at = begin + len(out), 0
        first = max(0, int(np.searchsorted(self.offsets, begin, "right")) - 1)
        for offset, part in zip(self.offsets[first:], self.parts[first:], strict=True):
            if offset >= end:
                break
            low, high = max(offset, begin), min(offset + len(part), end)
            if high <= low:
                continue
            out[at : low - begin] = 0
            out[low - begin : high - begin] = part[low - offset : high - offset]
            at = high - begin
        out[at:] = 0


def late(name: str, newer_than: int, latest: int | None) -> str:
    """What a fetch says at its timeout."""
    there = "nothing is published under that name" if latest is None else f"version {latest} is the latest"
    return f"fetch of {name!r} newer than version {newer_than} timed out: {there}"

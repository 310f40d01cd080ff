"""Which transfers bring rows from one memory to another: runs of blocks, put together into chains.

Pure functions over numbers. A transfer has one contiguous range at each end; a chain is posted at once, its last
transfer alone says that all are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

MOST = 127
"""Transfers of a chain at most."""

LONGEST = 1 << 20
"""Bytes of a transfer at most: longer ones gain nothing, and a failed one is done again from its start."""


class Transfer(NamedTuple):
    """Bytes to move: offsets from where each end's memory begins."""

    near: int
    far: int
    nbytes: int


def runs(near: npt.NDArray[np.int64], far: npt.NDArray[np.int64], nbytes: int) -> list[Transfer]:
    """Transfers of places of `nbytes` bytes each, those that follow each other at both ends as one.

    near, far : int64[N], offsets of the places.
    """
    if not len(near):
        return []
    breaks = np.flatnonzero((np.diff(near) != nbytes) | (np.diff(far) != nbytes)) + 1
    begins, ends = np.concatenate(([0], breaks)).tolist(), np.concatenate((breaks, [len(near)])).tolist()
    return [
        part
        for begin, end in zip(begins, ends, strict=True)
        for part in _cut(Transfer(int(near[begin]), int(far[begin]), (end - begin) * nbytes))
    ]


def _cut(whole: Transfer) -> Iterator[Transfer]:
    for at in range(0, whole.nbytes, LONGEST):
        yield Transfer(whole.near + at, whole.far + at, min(LONGEST, whole.nbytes - at))


def chains(transfers: Sequence[Transfer]) -> list[Sequence[Transfer]]:
    """The same transfers in order, as chains."""
    return [transfers[at : at + MOST] for at in range(0, len(transfers), MOST)]

"""Commit entries that are submitted together: their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def number(entries: npt.NDArray[np.void], first: int) -> None:
    """Give entries their sequence numbers, and to those that go on behind the one before them its number."""
    sequences = np.arange(first, first + len(entries))
    entries["sequence"], follows = sequences, entries["follows"]
    if follows.any():
        behind = follows < 0
        follows[behind] = sequences[behind] - 1

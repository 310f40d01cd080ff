"""Batches by a budget of steps: as many items, in the order of the draw, as fit; never more. One, or one for each rank.

Items are drawn in parts, pinned, and what does not fit goes back as if it had not been drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.errors import DataError
from gear.storage import settle
from gear.storage.shares import Bins

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.table import StoredTable

AT_ONCE = 1024
"""Items drawn at a time at most."""


class Budget(NamedTuple):
    """Most steps of a batch; `alone`: an item that is longer comes in a batch of its own instead of an error."""

    steps: int
    alone: bool


class Drawn(NamedTuple):
    """Items that are drawn and pinned."""

    ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]

    def part(self, where: slice | npt.NDArray[np.bool_]) -> Drawn:
        """Some of them."""
        return Drawn(*(array[where].copy() for array in self))


def fill(stored: StoredTable, which: int, size: int, budget: Budget, ranks: int = 1) -> tuple[Drawn, float] | None:
    """Draw and pin items of a set for `ranks` batches of up to `size` items and `budget.steps` steps.

    They end with the first item that does not fit, or when no more can be drawn now. None: nobody is drawn for some.
    Beside the items: any item's least probability.

    Raises
    ------
    DataError
        If an item is longer and some batch has none yet; nothing is drawn then.
    """
    parts: list[Drawn] = []
    count = used = 0
    smallest, mean, distinct = 1.0, float(max(1, stored.table.mean_length)), stored.table.distinct
    bins = Bins(ranks, size, *budget) if ranks > 1 else None
    most, steps = size * ranks, budget.steps * ranks
    while count < most and used < steps:
        want = int(min(most - count, AT_ONCE, max(1.0, (steps - used) / mean)))
        drawn, least = _draw(stored, which, want)
        if drawn is None:
            break
        smallest = least if not parts else smallest
        if distinct and parts:
            new = ~np.isin(drawn.ids, np.concatenate([part.ids for part in parts]))
            _give_back(stored, which, drawn.part(~new))
            drawn = drawn.part(new)
            if not len(drawn.ids):
                break
        fits = _fitting(drawn.lengths, budget, used, bins)
        over = fits < len(drawn.ids)
        if over:
            _give_back(stored, which, drawn.part(slice(fits, None)))
        if fits:
            parts.append(drawn.part(slice(0, fits)))
            count, used = count + fits, used + int(drawn.lengths[:fits].sum(dtype=np.int64))
        if over and count < ranks:
            _give_back_all(stored, which, parts)
            raise too_long(stored.table.name, int(drawn.lengths[fits]), int(drawn.ids[fits]), budget)
        if over:
            break
        mean = max(1.0, used / count)
    if count < ranks:
        _give_back_all(stored, which, parts)
        return None
    return Drawn(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))), smallest


def _fitting(lengths: npt.NDArray[np.int32], budget: Budget, used: int, bins: Bins | None) -> int:
    """How many of the next items fit."""
    if bins is not None:
        return next((k for k, length in enumerate(lengths.tolist()) if not bins.put(length)), len(lengths))
    fits = int(np.searchsorted(used + np.cumsum(lengths, dtype=np.int64), budget.steps, "right"))
    return 1 if not fits and not used and budget.alone else fits


def too_long(table: str, steps: int, number: int, budget: Budget) -> DataError:
    """The error for an item that can be in no batch."""
    return DataError(
        f"table {table!r}: an item of {steps} steps (id {number}) does not fit into max_steps={budget.steps}; raise "
        'it, or ask for overlong="alone"'
    )


def _draw(stored: StoredTable, which: int, size: int) -> tuple[Drawn | None, float]:
    """Up to `size` items, as many as the limiter lets pass now."""
    credit = 0
    for _ in range(2):
        drawn = Drawn(np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int32), np.empty(size))
        n, credit, smallest = stored.draw(
            which, size, credit, True, drawn.ids, drawn.starts, drawn.lengths, drawn.probabilities
        )
        if n:
            return drawn.part(slice(0, n)), float(smallest)
        if not 0 < credit < size:
            break
        size = credit
    stored.unreserve(credit)
    return None, 1.0


def _give_back(stored: StoredTable, which: int, drawn: Drawn) -> None:
    """Undo a draw."""
    settle.settle(stored.segment, stored.params, which, drawn.ids, False)
    settle.release(stored.segment, stored.params, drawn.ids)


def _give_back_all(stored: StoredTable, which: int, parts: list[Drawn]) -> None:
    for part in parts:
        _give_back(stored, which, part)

"""Batches by a budget of steps: as many items, in the order of the draw, as fit; never more.

Items are drawn in parts, pinned, and what does not fit goes back as if it had not been drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.errors import DataError
from gear.storage import draw, settle

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


def fill(stored: StoredTable, which: int, size: int, budget: Budget) -> tuple[Drawn, float] | None:
    """Draw and pin up to `size` items of a set, at most `budget.steps` steps, and any item's least probability.

    The batch ends with the first item that does not fit, or when no more can be drawn now. None: nothing can be drawn.

    Raises
    ------
    DataError
        If the first item alone is longer; nothing is drawn then.
    """
    parts: list[Drawn] = []
    count = used = 0
    smallest, mean, distinct = 1.0, float(max(1, stored.table.mean_length)), stored.table.distinct
    while count < size and used < budget.steps:
        want = int(min(size - count, AT_ONCE, max(1.0, (budget.steps - used) / mean)))
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
        ends = used + np.cumsum(drawn.lengths, dtype=np.int64)
        fits = int(np.searchsorted(ends, budget.steps, "right"))
        over = fits < len(drawn.ids)
        if not parts and not fits:
            fits = 1 if budget.alone else 0
        if over or fits < len(drawn.ids):
            _give_back(stored, which, drawn.part(slice(fits, None)))
        if not parts and not fits:
            raise DataError(
                f"table {stored.table.name!r}: an item of {drawn.lengths[0]} steps (id {drawn.ids[0]}) does not fit "
                f'into max_steps={budget.steps}; raise it, or ask for overlong="alone"'
            )
        if fits:
            parts.append(drawn.part(slice(0, fits)))
            count, used = count + fits, used + int(drawn.lengths[:fits].sum(dtype=np.int64))
        if over:
            break
        mean = max(1.0, used / count)
    if not parts:
        return None
    return Drawn(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))), smallest


def _draw(stored: StoredTable, which: int, size: int) -> tuple[Drawn | None, float]:
    """Up to `size` items, as many as the limiter lets pass now."""
    credit = 0
    for _ in range(2):
        drawn = Drawn(np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int32), np.empty(size))
        n, credit, smallest = draw.select(
            stored.segment, stored.params, which, size, credit, True, 1, drawn.ids, drawn.starts, drawn.lengths,
            drawn.probabilities,
        )  # fmt: skip
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

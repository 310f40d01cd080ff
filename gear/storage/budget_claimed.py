"""Batches by a budget of steps from a consumer's line: as many units, in its order, as fit; groups stay whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.query import MOST_ITEMS
from gear.storage import settle
from gear.storage.budget import too_long
from gear.storage.shares import Bins

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.budget import Budget
    from gear.storage.table import StoredTable


def take_steps(
    stored: StoredTable, client: int, consumer: int, most: int, each: int, budget: Budget, ranks: int
) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Claim and pin up to `most` of the units that wait, for batches of at most `each` of them; as `Claims.take`.

    Raises
    ------
    DataError
        If a unit is longer than the budget and some batch has none yet; nothing is claimed then.
    """
    claims = stored.claims
    assert claims is not None
    most = max(1, min(most, MOST_ITEMS // max(1, stored.table.group_size)))
    mean = max(1, stored.table.mean_length * max(1, stored.table.group_size))
    units = min(most, ranks + ranks * budget.steps // mean)
    while True:  # what was claimed beyond the batches goes back to where it stood
        number, ids, starts, lengths = claims.take(client, consumer, units)
        firsts, steps = unit_lengths(claims.units_of(ids), lengths)
        bins = Bins(ranks, each, *budget)
        fits = next((k for k, length in enumerate(steps.tolist()) if not bins.put(length)), len(steps))
        if fits == units < most:
            keep, units = 0, min(most, 2 * units)
        elif fits < ranks:
            keep, units = 0, 0
        else:
            keep = len(ids) if fits == len(firsts) else int(firsts[fits])
        if keep == len(ids):
            return number, ids, starts, lengths
        settle.release(stored.segment, stored.params, ids[keep:].copy())
        claims.shorten(number, keep)
        if keep:
            return number, ids[:keep].copy(), starts[:keep].copy(), lengths[:keep].copy()
        if not units:
            raise too_long(stored.table.name, int(steps[fits]), int(ids[firsts[fits]]), budget)


def unit_lengths(
    units: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Index of the first item of each unit, and the steps of all its items. int64[U] each."""
    firsts = np.flatnonzero(np.diff(units, prepend=units[:1] - 1))
    return firsts, np.add.reduceat(lengths.astype(np.int64), firsts)

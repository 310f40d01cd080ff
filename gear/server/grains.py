"""Cutting a batch into grains: what is gathered at a time while it is sent, in the order in which the bytes travel.

A grain is a run of bytes of the batch: some items of one column, or all items of several small ones. It is gathered
into the same small memory as the one before, which therefore stays in a core's cache from the gathering to the sending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.kernels import records as r

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.plan import Plan

GRAIN = 1 << 18
"""Bytes of a grain at most; but an item's part of a column is never divided."""

_CUTS = 256


class Grain(NamedTuple):
    """Items begin..end, of the columns in `rows` (see `Plan.rows`), as `nbytes` bytes; `gaps`: what is to be zero."""

    rows: npt.NDArray[np.int64]
    begin: int
    end: int
    nbytes: int
    gaps: tuple[tuple[int, int], ...]


class Grains:
    """How plans are cut; of batches that are alike it is worked out once."""

    def __init__(self) -> None:
        self._cuts: dict[int, tuple[Plan, list[Grain]]] = {}

    def of(self, plan: Plan, lengths: npt.NDArray[np.int32]) -> list[Grain]:
        """The grains of a batch of items of these lengths (int32[B])."""
        if plan.packed:
            return cut(plan, lengths)
        known = self._cuts.get(id(plan))
        if known is None or known[0] is not plan:
            if len(self._cuts) >= _CUTS:
                self._cuts.clear()
            known = self._cuts[id(plan)] = plan, cut(plan, lengths)
        return known[1]


def cut(plan: Plan, lengths: npt.NDArray[np.int32]) -> list[Grain]:
    """The grains of a plan; `lengths` (int32[B]) matter if it is packed. One with moved views is a single grain."""
    regions = plan.regions
    ends = [region.offset for region in regions[1:]] + [plan.nbytes]
    if plan.viewed:
        gaps = tuple((region.offset + region.nbytes, end) for region, end in zip(regions, ends, strict=True))
        return [Grain(plan.rows, 0, plan.size, plan.nbytes, gaps)]
    steps = np.zeros(0, np.int64)
    if plan.packed:
        steps = np.concatenate([[0], np.cumsum(np.minimum(lengths, plan.length), dtype=np.int64)])
    grains: list[Grain] = []
    at = 0
    while at < len(regions):
        stop = at + 1
        while stop < len(regions) and ends[stop] - regions[at].offset <= GRAIN:
            stop += 1
        rows, base = _rows(plan, at, stop), regions[at].offset
        nbytes = ends[stop - 1] - base
        gaps = tuple((regions[k].offset + regions[k].nbytes - base, ends[k] - base) for k in range(at, stop))
        if nbytes <= GRAIN:
            grains.append(Grain(rows, 0, plan.size, nbytes, gaps))
        else:  # one column alone
            grains += _items(plan, rows, regions[at].timed, steps, gaps[0])
        at = stop
    return grains


def _rows(plan: Plan, at: int, stop: int) -> npt.NDArray[np.int64]:
    """The plan of regions at..stop, as if the first began the batch; the mask is the last region."""
    columns, base = len(plan.fields), plan.regions[at].offset
    rows = plan.rows[[0, *range(1 + at, 1 + min(stop, columns))]]
    rows[1:, r.TARGET] -= base
    rows[0, r.MASK] = plan.mask_offset - base if stop > columns else -1
    return np.ascontiguousarray(rows)


def _items(
    plan: Plan, rows: npt.NDArray[np.int64], timed: bool, steps: npt.NDArray[np.int64], gap: tuple[int, int]
) -> list[Grain]:
    """The grains of one large column (or the mask); the last one has the gap behind the column."""
    width = int(rows[1, r.WIDTH]) if len(rows) > 1 else 1
    if timed and plan.packed:
        ends = steps * width
    else:
        ends = np.arange(plan.size + 1, dtype=np.int64) * (width * (plan.length if timed else 1))
    grains, begin = [], 0
    while begin < plan.size:
        end = max(begin + 1, int(np.searchsorted(ends, ends[begin] + GRAIN, "right")) - 1)
        nbytes, gaps = int(ends[end] - ends[begin]), ()
        if end == plan.size:
            gaps = ((nbytes, nbytes + gap[1] - gap[0]),)  # type: ignore[assignment]
            nbytes = gaps[0][1]  # type: ignore[misc]
        grains.append(Grain(rows, begin, end, nbytes, gaps))
        begin = end
    return grains

"""The grains of a piece of a batch: what is gathered at a time while it is sent, see `transport.pieces`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gear.plan import Plan, make_plan
from gear.transport.per_plan import PerPlan
from gear.transport.pieces import grains

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gear.storage.layout import Layout

_CUTS = 256


class Grain(NamedTuple):
    """Items begin..end, laid out by a plan of their own; `gaps`: bytes between its columns, which are to be zero."""

    plan: Plan
    begin: int
    end: int
    gaps: list[tuple[int, int]]


class Grains:
    """How pieces are cut; of those that are alike it is worked out once."""

    def __init__(self) -> None:
        self._cuts: PerPlan[list[Grain]] = PerPlan(_CUTS)

    def of(self, layout: Layout, plan: Plan, lengths: npt.NDArray[np.int32]) -> list[Grain]:
        """The grains of a piece of items of these lengths, int32[B]."""
        if plan.packed:
            return _cut(layout, plan, lengths)
        return self._cuts.of(plan, lambda plan: _cut(layout, plan, lengths))


def _cut(layout: Layout, plan: Plan, lengths: npt.NDArray[np.int32]) -> list[Grain]:
    made: dict[int, Plan] = {plan.size: plan}
    found = []
    for items in grains(plan, lengths):
        size = items.stop - items.start
        small = made.get(size)
        if small is None:
            small = make_plan(layout, plan.views, size, plan.length, plan.steps_of(lengths[items]))
            if not plan.packed:
                made[size] = small
        ends = [region.offset for region in small.regions[1:]] + [small.nbytes]
        gaps = [(a.offset + a.nbytes, b) for a, b in zip(small.regions, ends, strict=True) if a.offset + a.nbytes < b]
        found.append(Grain(small, items.start, items.stop, gaps))
    return found

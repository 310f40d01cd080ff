"""The order in which samplers hold what they draw from, kept when all else is made anew.

A list that is drawn from by place gives the same draws only in the same order. What is made anew from the directory
has an order of its own; where the list that was there names exactly the same members, its order is put back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gear.schema import Epochs, Uniform
from gear.selection.uniform import UNIT
from gear.storage import fields as f

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout


@dataclass(frozen=True)
class _List:
    """A list as it was. `live`, `position`, `counters`: names of regions; `size`: the counter of its length."""

    live: str
    position: str
    counters: str
    size: int
    members: npt.NDArray[np.int64]
    most: int
    drawn: int


def remember(segment: npt.NDArray[np.uint8], layout: Layout) -> list[_List]:
    """The lists whose order decides draws, as they are."""
    found = []
    places = []
    sampler, remover = layout.table.sampler, layout.table.remover
    if isinstance(sampler, (Uniform, Epochs)):
        size = f.LIVE_ITEMS if isinstance(sampler, Epochs) else f.LIVE_UNITS
        places = [(one.region("live"), one.region("position"), one.region("counters"), size) for one in layout.sets]
    if isinstance(remover, Uniform):
        places.append(("remover_live", "remover_position", "counters", f.REMOVER_LIVE))
    for live, position, name, size in places:
        counters = layout.view(segment, name)
        entries = layout.view(segment, live)
        n = max(0, min(int(counters[size]), len(entries)))
        most, drawn = int(counters[f.MOST_PER_UNIT]), int(counters[f.EPOCH_DRAWN])
        found.append(_List(live, position, name, size, entries[:n].copy(), most, drawn))
    return found


def put_back(segment: npt.NDArray[np.uint8], layout: Layout, before: list[_List]) -> None:
    """Give lists their order of before, if they hold what they held."""
    for one in before:
        counters, n = layout.view(segment, one.counters), len(one.members)
        entries, position = layout.view(segment, one.live), layout.view(segment, one.position)
        if n == 0 or int(counters[one.size]) != n:
            continue
        units = one.members & UNIT
        if int(units.max()) >= len(position) or int(one.members.min()) < 0:
            continue
        places = position[units]
        if not ((places >= 0) & (places < n)).all() or not (entries[places] == one.members).all():
            continue
        if len(np.unique(places)) != n:
            continue
        entries[:n], position[units] = one.members, np.arange(n)
        if one.size == f.LIVE_UNITS:
            counters[f.MOST_PER_UNIT] = max(one.most, int(counters[f.MOST_PER_UNIT]))
        elif one.size == f.LIVE_ITEMS:
            counters[f.EPOCH_DRAWN] = max(0, min(one.drawn, n))

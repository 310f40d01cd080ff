"""Parts of draws for ranks: of what is over nothing is kept but who is still to be told."""

from __future__ import annotations

import numpy as np
import pytest

from gear.batch import NO_NEIGHBOURS
from gear.storage.pin import Pin
from gear.storage.ranks_parts import Draw, Part


def part(delivered: bool = False, settled: bool = False, holder: int | None = None) -> Part:
    holders = set() if holder is None else {holder}
    pin = Pin(
        np.zeros(1, np.int64), NO_NEIGHBOURS, 0, 1, 1e12, holders, settled=settled, delivered=delivered, part=True
    )
    return Part(selection=object(), pin=pin)


def draw(*parts: Part) -> Draw:
    return Draw(0, object(), 0, list(parts))


def test_of_a_draw_that_nobody_can_have_any_more_only_who_is_to_be_told_is_kept():
    """Origin: fuzzing; 64 draws for 4096 ranks each were kept with all their items."""
    one = draw(part(settled=True), part(delivered=True, settled=True))
    one.settle()
    assert all(p.selection is None and p.pin is None for p in one.parts)
    assert [(p.lost, p.over) for p in one.parts] == [(True, False), (True, True)]


@pytest.mark.parametrize("alive", [{}, {"settled": True, "holder": 3}])
def test_what_a_rank_may_still_have_or_deliver_is_kept(alive):
    one = draw(part(settled=True), part(**alive))
    one.settle()
    assert all(p.selection is not None and p.pin is not None for p in one.parts)

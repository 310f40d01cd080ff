"""A shuffled pass over numbered entries, again and again, while entries come and go.

``order``: int64[N], entries; the first ``drawn`` of its ``size`` were drawn in the running epoch, in that order, the
others were not. Drawing is a Fisher-Yates shuffle that is made one step at a time. ``place``: int32[N], where an
entry stands. Arrays may start with anything in them; every step is O(1).
"""

from __future__ import annotations

from gear.kernels.compile import kernel


@kernel
def _swap(order, place, one, other):
    a, b = order[one], order[other]
    order[one], order[other] = b, a
    place[a], place[b] = other, one


@kernel
def add(order, place, size, entry):
    """A new entry joins those not yet drawn. Returns the new size."""
    order[size] = entry
    place[entry] = size
    return size + 1


@kernel
def draw(order, place, drawn, chosen):
    """Draw the entry at place `chosen` of those not yet drawn. Returns (entry, how many are drawn now)."""
    _swap(order, place, drawn, chosen)
    return order[drawn], drawn + 1


@kernel
def give_back(order, place, drawn, entry):
    """An entry is as if it had not been drawn in this epoch. Returns how many are drawn now."""
    if place[entry] >= drawn:
        return drawn
    _swap(order, place, place[entry], drawn - 1)
    return drawn - 1


@kernel
def remove(order, place, size, drawn, entry):
    """An entry leaves. Returns (size, drawn)."""
    drawn = give_back(order, place, drawn, entry)
    _swap(order, place, place[entry], size - 1)
    return size - 1, drawn

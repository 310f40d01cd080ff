"""A binary heap of numbered entries that knows where each one stands, so that any can be moved or taken out.

``heap``: int64[N], the entries, the best first; ``place``: int32[N], where an entry stands; ``keys``: float64[N] and
``stamps``: int64[N], by entry. The best has the largest ``sign * key``; of equal ones the one stamped first, which
makes ties those of Reverb: the entry inserted or updated least recently. Arrays may start with anything in them.
"""

from __future__ import annotations

from gear.kernels.compile import kernel


@kernel
def before(keys, stamps, sign, one, other):
    """Whether `one` comes before `other`."""
    mine, theirs = sign * keys[one], sign * keys[other]
    return mine > theirs or (mine == theirs and stamps[one] < stamps[other])


@kernel
def _rise(heap, place, keys, stamps, sign, at, entry):
    """Put `entry` at place `at` or above; returns where."""
    while at > 0:
        parent = (at - 1) >> 1
        other = heap[parent]
        if not before(keys, stamps, sign, entry, other):
            break
        heap[at] = other
        place[other] = at
        at = parent
    heap[at] = entry
    place[entry] = at
    return at


@kernel
def _sink(heap, place, keys, stamps, size, sign, at, entry):
    """Put `entry` at place `at` or below."""
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and before(keys, stamps, sign, heap[child + 1], heap[child]):
            child += 1
        other = heap[child]
        if not before(keys, stamps, sign, other, entry):
            break
        heap[at] = other
        place[other] = at
        at = child
    heap[at] = entry
    place[entry] = at


@kernel
def push(heap, place, keys, stamps, size, sign, entry):
    """Put `entry` in; its key and stamp are set. Returns the new size."""
    _rise(heap, place, keys, stamps, sign, size, entry)
    return size + 1


@kernel
def moved(heap, place, keys, stamps, size, sign, entry):
    """Put `entry`, which is in the heap, where its new key or stamp belongs."""
    at = _rise(heap, place, keys, stamps, sign, place[entry], entry)
    _sink(heap, place, keys, stamps, size, sign, at, entry)


@kernel
def take(heap, place, keys, stamps, size, sign, entry):
    """Take `entry`, which is in the heap, out. Returns the new size."""
    size -= 1
    last, at = heap[size], place[entry]
    if last != entry:
        at = _rise(heap, place, keys, stamps, sign, at, last)
        _sink(heap, place, keys, stamps, size, sign, at, last)
    return size

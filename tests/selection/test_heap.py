"""The heap against a sorted list, operation by operation."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from gear.selection import heap

N = 12
operations = st.lists(
    st.tuples(st.sampled_from(["push", "take", "moved"]), st.integers(0, N - 1), st.sampled_from([0.0, 1.0, 2.0, 3.0])),
    max_size=60,
)


def best(keys: np.ndarray, stamps: np.ndarray, entries: set[int], sign: float) -> list[int]:
    """The reference: all entries in order, of equal keys the one stamped first."""
    return sorted(entries, key=lambda e: (-sign * keys[e], stamps[e]))


@given(operations, st.sampled_from([1.0, -1.0]), st.integers(-5, N))
def test_a_heap_is_a_sorted_list_whose_first_is_on_top(steps, sign, rubbish):
    order, place = np.full(N, rubbish, np.int64), np.full(N, max(0, rubbish), np.int32)
    keys, stamps, inside, size = np.zeros(N), np.zeros(N, np.int64), set(), 0
    arrays = order, place, keys, stamps
    for time, (operation, entry, key) in enumerate(steps):
        if operation == "push" and entry not in inside:
            keys[entry], stamps[entry] = key, time
            size = heap.push(*arrays, size, sign, entry)
            inside.add(entry)
        elif operation == "moved" and entry in inside:
            keys[entry], stamps[entry] = key, time
            heap.moved(*arrays, size, sign, entry)
        elif operation == "take" and entry in inside:
            size = heap.take(*arrays, size, sign, entry)
            inside.discard(entry)
        assert size == len(inside)
        assert set(order[:size].tolist()) == inside
        assert place[order[:size]].tolist() == list(range(size))
        assert order[:size][:1].tolist() == best(keys, stamps, inside, sign)[:1]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.sampled_from([1.0, -1.0]))
def test_taking_the_top_again_and_again_sorts(priorities, sign):
    n = len(priorities)
    order, place = np.zeros(n, np.int64), np.zeros(n, np.int32)
    keys, stamps, size = np.array(priorities, float), np.arange(n), 0
    for entry in range(n):
        size = heap.push(order, place, keys, stamps, size, sign, entry)
    taken = []
    while size:
        taken.append(int(order[0]))
        size = heap.take(order, place, keys, stamps, size, sign, order[0])
    assert taken == best(keys, stamps, set(range(n)), sign)

"""Memory of packed batches is used again, and never while anybody can still see it."""

from __future__ import annotations

import numpy as np
import pytest

import gear
from gear.client.buffers import MOST, MOST_BYTES, Buffers

from .conftest import rows


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_memory_that_nobody_refers_to_is_used_again():
    buffers = Buffers()
    one = buffers.take(1000)
    first = address(one)
    del one
    assert address(buffers.take(1100)) == first  # the next batch may be somewhat larger


def test_a_view_of_any_kind_keeps_its_memory():
    buffers = Buffers()
    one = buffers.take(1000)
    view = np.ndarray((10,), np.int64, one, 80)
    part = memoryview(one)[:8]
    first = address(one)
    del one
    assert address(buffers.take(1000)) != first
    del view
    assert address(buffers.take(1000)) != first
    part.release()
    del part
    assert first in [address(taken) for taken in [buffers.take(1000) for _ in range(MOST)]]


def test_a_few_are_kept_and_none_that_is_very_large():
    buffers = Buffers()
    held = [buffers.take(100) for _ in range(MOST)]
    assert len({address(one) for one in held}) == MOST
    assert buffers.take(100) is None
    assert Buffers().take(MOST_BYTES + 1) is None


@pytest.mark.parametrize("device", [None, "cpu"])
def test_batches_that_are_kept_stay_as_they_are(embed, device):
    client = embed(device, item=gear.Whole(), sampler=gear.Fifo(), max_times_sampled=1)
    client.insert_many([rows(20, 100 * k) for k in range(24)])
    query = gear.Query(2, layout="packed")
    kept = [client.sample(query)["step"] for _ in range(8)]
    for _ in range(4):
        client.sample(query)
    assert [int(one[0]) for one in kept] == list(range(0, 1600, 200))

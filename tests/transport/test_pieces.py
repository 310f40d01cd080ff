"""A batch that is cut into pieces and put together again is the same batch."""

from __future__ import annotations

import numpy as np
import pytest

from gear.errors import ProtocolError
from gear.kernels.host import gather
from gear.query import make_plan
from gear.transport import pieces
from tests.client.conftest import embed, rows

__all__ = ["embed"]


@pytest.mark.parametrize("piece", [1, 50, 200, 10_000])
@pytest.mark.parametrize("frame", [7, 64, 1 << 20])
def test_pieces_make_the_whole(embed, monkeypatch, piece, frame):
    monkeypatch.setattr(pieces, "PIECE", piece)
    monkeypatch.setattr(pieces, "FRAME", frame)
    client = embed()
    client.insert(rows(20))
    opened = client._session.open_table("t", None)
    selection = client.select(13)
    expected = client.collect(selection)
    plan = make_plan(opened.layout, (), 13, 4)
    out = np.full(plan.nbytes, 77, np.uint8)
    each = pieces.per_piece(plan)
    for first in range(0, 13, each):
        part = slice(first, first + each)
        starts, lengths = selection.starts[part].copy(), selection.lengths[part].copy()
        small = make_plan(opened.layout, (), len(starts), 4)
        memory = np.zeros(small.nbytes, np.uint8)
        gather(opened.segment, small.rows, small.pads, starts, lengths, memory)
        pieces.place(small, plan, first, pieces.split(memory.data), out)
    for field in plan.fields:
        array = np.ndarray(field.shape, field.dtype, out, field.offset)
        np.testing.assert_array_equal(array, expected[field.column])
    assert np.ndarray((13, 4), np.bool_, out, plan.mask_offset).all()


def test_a_piece_of_another_size_is_refused(embed):
    client = embed()
    plan = make_plan(client._session.open_table("t", None).layout, (), 3, 4)
    with pytest.raises(ProtocolError, match=f"expected {plan.nbytes} bytes of 3 items from the server, got 10"):
        pieces.place(plan, plan, 0, [bytes(10)], np.empty(plan.nbytes, np.uint8))


def test_buffers_hold_whole_units(monkeypatch):
    monkeypatch.setattr(pieces, "FRAME", 100)
    sizes = [len(part) for part in pieces.split(memoryview(bytes(300)), 30)]
    assert sizes == [90, 90, 90, 30]
    assert [len(part) for part in pieces.split(memoryview(bytes(300)), 150)] == [150, 150]

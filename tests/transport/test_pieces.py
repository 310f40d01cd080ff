"""A batch that is cut into pieces and put together again is the same batch."""

from __future__ import annotations

import numpy as np
import pytest

import gear
from gear.errors import ProtocolError
from gear.kernels.collect import collect
from gear.plan import make_plan
from gear.transport import pieces
from tests.client.conftest import embed, rows

__all__ = ["embed"]


@pytest.mark.parametrize("piece", [1, 50, 200, 10_000])
@pytest.mark.parametrize("frame", [7, 64, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_pieces_make_the_whole(embed, monkeypatch, piece, frame, packed):
    monkeypatch.setattr(pieces, "FRAME", frame)
    client = embed(item=gear.Whole(), max_length=7) if packed else embed()
    client.insert(rows(20))
    opened = client._session.open_table("t", None)
    selection = client.select(13)
    views = (gear.View("obs"), gear.View("step", name="next", shift=2))
    expected = client.collect(selection, views, layout="packed" if packed else "padded")
    plan = expected.plan
    out = np.full(plan.nbytes, 77, np.uint8)
    parts = pieces.cut(plan, selection.lengths, piece)
    assert [k for part in parts for k in range(13)[part]] == list(range(13))
    for part in parts:
        starts, lengths = selection.starts[part].copy(), selection.lengths[part].copy()
        small = make_plan(opened.layout, views, len(starts), plan.length, plan.steps_of(lengths))
        memory = np.zeros(small.nbytes, np.uint8)
        collect(opened.segment, small, starts, lengths, selection.neighbours, memory)
        before = plan.steps_of(selection.lengths[: part.start])
        piece = pieces.Piece(small, part, part.start, before)
        pieces.place(pieces.split(memory.data), pieces.places(pieces.runs([piece], plan), out))
    for field in plan.regions:
        array = np.ndarray(field.shape, field.dtype, out, field.offset)
        there = np.ndarray(field.shape, field.dtype, expected.buffer, field.offset)
        np.testing.assert_array_equal(array, there)


def test_a_piece_of_another_size_is_refused(embed):
    client = embed()
    plan = make_plan(client._session.open_table("t", None).layout, (), 3, 4)
    with pytest.raises(ProtocolError, match=f"expected {plan.nbytes} bytes of rows from the server, got 10"):
        pieces.place([bytes(10)], [memoryview(bytearray(plan.nbytes))])


def test_buffers_hold_whole_units(monkeypatch):
    monkeypatch.setattr(pieces, "FRAME", 100)
    sizes = [len(part) for part in pieces.split(memoryview(bytes(300)), 30)]
    assert sizes == [90, 90, 90, 30]
    assert [len(part) for part in pieces.split(memoryview(bytes(300)), 150)] == [150, 150]

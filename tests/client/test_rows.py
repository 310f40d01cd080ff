"""Writing rows through strided views over blocks, against a plain walk over the chain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gear
from gear.client.rows import Rows
from gear.storage.layout import Layout

COLUMNS = [
    gear.Column("obs", (3, 2)),
    gear.Column("action", (), "int16"),
    gear.Column("done", (), "bool"),
    gear.Column("goal", (2,), "float64", per="trajectory"),
]


def make(item, block_steps):
    table = gear.Table("t", columns=COLUMNS, capacity=gear.Steps(400), item=item, block_steps=block_steps)
    layout = Layout(table)
    segment = np.full(layout.nbytes, 0xA5, np.uint8)
    return layout, segment, Rows(layout, segment)


def arrays(steps, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.random((steps, 3, 2), dtype=np.float32),
        rng.integers(-99, 99, steps, dtype=np.int16),
        rng.random(steps) > 0.5,
    ]


def read(layout, segment, blocks, row):
    """The bytes of each per-step column at `row` of the chain, by the layout's own formula."""
    block = blocks[row // layout.block_steps]
    base = layout.regions["arena"].offset + block * layout.block_bytes
    places = [p for p in layout.placements.values() if p.column.per == "step"]
    starts = [base + p.offset + (row % layout.block_steps) * p.stride for p in places]
    return [segment[s : s + p.width].tobytes() for s, p in zip(starts, places, strict=True)]


@given(st.data())
@pytest.mark.parametrize("item", [gear.Step(), gear.Window(4)])
def test_rows_land_where_the_layout_says_whatever_the_chain(item, data):
    block_steps = data.draw(st.sampled_from([1, 4, 5, 16]))
    layout, segment, rows = make(item, block_steps)
    first = data.draw(st.integers(0, 2 * block_steps))
    count = data.draw(st.integers(1, 40))
    need = layout.blocks_for(first + count)
    runs = data.draw(st.booleans())
    blocks = range(3, 3 + need) if runs else data.draw(st.permutations(range(layout.blocks)))[:need]
    untouched = segment.copy()
    values = arrays(count)
    rows.write(blocks, first, values)
    for row in range(count):
        assert read(layout, segment, blocks, first + row) == [v[row].tobytes() for v in values]
    if first:
        assert read(layout, segment, blocks, first - 1) == read(layout, untouched, blocks, first - 1)


@pytest.mark.parametrize("make_strided", [lambda a: a[-5::2], lambda a: a[::-1], lambda a: np.asfortranarray(a)[3:]])
def test_strided_values_are_stored_exactly(make_strided):  # origin: reverb 0.14, observed: [-5::2]
    layout, segment, rows = make(gear.Window(4), 4)
    values = [make_strided(a) for a in arrays(12)]
    rows.write(range(8), 0, values)
    for row in range(len(values[0])):
        assert read(layout, segment, range(8), row) == [v[row].tobytes() for v in values]


def test_a_single_row_writes_zeros_where_no_value_is_given():
    layout, segment, rows = make(gear.Window(4), 4)
    rows.write_row(2, 3, [None, np.int16(7), None])
    assert read(layout, segment, [2], 3) == [bytes(24), np.int16(7).tobytes(), b"\0"]


def test_trajectory_columns_are_written_by_slot():
    layout, segment, rows = make(gear.Window(4), 4)
    rows.write_values(5, [np.array([1.0, 2.0])])
    place = layout.placements["goal"]
    at = layout.regions["trajectories"].offset + place.offset + 5 * place.stride
    assert segment[at : at + 16].view(np.float64).tolist() == [1.0, 2.0]

"""The geometry of a segment: nothing overlaps, everything is aligned, ids have room, memory stays near the payload."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gear.errors import SchemaError
from gear.schema import (
    DTYPES,
    Bytes,
    Column,
    Epochs,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Stack,
    Step,
    Steps,
    Table,
    Trajectories,
    Uniform,
    Whole,
    Window,
    from_bytes,
    to_bytes,
)
from gear.storage import fields as f
from gear.storage.layout import ALIGN, HUGE_PAGE, Layout
from gear.storage.regions import tree_starts
from tests.strategies import tables

MUJOCO = [Column("obs", (17,)), Column("action", (6,)), Column("reward"), Column("done", (), "bool")]
MUJOCO_STEP = 68 + 24 + 4 + 1


def table(**fields):
    return Table(**{"name": "replay", "columns": MUJOCO, "capacity": Steps(10_000), "item": Window(64), **fields})


def layout_of(made: Table) -> Layout:
    """The layout, for tables that fit into one shard."""
    try:
        return Layout(made)
    except SchemaError as error:
        assume("capacity of" not in str(error) and "rows on one shard" not in str(error))
        raise


# ---------------------------------------------------------------- regions


@given(tables())
def test_regions_follow_each_other_aligned_without_overlap_and_end_in_the_segment(made):
    layout = layout_of(made)
    regions = sorted(layout.regions.values(), key=lambda r: (r.offset, r.nbytes))
    assert all(r.offset % ALIGN == 0 for r in regions)
    assert all(a.offset + a.nbytes <= b.offset for a, b in zip(regions, regions[1:], strict=False))
    assert regions[-1].offset + regions[-1].nbytes <= layout.nbytes
    assert layout.nbytes % 4096 == 0


@given(tables())
def test_the_directory_ends_before_the_arena_which_starts_on_a_page(made):
    layout = layout_of(made)
    arena = layout.regions["arena"]
    assert layout.directory_bytes <= arena.offset
    assert arena.offset % 4096 == 0
    assert arena.nbytes == layout.blocks * layout.block_bytes


def test_a_large_arena_starts_on_a_huge_page():
    assert Layout(table(capacity=Steps(10**7))).regions["arena"].offset % HUGE_PAGE == 0


@given(tables())
def test_params_repeat_the_layout_in_the_order_of_their_names(made):
    layout = layout_of(made)
    params, n = layout.params, len(f.PARAMS)
    assert params.dtype == np.int64
    assert len(params) == n + 2 * len(f.REGIONS)
    named = dict(zip(f.PARAMS, params[:n].tolist(), strict=True))
    for name in ("row_bits", "block_steps", "block_bytes", "blocks", "slots", "reserve_blocks", "items_per_block"):
        assert named[name] == getattr(layout, name)
    for name, (offset, nbytes) in zip(f.REGIONS, params[n:].reshape(-1, 2).tolist(), strict=True):
        assert (offset, nbytes) == (layout.regions[name].offset, layout.regions[name].nbytes)


@given(tables())
def test_a_client_that_decodes_the_table_computes_the_same_layout(made):
    mine, theirs = layout_of(made), Layout(from_bytes(to_bytes(made)))
    assert mine.regions == theirs.regions
    assert mine.placements == theirs.placements
    assert np.array_equal(mine.params, theirs.params)


def test_views_are_typed_parts_of_the_segment_and_share_its_memory():
    layout = Layout(table())
    segment = np.zeros(layout.nbytes, np.uint8)
    blocks, slots = layout.view(segment, "blocks"), layout.view(segment, "slots")
    assert (blocks.dtype, blocks.shape) == (np.int32, (layout.blocks, f.BLOCK_FIELDS))
    assert (slots.dtype, slots.shape) == (np.int64, (layout.slots, f.SLOT_FIELDS))
    assert layout.view(segment, "clients").shape == (f.MAX_CLIENTS, f.CLIENT_FIELDS)
    blocks[3, f.NEXT] = 7
    at = layout.regions["blocks"].offset + 4 * (3 * f.BLOCK_FIELDS + f.NEXT)
    assert segment[at] == 7


def test_sampler_arrays_exist_only_where_the_sampler_needs_them():
    def present(**fields):
        regions = Layout(table(**fields)).regions
        names = ("live", "tree", "raw", "stamps", "times", "remover_live", "remover_tree", "remover_keys")
        return [n for n in names if regions[n].nbytes]

    assert present() == ["live"]
    assert present(sampler=Fifo()) == []
    assert present(sampler=Prioritized()) == ["tree"]
    assert present(sampler=Prioritized(alpha=0.0)) == ["tree", "raw"]
    assert present(remover=Prioritized()) == ["live", "raw", "remover_tree"]
    assert present(remover=Uniform()) == ["live", "remover_live"]
    assert present(max_times_sampled=1) == ["live", "times"]
    assert present(sampler=MaxHeap(), remover=Lifo()) == ["live", "raw", "stamps"]
    assert present(sampler=Epochs()) == ["live"]
    assert present(sampler=Lifo(), remover=MinHeap()) == ["raw", "remover_live", "remover_keys"]
    assert present(limiter=Queue(3)) == ["times"]


def test_uniform_draws_over_trajectories_keep_a_list_of_slots_not_of_blocks():
    by_item, by_trajectory = (
        Layout(table(item=Window(4), sampler=Uniform(over))) for over in ("items", "trajectories")
    )
    assert (by_item.regions["live"].count, by_trajectory.regions["live"].count) == (by_item.blocks, by_item.slots)
    whole = Layout(table(item=Whole(), sampler=Uniform("trajectories")))
    assert whole.params[f.P_OVER] == 0


# ---------------------------------------------------------------- columns


def extents(layout: Layout, where: str) -> list[tuple[int, int]]:
    """(start, end) of every row of one block there, in bytes within the block."""
    per_step = [p for p in layout.placements.values() if (p.column.per, p.column.placement) == ("step", where)]
    return [
        (p.offset + r * p.stride, p.offset + r * p.stride + p.width)
        for p in per_step
        for r in range(layout.block_steps)
    ]


@given(tables())
def test_rows_of_a_block_lie_in_it_aligned_to_their_dtype_without_overlap(made):
    layout = layout_of(made)
    sizes = {"host": layout.block_bytes, "device": layout.device_block_bytes}
    for where, block_bytes in sizes.items():
        spans = sorted(extents(layout, where))
        assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
        assert (spans[-1][1] if spans else 0) <= block_bytes
        assert spans or block_bytes == 0
    for place in layout.placements.values():
        size = DTYPES[place.column.dtype]
        assert place.offset % size == place.stride % size == sizes[place.column.placement] % size == 0
        assert place.width == place.column.row_bytes <= place.stride


@given(tables())
def test_rows_that_travel_have_columns_of_a_device_behind_those_of_the_host(made):
    layout, index, shard = layout_of(made), 0, 0
    staged = Layout(made, index, shard, staged=True)
    assert (staged.block_bytes, staged.blocks, staged.slots) == (
        layout.block_bytes + layout.device_block_bytes, layout.blocks, layout.slots,
    )  # fmt: skip
    assert staged.device_bytes == 0
    for name, place in layout.placements.items():
        behind = layout.block_bytes if place.column.placement == "device" else 0
        assert staged.placements[name].offset == place.offset + behind


@given(tables())
def test_per_trajectory_columns_have_a_row_for_every_slot_without_overlap(made):
    layout = layout_of(made)
    places = [p for p in layout.placements.values() if p.column.per == "trajectory"]
    spans = sorted((p.offset, p.offset + layout.slots * p.stride) for p in places)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    assert not spans or spans[-1][1] <= layout.regions["trajectories"].nbytes


@given(tables())
def test_placements_come_in_the_order_of_the_declared_columns(made):
    assert list(layout_of(made).placements) == [c.name for c in made.columns]


def test_windows_lie_in_strips_a_run_of_rows_is_contiguous():
    layout = Layout(table(item=Window(64), block_steps=32))
    assert not layout.interleaved
    got = {n: (p.offset, p.stride, p.width) for n, p in layout.placements.items()}
    obs, action, reward = 0, 32 * 68, 32 * (68 + 24)
    assert got == {"obs": (obs, 68, 68), "action": (action, 24, 24), "reward": (reward, 4, 4), "done": (3072, 1, 1)}
    assert layout.block_bytes == 32 * MUJOCO_STEP + 32  # up to a multiple of 64


def test_single_steps_lie_interleaved_a_row_is_contiguous():
    layout = Layout(table(item=Step(), block_steps=4))
    assert layout.interleaved
    got = {n: (p.offset, p.stride, p.width) for n, p in layout.placements.items()}
    assert got == {"obs": (0, 100, 68), "action": (68, 100, 24), "reward": (92, 100, 4), "done": (96, 100, 1)}
    assert layout.block_bytes == 400


def test_strips_of_512_bytes_or_more_start_on_a_cache_line_shorter_ones_waste_nothing():
    columns = [Column("flag", (), "bool"), Column("big", (128,), "uint8"), Column("x")]
    layout = Layout(table(columns=columns, block_steps=8))
    assert layout.placements["x"].offset == 0
    assert layout.placements["flag"].offset == 32
    assert layout.placements["big"].offset == 64
    assert layout.block_bytes == 64 + 8 * 128


# ---------------------------------------------------------------- ids


@given(tables())
def test_an_id_holds_every_row_and_every_generation_and_is_never_negative(made):
    layout = layout_of(made)
    assert layout.blocks * layout.block_steps <= 2**layout.row_bits
    assert layout.row_bits <= 31
    assert layout.generations >= 2**15
    assert layout.generations < 2 ** (f.ID_LOW_BITS - layout.row_bits)
    assert layout.generations < 2**31  # a block's generation is an int32
    largest = (255 << f.ID_TABLE_SHIFT) | (255 << f.ID_SHARD_SHIFT) | (layout.generations << layout.row_bits)
    largest |= 2**layout.row_bits - 1
    assert 0 <= largest < 2**63


def test_table_shard_generation_and_row_bits_do_not_overlap():
    assert f.ID_LOW_BITS <= f.ID_SHARD_SHIFT
    assert f.ID_SHARD_SHIFT + 8 <= f.ID_TABLE_SHIFT
    assert f.ID_TABLE_SHIFT + 8 <= 63


@given(st.integers(1, 40), st.integers(1, 90), st.integers(1, 700))
def test_every_position_of_a_trajectory_has_an_item_number_of_its_own(block_steps, stride, steps):
    layout = Layout(table(item=Window(3, stride, "tail"), block_steps=block_steps))
    numbers = [t // block_steps * layout.items_per_block + t % block_steps // stride for t in range(0, steps, stride)]
    assert len(set(numbers)) == len(numbers)
    assert all(t % block_steps // stride < layout.items_per_block for t in range(0, steps, stride))


def test_a_table_of_more_rows_than_an_id_addresses_is_refused_with_the_remedy():
    for capacity in (Steps(2**31), Trajectories(2**24), Bytes(2**50)):
        with pytest.raises(
            SchemaError, match=r"'replay' has \d+ rows on one shard; .* smaller capacity or more shards"
        ):
            Layout(table(capacity=capacity))
    assert Layout(table(capacity=Steps(10**9))).row_bits == 31


# ---------------------------------------------------------------- trees


@pytest.mark.parametrize(
    ("leaves", "starts"),
    [
        (0, [0, 8]),
        (1, [0, 8]),
        (8, [0, 8]),
        (9, [0, 16, 24]),
        (64, [0, 64, 72]),
        (65, [0, 72, 88, 96]),
        (1000, [0, 1000, 1128, 1144, 1152]),
    ],
)
def test_tree_levels_start_where_expected(leaves, starts):
    assert tree_starts(leaves) == starts


@given(st.integers(1, 10**7))
def test_each_tree_level_has_a_place_for_the_sum_of_every_node_below(leaves):
    starts = tree_starts(leaves)
    sizes = np.diff(starts)
    assert sizes[0] >= leaves
    assert sizes[-1] == f.FAN
    assert all(size % f.FAN == 0 for size in sizes)
    assert all(above * f.FAN >= below for below, above in zip(sizes, sizes[1:], strict=False))


def test_a_prioritized_table_has_a_leaf_per_item_and_12_bytes_per_item_at_most():
    layout = Layout(table(capacity=Steps(10**6), item=Window(64, stride=64), sampler=Prioritized(), mean_length=500))
    per_item = sum(layout.regions[r].nbytes for r in ("starts", "tree", "mins", "raw")) / layout.items
    assert layout.regions["tree"].count >= layout.items == layout.blocks
    assert per_item <= 12


# ---------------------------------------------------------------- capacity and memory


def test_steps_and_trajectories_size_the_arena_by_the_mean_length_with_half_a_block_lost_each():
    steps = Layout(table(capacity=Steps(100_000), mean_length=500, block_steps=64))
    trajectories = Layout(table(capacity=Trajectories(200), mean_length=500, block_steps=64))
    assert steps.data_blocks == trajectories.data_blocks == int(np.ceil(200 * (500 / 64 + 0.5)))
    assert trajectories.data_slots == 200


def test_bytes_size_the_arena_itself_padding_included():
    layout = Layout(table(capacity=Bytes(10**6), block_steps=32))
    assert layout.data_blocks == 10**6 // layout.block_bytes
    assert layout.data_blocks * layout.block_bytes <= 10**6
    assert layout.max_length + 1 <= layout.data_blocks * layout.block_steps
    assert layout.params[f.PARAMS.index("capacity")] == layout.data_blocks


def test_bytes_that_do_not_hold_one_block_are_refused_naming_both_sizes():
    with pytest.raises(SchemaError, match=r"'replay': a capacity of 1000 bytes .* two rows .* 3136 bytes each"):
        Layout(table(capacity=Bytes(1000), block_steps=32))
    one_row = Layout(table(capacity=Bytes(10**6), block_steps=1)).block_bytes
    with pytest.raises(SchemaError, match="two rows"):  # its final row would exceed the capacity
        Layout(table(capacity=Bytes(one_row), block_steps=1))
    assert Layout(table(capacity=Bytes(2 * one_row), block_steps=1)).max_length == 1


@given(tables())
def test_the_longest_trajectory_and_its_final_row_fit_into_the_data_blocks(made):
    layout = layout_of(made)
    rows = layout.max_length + (layout.max_length > 1 or not isinstance(made.capacity, Bytes))
    assert 1 <= layout.blocks_for(rows) <= layout.data_blocks


@given(tables())
def test_the_reserve_is_an_eighth_and_at_least_two_mean_trajectories(made):
    layout = layout_of(made)
    assert layout.blocks == layout.data_blocks + layout.reserve_blocks
    assert layout.reserve_blocks >= layout.data_blocks / 8
    assert layout.reserve_blocks >= 2 * layout.blocks_for(made.mean_length + 1)
    assert layout.slots == layout.data_slots + layout.reserve_slots


@pytest.mark.parametrize(
    ("capacity", "item", "sampler"),
    [
        (Trajectories(10_000), Window(64), Uniform()),
        (Trajectories(10_000), Whole(), Uniform()),
        (Trajectories(10_000), Step(), Uniform()),
        (Steps(5_005_000), Window(64), Uniform()),
        (Trajectories(10_000), Window(64, stride=64), Prioritized()),
        (Steps(5_005_000), Window(64, stride=64), Prioritized()),
    ],
)
def test_mixed_lengths_take_at_most_1_10_of_their_payload_with_the_directory(capacity, item, sampler):
    """10,000 trajectories of 1..1000 steps (issue: memory); prioritized items may take 12 bytes more each."""
    lengths = np.random.default_rng(5).integers(1, 1001, 10_000)
    layout = Layout(table(capacity=capacity, item=item, sampler=sampler, mean_length=501))
    used = int((-(-lengths // layout.block_steps)).sum()) * layout.block_bytes + layout.directory_bytes
    items = int(np.maximum(1, (lengths - 64) // 64 + 1).sum()) if isinstance(sampler, Prioritized) else 0
    assert used <= 1.10 * MUJOCO_STEP * lengths.sum() + 12 * items


def test_limiters_and_rules_reach_the_kernels_as_numbers():
    ratio = table(limiter=SampleToInsertRatio(2.0, 50, 100.0), item=Window(5, 2, "head"), sampler=Fifo())
    params = dict(zip(f.PARAMS, Layout(ratio, index=3, shard=7).params.tolist(), strict=False))
    assert (params["table"], params["shard"]) == (3, 7)
    assert (params["ratio"], params["min_size"]) == (1, 50)
    assert (params["item"], params["length"], params["stride"], params["edge"]) == (f.WINDOW, 5, 2, f.HEAD)
    assert (params["sampler"], params["remover"]) == (f.FIFO, f.FIFO)
    line = dict(zip(f.PARAMS, Layout(table(limiter=Stack(7), distinct=True)).params.tolist(), strict=False))
    assert (line["ratio"], line["min_size"], line["most"], line["max_times"], line["distinct"]) == (1, 1, 7, 1, 1)
    assert (line["sampler"], line["remover"]) == (f.LIFO, f.LIFO)
    plain = dict(zip(f.PARAMS, Layout(table(limiter=MinSize(9), item=Step(3))).params.tolist(), strict=False))
    assert (plain["ratio"], plain["min_size"], plain["item"], plain["step_n"]) == (0, 9, f.STEP, 3)

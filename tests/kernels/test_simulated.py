"""What only the kernels for a GPU have, in Numba's CUDA simulator: nothing here has run on a device by that."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear.kernels import cuda, cuda_simulated, host, reference, reference_top, reference_views
from gear.kernels import records as r
from gear.kernels.cuda_launch import Call
from gear.kernels.cuda_priorities import FEW
from gear.selection import heap as heaps
from tests.kernels import test_views
from tests.kernels.cases import GatherCase, Shape, drawn, gather_case, tree_of
from tests.kernels.simulator import examples
from tests.kernels.test_scatter import arena, spans
from tests.kernels.test_tree import random_leaves
from tests.kernels.words import EXECUTED, WORDS


@pytest.fixture
def launches(monkeypatch):
    """The names of the kernels that are launched."""
    names, launch = [], Call.launch

    def noted(self, kernel, *arguments):
        names.append(kernel.__name__)
        launch(self, kernel, *arguments)

    monkeypatch.setattr(Call, "launch", noted)
    return names


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**62), first=st.integers(0, 2**62), size=st.integers(0, 600))
def test_numbered_draws_are_the_hosts(seed, first, size):
    leaves = random_leaves(seed, size)
    tree, _, starts = tree_of(host, leaves)
    masses = np.empty(12)
    host.uniforms(seed, first, masses)
    total = host.tree_total(tree, starts)
    items, probabilities = np.full(12, -7), np.full(12, np.nan)
    cuda.tree_sample(tree, starts, seed, first, items, probabilities)
    np.testing.assert_array_equal(items, drawn(host, tree, starts, masses * total))
    expected = leaves[items] / total if total > 0 else np.zeros(12)
    np.testing.assert_array_equal(probabilities, expected)


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 3 * FEW])
@pytest.mark.parametrize("size", [8, 300])
def test_updates_of_any_size_settle_duplicates(count, size):
    """In one launch or in several; of a few leaves that are updated again and again the last wins."""
    rng = np.random.default_rng(count)
    trees = [tree_of(reference, np.ones(size)) for _ in range(2)]
    updates, status = cuda.Updates(3 * FEW), np.zeros(1, np.int64)
    for high in (2, size, size):
        items, leaves = rng.integers(0, high, count), rng.random(count)
        updates(*trees[0], items, leaves, status)
        reference.tree_update(*trees[1], items, leaves)
        for got, expected in zip(*trees, strict=True):
            np.testing.assert_array_equal(got, expected)
    assert status[0] == -1
    assert not updates.notes.copy_to_host().any()


@pytest.mark.parametrize(("item", "leaf"), [(-1, 1.0), (300, 1.0), (3, -1.0), (3, np.nan), (3, np.inf)])
@pytest.mark.parametrize("count", [5, FEW + 5])
def test_a_bad_update_is_named_and_nothing_of_it_applied(count, item, leaf):
    """reverb 0.14: an update with one bad value is refused whole; the next one is applied."""
    tree, mins, starts = tree_of(reference, np.ones(296))
    before, updates, status = tree.copy(), cuda.Updates(100), np.zeros(1, np.int64)
    items, leaves = np.arange(count), np.full(count, 2.0)
    items[[3, 4]], leaves[[3, 4]] = item, leaf
    updates(tree, mins, starts, items, leaves, status)
    assert status[0] == 3
    np.testing.assert_array_equal(tree, before)
    updates(tree, mins, starts, np.arange(5), np.full(5, 2.0), status)
    assert status[0] == -1
    assert tree[:6].tolist() == [2.0] * 5 + [1.0]


def test_an_update_touches_the_paths_of_its_items_alone(monkeypatch):
    tree, mins, starts = tree_of(reference, np.ones(512))
    items, written = np.array([9, 300]), []
    store = cuda_simulated._write
    monkeypatch.setattr(
        cuda_simulated, "_write", lambda address, value: written.append(address) or store(address, value)
    )
    cuda.tree_update(tree, mins, starts, items, np.array([3.0, 4.0]))
    assert tree[starts[2] :].tolist()[:2] == [66.0, 64.0]
    assert len(written) < 60  # two leaves, five inner nodes with their minima, and the notes of two updates


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(0, 60), best=st.integers(1, 12), sign=st.sampled_from([1, -1]))
def test_the_best_entries_come_in_the_order_of_the_heap(seed, size, best, sign):
    rng = np.random.default_rng(seed)
    entries, keys, stamps = rng.permutation(80)[:size], rng.integers(0, 6, 80) * 0.5, rng.permutation(80)
    expected, got = np.empty(best, np.int64), np.full(best, -7)
    reference_top.top(entries, keys, stamps, sign, expected)
    cuda.top(np.append(entries, [-1, -1]), keys, stamps, sign, got)
    np.testing.assert_array_equal(got, expected)
    heap, place, n = np.zeros(80, np.int64), np.zeros(80, np.int32), 0
    for entry in entries:
        n = heaps.push(heap, place, keys, stamps, n, float(sign), entry)
    for entry in expected[expected >= 0]:
        assert heap[0] == entry
        n = heaps.take(heap, place, keys, stamps, n, float(sign), entry)
    assert n == max(0, size - best)


def test_all_columns_of_an_insert_are_written_by_one_launch(launches):
    segment, plan = arena(steps=2, width=2, blocks=3)
    plan = np.vstack([plan, plan[1:]])
    plan[1:, r.STRIDE], plan[1:, r.WIDTH], plan[2, r.OFFSET] = 2, (1, 1), 1
    values = [np.array([1, 2, 3], np.uint8), np.array([4, 5, 6], np.uint8)]
    cuda.scatter_many(segment, plan, [0, 1], np.array([2, 0], np.int32), spans((0, 3, 0)), values)
    assert segment[72:].reshape(3, 4).tolist() == [[3, 6, 0, 0], [0, 0, 0, 0], [1, 4, 2, 5]]
    assert launches == ["scatter_columns"]


@pytest.mark.parametrize("length", [1, 5])
def test_a_batch_is_one_launch(launches, length):
    columns = ((0, 4, True), (0, 68, False), (1, 8, False))
    gather_case(Shape(3, 6, length, 6, True, True, False, columns, False, 1)).run(cuda)
    assert launches == ["gather_rows" if length == 1 else "gather_windows"]


def test_draws_and_small_updates_are_one_launch_each(launches):
    tree, mins, starts = tree_of(reference, np.ones(300))
    cuda.tree_sample(tree, starts, 0, 0, np.zeros(3 * FEW, np.int64), np.zeros(3 * FEW))
    cuda.tree_update(tree, mins, starts, np.arange(FEW), np.ones(FEW))
    assert launches == ["draw_numbered", "update_few"]


def test_a_gather_made_ready_serves_batches_up_to_its_size():
    case = gather_case(Shape(3, 6, 5, 6, True, True, False, ((0, 4, True), (1, 8, False)), False, 1))
    ready = cuda.Gather(case.segment, case.plan, case.pads, 6, case.out)
    for _ in range(2):
        out = case.out.copy()
        ready(case.segment, case.starts, case.lengths, out)
        np.testing.assert_array_equal(out, case.run(reference))
    with pytest.raises(ValueError, match="made ready for 6 items"):
        ready(case.segment, case.starts, case.lengths, out[:-1])


def aligned_case(length: int, width: int, stride: int) -> GatherCase:
    """Items of a chain of two blocks, in an arena and a batch that begin at multiples of 16 bytes."""
    plan = np.zeros((2, r.PLAN_FIELDS), np.int64)
    plan[0, : r.MASK + 1] = (length, length * stride, 96, 0, 2, length, 0, -1)
    plan[1, : r.PAD + 1] = (r.PER_STEP, 0, stride, width, 0, -1)
    raw = np.random.default_rng(width).integers(0, 256, 96 + 2 * length * stride + 16, np.uint8)
    segment = raw[-raw.ctypes.data % 16 :]
    segment[:96].view(np.int32)[: 2 * r.BLOCK_FIELDS].reshape(2, -1)[:, r.NEXT] = 1, -1
    lengths, out = np.full(3, length, np.int32), np.zeros(3 * length * width + 16, np.uint8)
    return GatherCase(segment, plan, np.zeros(0, np.uint8), np.arange(3), lengths, out[-out.ctypes.data % 16 :])


def moves(case: GatherCase) -> set[tuple[str, int]]:
    """How the words of a gather were copied, which gives what the reference gives."""
    expected, all_of_them = case.run(reference), cuda_simulated.widths
    cuda_simulated.widths = mine = set[tuple[str, int]]()
    np.testing.assert_array_equal(case.run(cuda), expected)
    cuda_simulated.widths = all_of_them
    all_of_them |= mine
    return mine


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_rows_are_copied_in_the_widest_words_that_they_allow(length, width):
    """Rows of three words, that lie five words apart."""
    assert moves(aligned_case(length, 3 * width, 5 * width)) == {("move", width)}


@pytest.mark.parametrize(("width", "most"), [(68, 4), (24, 8), (6, 2), (1, 1), (48, 16), (28224, 16)])
def test_runs_are_copied_in_the_widest_words_that_their_distance_allows(width, most):
    """Four words at a time where they are at least four bytes wide; single bytes only up to a boundary."""
    moved = moves(aligned_case(12 if width < 100 else 1 + 1, width, width))
    assert (("move four", most) if most >= 4 else ("move", most)) in moved
    assert width != 28224 or moved == {("move four", 16), ("move", 16)}


def test_every_word_that_the_ptx_is_searched_for_is_one_that_kernels_use():
    cases = [aligned_case(3, 3 * width, 5 * width) for width in WORDS]
    cases += [aligned_case(12, width, width) for width in (68, 24, 48)]
    assert set().union(*map(moves, cases)) == EXECUTED


def test_octets_become_singles_four_at_a_time(monkeypatch):
    """Frames as they are stored, as networks take them: in any other alignment one by one, with the same result."""
    frame = {
        "op": r.STACK, "per_trajectory": False, "source": r.UINT8, "result": r.FLOAT32, "cast": True, "elements": 12,
        "offset": 0, "count": 0, "side": 0, "shift": 1, "depth": 2, "repeat": True, "scale": 1 / 255, "gamma": 1.0,
        "pad": False, "present": False,
    }  # fmt: skip
    load, loaded = cuda_simulated._read, []
    monkeypatch.setattr(cuda_simulated, "_read", lambda at, size: loaded.append(size) or load(at, size))
    for elements, fours in ((12, True), (7, False)):
        case = test_views.build(
            3, 4, 5, [[6, 7], [9]], [{**frame, "elements": elements}], interleaved=False, head=True, packed=False
        )
        loaded.clear()
        np.testing.assert_array_equal(case.run(cuda), case.run(reference_views))
        assert (1 not in loaded) == fours


def test_the_benchmark_for_a_gpu_runs(tmp_path):
    """Its checks, and each of its measurements at a size that shows nothing else."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--json", str(tmp_path / "lines")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "checked: batches on streams" in result.stdout
    assert "checked: the service's batches, columns on both" in result.stdout
    assert "checked: memory used again, columns on device" in result.stdout
    assert ", 0 parts failed" in result.stdout
    assert len((tmp_path / "lines").read_text().splitlines()) == 21


def test_the_simulator_refuses_what_a_device_would():
    """The checks that all tests here rest upon: of bounds, of alignment, of what may be written."""
    words = np.zeros(4, np.int64)
    at = words.ctypes.data
    with cuda_simulated.accessible([(at, 16)], [(at + 16, 8)]):
        assert cuda_simulated.load_8(at + 8) == 0
        cuda_simulated.store_4(at + 20, 7)
        for refused in (
            lambda: cuda_simulated.load_8(at + 4),
            lambda: cuda_simulated.move_1(at, at),
            lambda: cuda_simulated.load_8(at + 24),
            lambda: cuda_simulated.store_8(at + 8, 1),
            lambda: cuda_simulated.load_1(at - 1),
        ):
            with pytest.raises(AssertionError, match="bytes at"):
                refused()
    assert words.tolist() == [0, 0, 7 << 32, 0]

"""Views on every implementation against the reference, byte for byte, over random arenas of linked pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gear.kernels import records as r
from gear.kernels import reference_views
from tests.kernels.simulator import SIMULATED, at_most, examples

if SIMULATED:
    from gear.kernels import cuda as kernels
else:
    from gear.kernels import host_views as kernels

SENTINEL = 0xA5
SIZES = (1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8)


@pytest.fixture(params=[kernels], ids=["cuda" if SIMULATED else "host"], scope="module")
def implementation(request):
    return request.param


@dataclass
class Case:
    """Arguments of one gather of views."""

    segment: np.ndarray
    plan: np.ndarray
    pads: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    neighbours: np.ndarray
    out: np.ndarray

    def run(self, implementation) -> np.ndarray:
        out = self.out.copy()
        arguments = (self.segment, self.plan, self.pads, self.starts, self.lengths, self.neighbours, out)
        implementation.gather_views(*arguments)
        return out


def bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


view = st.fixed_dictionaries(
    {
        "op": st.sampled_from([r.COPY, r.COPY, r.STACK, r.N_STEP, r.TO_GO, r.TIMESTEP]),
        "per_trajectory": st.integers(0, 6).map(lambda n: n == 0),
        "source": st.integers(0, 12),
        "result": st.integers(0, 12),
        "cast": st.booleans(),
        "elements": st.sampled_from([1, 1, 3, at_most(20, 5), at_most(700, 9)]),
        "offset": st.sampled_from([0, 0, -4, -1, 2, 5]),
        "count": st.sampled_from([0, 0, 1, 6]),
        "side": st.integers(0, 2),
        "shift": st.integers(0, 4),
        "depth": st.integers(1, 6),
        "repeat": st.booleans(),
        "scale": st.sampled_from([1.0, 0.5, 1 / 255]),
        "gamma": st.sampled_from([0.0, 0.9, 1.0]),
        "pad": st.booleans(),
        "present": st.booleans(),
    }
)
FLOATS = [r.FLOAT16, r.BFLOAT16, r.FLOAT32, r.FLOAT64]
WHOLES = [n for n in range(13) if n not in FLOATS]


specs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "steps": st.sampled_from([1, 2, 5, 16]),
        "length": st.sampled_from([1, 1, 4, 9]),
        "trajectories": st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=4),
        "views": st.lists(view, min_size=1, max_size=4),
        "interleaved": st.booleans(),
        "head": st.booleans(),
        "packed": st.booleans(),
    }
)


PLAIN: dict[str, Any] = {
    "op": r.COPY, "per_trajectory": False, "source": r.BOOL, "result": r.BOOL, "cast": False, "elements": 1,
    "offset": 0, "count": 0, "side": 0, "shift": 0, "depth": 1, "repeat": False, "scale": 1.0, "gamma": 0.0,
    "pad": False, "present": False,
}  # fmt: skip
BROKEN_OFF = {
    "seed": 1, "steps": 1, "length": 1, "trajectories": [[1, 2, 2]], "interleaved": False, "head": False,
    "packed": False,
    "views": [
        {**PLAIN, "per_trajectory": True}, {**PLAIN, "per_trajectory": True, "elements": at_most(700, 9)},
        {**PLAIN, "op": r.STACK, "elements": 3, "depth": 3}, {**PLAIN, "op": r.N_STEP, "pad": True},
    ],
}  # fmt: skip
"""A chain that ends before the rows that its slot names: sums over them had a negative length."""


def build(seed, steps, length, trajectories, views, interleaved, head, packed, hostile=False) -> Case:
    """Trajectories, each a list of the lengths of its pieces, in blocks and slots in random order."""
    rng = np.random.default_rng(seed)
    finals = rng.random(len(trajectories)) < 0.5
    sizes = [(t, n, n + (finals[t] and i == len(p) - 1)) for t, p in enumerate(trajectories) for i, n in enumerate(p)]
    count = sum(-(-rows // steps) for _, _, rows in sizes) + 2
    n_slots = len(sizes) + 1
    stepwise = [v for v in views if not v["per_trajectory"]]
    widths = [v["elements"] * SIZES[v["source"]] for v in stepwise]
    order = np.argsort([-SIZES[v["source"]] for v in stepwise], kind="stable").tolist()
    row = -(-sum(widths) // 8) * 8
    offsets, at = [0] * len(widths), 0
    for i in order:
        offsets[i] = at
        at += widths[i] if interleaved else -(-widths[i] * steps // 8) * 8
    block_bytes = row * steps if interleaved else at
    slots_at = -(-count * 4 * r.BLOCK_FIELDS // 64) * 64
    arena = slots_at + n_slots * 8 * r.SLOT_FIELDS
    trajectory_at = arena + count * block_bytes
    per_slot = sum(-(-v["elements"] * SIZES[v["source"]] // 8) * 8 for v in views) * n_slots
    segment = np.zeros(trajectory_at + per_slot, np.uint8)
    plan = np.zeros((1 + len(views), r.VIEW_FIELDS), np.int64)
    items = int(rng.integers(0, 8))
    plan[0, : r.MASK + 1] = (steps, block_bytes, arena, 0, count, length, head, -1)
    plan[0, r.SLOTS : r.PACKED + 1] = slots_at, n_slots, packed
    _fill(rng, segment, plan, views, offsets, row if interleaved else 0, trajectory_at)
    _link(rng, segment, plan, sizes, finals)
    starts, lengths = _items(rng, segment, plan, sizes, items, length)
    total = int(np.clip(lengths, 0, length).sum()) if packed else items * length
    pads, end = _results(rng, plan, views, items, total, packed)
    neighbours = np.sort(rng.choice(n_slots, int(rng.integers(0, n_slots + 1)), replace=False)).astype(np.int32)
    if hostile:
        _corrupt(rng, segment[: count * 4 * r.BLOCK_FIELDS].view(np.int32))
        _corrupt(rng, starts)
        _corrupt(rng, segment[slots_at:arena].view(np.int64))
    return Case(segment, plan, pads, starts, lengths, neighbours, np.full(end + 7, SENTINEL, np.uint8))


def _fill(rng, segment, plan, views, offsets, row, trajectory_at) -> None:
    """Random values where the columns lie: finite ones, so that sums are numbers."""
    steps, block_bytes, arena, count = (int(plan[0, f]) for f in (r.BLOCK_STEPS, r.BLOCK_BYTES, r.ARENA, r.BLOCK_COUNT))
    places = iter(offsets)
    for column, v in zip(plan[1:], views, strict=True):
        kind = reference_views._dtype(v["source"])
        width = v["elements"] * kind.itemsize
        column[r.WIDTH], column[r.KIND] = width, v["per_trajectory"]
        number = int(plan[0, r.SLOT_COUNT]) if v["per_trajectory"] else count * steps
        values = rng.integers(0, 2 if v["source"] == r.BOOL else 100, (number, v["elements"])) - (
            50 if v["source"] not in (r.BOOL, r.UINT8, r.UINT16, r.UINT32, r.UINT64) else 0
        )
        raw = np.ascontiguousarray(values.astype(kind)).view(np.uint8).reshape(number, width)
        if v["per_trajectory"]:
            column[r.OFFSET], column[r.STRIDE] = trajectory_at, -(-width // 8) * 8
            for slot in range(number):
                at = trajectory_at + slot * int(column[r.STRIDE])
                segment[at : at + width] = raw[slot]
            trajectory_at += number * int(column[r.STRIDE])
            continue
        column[r.OFFSET], column[r.STRIDE] = next(places), row or width
        for block in range(count):
            for step in range(steps):
                at = arena + block * block_bytes + int(column[r.OFFSET]) + step * int(column[r.STRIDE])
                segment[at : at + width] = raw[block * steps + step]


def _link(rng, segment, plan, sizes, finals) -> None:
    """Block and slot records of the pieces."""
    steps, count, n_slots, slots_at = (int(plan[0, f]) for f in (r.BLOCK_STEPS, r.BLOCK_COUNT, r.SLOT_COUNT, r.SLOTS))
    blocks = segment[: count * 4 * r.BLOCK_FIELDS].view(np.int32).reshape(count, r.BLOCK_FIELDS)
    slots = segment[slots_at : slots_at + n_slots * 8 * r.SLOT_FIELDS].view(np.int64).reshape(n_slots, r.SLOT_FIELDS)
    blocks[:] = -1
    free, names = rng.permutation(count).tolist(), rng.permutation(n_slots).tolist()
    before, base = -1, 0
    slots[:, [r.PREDECESSOR, r.SUCCESSOR]] = -1
    for i, (t, n, rows) in enumerate(sizes):
        slot, chain = names[i], [free.pop() for _ in range(-(-rows // steps))]
        for k, block in enumerate(chain):
            blocks[block, [r.SLOT, r.ORDINAL]] = slot, k
            blocks[block, r.NEXT] = chain[k + 1] if k + 1 < len(chain) else -1
            blocks[block, r.PREVIOUS] = chain[k - 1] if k else -1
        first = i == 0 or sizes[i - 1][0] != t
        last = i + 1 == len(sizes) or sizes[i + 1][0] != t
        before, base = (-1, int(rng.integers(0, 3))) if first else (before, base)
        flags = (r.HAS_FINAL if finals[t] else 0) | (r.TERMINATED if rng.random() < 0.5 else 0) if last else r.CONTINUED
        slots[slot, [r.FIRST, r.LAST, r.LENGTH, r.FLAGS, r.BASE]] = chain[0], chain[-1], n, flags, base
        slots[slot, r.PREDECESSOR] = before
        if before >= 0:
            slots[before, r.SUCCESSOR] = slot
        before, base = slot, base + n


def _items(rng, segment, plan, sizes, items, length):
    """Rows in pieces, and how many of them items have."""
    steps, count, n_slots, slots_at = (int(plan[0, f]) for f in (r.BLOCK_STEPS, r.BLOCK_COUNT, r.SLOT_COUNT, r.SLOTS))
    blocks = segment[: count * 4 * r.BLOCK_FIELDS].view(np.int32).reshape(count, r.BLOCK_FIELDS)
    slots = segment[slots_at : slots_at + n_slots * 8 * r.SLOT_FIELDS].view(np.int64).reshape(n_slots, r.SLOT_FIELDS)
    rows = [
        (
            block * steps + step,
            int(slots[blocks[block, r.SLOT], r.LENGTH]) - int(blocks[block, r.ORDINAL]) * steps - step,
        )
        for block in range(count)
        for step in range(steps)
        if blocks[block, r.SLOT] >= 0
    ]
    rows = [(row, left) for row, left in rows if left > 0]
    chosen = rng.integers(0, len(rows), items)
    starts = np.array([rows[k][0] for k in chosen], np.int64)
    lengths = np.array([min(length, rows[k][1]) - int(rng.integers(0, 2)) * (rows[k][1] > 1) for k in chosen], np.int32)
    return starts, lengths


def _results(rng, plan, views, items, total, packed) -> tuple[np.ndarray, int]:
    """Where results go; returns the pads and the bytes of the output."""
    at, pads = 8, [np.zeros(0, np.uint8)]
    for column, v in zip(plan[1:], views, strict=True):
        op, source, result, elements = v["op"], v["source"], v["result"], v["elements"]
        if v["per_trajectory"]:
            op = r.COPY
        if op in (r.COPY, r.STACK):
            floating = result in FLOATS
            if not v["cast"] or result == r.BOOL or (not floating and source in FLOATS):
                result, floating = source, source in FLOATS
        elif op == r.TIMESTEP:
            result, elements, floating = r.INT64, 1, False
            column[r.WIDTH] = 0
        else:
            result, floating = (result if result in FLOATS else r.FLOAT32), True
        moved = not v["per_trajectory"]
        column[r.OP], column[r.SOURCE], column[r.RESULT], column[r.ELEMENTS] = op, source, result, elements
        column[r.BEGIN_AT] = v["offset"] if moved else 0
        column[r.COUNT] = v["count"] if moved and not packed else 0
        column[r.SIDE] = v["side"] if not packed else 0
        column[r.SHIFT] = v["shift"] if op in (r.COPY, r.STACK) and moved else 0
        column[r.DEPTH] = v["depth"] if op in (r.STACK, r.N_STEP) else 0
        column[r.REPEAT] = v["repeat"]
        column[r.SCALE] = bits(v["scale"] if v["cast"] and floating and op in (r.COPY, r.STACK) else 1.0)
        column[r.GAMMA] = bits(v["gamma"])
        frames = int(column[r.DEPTH]) if op == r.STACK else 1
        column[r.BYTES] = frames * elements * SIZES[result]
        rows = items if v["per_trajectory"] else items * int(column[r.COUNT]) if column[r.COUNT] else total
        column[r.PAD] = column[r.PRESENT] = column[r.DISCOUNT] = column[r.TAKEN] = -1
        if v["pad"]:
            column[r.PAD] = sum(map(len, pads))
            pads.append(rng.integers(0, 256, int(column[r.BYTES]), dtype=np.uint8))
        column[r.TARGET], at = at, at + -(-rows * int(column[r.BYTES]) // 8) * 8 + 8
        if v["present"] and not v["per_trajectory"]:
            column[r.PRESENT], at = at, at + -(-rows // 8) * 8 + 8
        if op == r.N_STEP:
            column[r.DISCOUNT], column[r.TAKEN] = at, at + 4 * rows
            at += 8 * rows + 8
    if not packed and rng.random() < 0.5:
        plan[0, r.MASK], at = at, at + total
    return np.concatenate(pads), at


def _corrupt(rng, numbers) -> None:
    """Replace about a third of the numbers by ones that make no sense."""
    limits = np.iinfo(numbers.dtype)
    strange = np.array([limits.min, -2, -1, 0, 1, 2, 3, 9, 10**6, limits.max // 2, limits.max], numbers.dtype)
    chosen = rng.random(numbers.shape) < 0.35
    numbers[chosen] = rng.choice(strange, int(chosen.sum()))


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs)
def test_views_equal_the_reference(implementation, spec):
    case = build(**spec)
    np.testing.assert_array_equal(case.run(implementation), case.run(reference_views))


# Integers wrap on a device and in compiled code; the simulator counts with those of NumPy, which says when they do.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs)
@example(spec=BROKEN_OFF)
def test_whatever_the_records_hold_it_ends_and_stays_in_its_arrays(implementation, spec):
    """A reader that lost its pin gathers while the records change."""
    assert (build(**spec, hostile=True).run(implementation)[-7:] == SENTINEL).all()


def one_view(**fields: Any) -> Case:
    """A trajectory of pieces of 3 and 2 rows in blocks of 2, each row one byte, read from its fourth row on."""
    base = {**PLAIN, "source": r.UINT8, "result": r.UINT8, "repeat": True, "gamma": 1.0}
    return build(1, 2, 4, [[3, 2]], [{**base, **fields}], interleaved=False, head=False, packed=False)


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("op", [r.COPY, r.STACK, r.N_STEP, r.TO_GO, r.TIMESTEP])
def test_rows_behind_a_chain_that_is_cut_are_padding(implementation, op, head):
    """Items of up to 9 rows in blocks of 2, one of which cannot be reached: they show what lies before it."""
    view = {**PLAIN, "op": op, "source": r.UINT8, "depth": 3, "gamma": 0.5, "pad": True, "present": True}
    for seed in range(20):
        case = build(seed, 2, 9, [[7, 2]], [view], interleaved=False, head=head, packed=False)
        blocks = case.segment[: int(case.plan[0, r.BLOCK_COUNT]) * 4 * r.BLOCK_FIELDS].view(np.int32)
        blocks = blocks.reshape(-1, r.BLOCK_FIELDS)
        blocks[blocks[:, r.ORDINAL] == seed % 3, r.NEXT] = -1
        blocks[blocks[:, r.ORDINAL] == seed % 3 + 1, r.PREVIOUS] = -1
        np.testing.assert_array_equal(case.run(implementation), case.run(reference_views))


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (0, r.SLOTS, -1, "slots lie outside"),
        (0, r.SLOT_COUNT, 10**9, "slots lie outside"),
        (1, r.COUNT, -1, "negative"),
        (1, r.SHIFT, 1 << 50, "reaches too far"),
        (1, r.BEGIN_AT, -(1 << 50), "reaches too far"),
        (1, r.RESULT, 13, "no such dtype"),
        (1, r.OP, 9, "no such dtype or result"),
        (1, r.BYTES, 2, "row of a result has another size"),
        (1, r.ELEMENTS, 2, "has another size"),
        (1, r.TARGET, 10**9, "into the output"),
        (1, r.PRESENT, 10**9, "into the output"),
        (1, r.PAD, 10**6, "outside the pads"),
    ],
)
def test_a_plan_that_leaves_its_arrays_is_refused(implementation, row, column, value, message):
    case = one_view()
    case.plan[row, column] = value
    with pytest.raises(ValueError, match=message):
        case.run(implementation)


def test_a_plan_of_plain_columns_is_no_plan_of_views(implementation):
    case = one_view()
    case.plan = case.plan[:, : r.PLAN_FIELDS].copy()
    with pytest.raises(ValueError, match="not a plan of views"):
        case.run(implementation)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_every_half_precision_number_is_converted_and_rounded_as_numpy_does(implementation, dtype):
    """All 65536 bit patterns to float64, and doubles in and between the steps of each back again."""
    import ml_dtypes

    number = r.DTYPES.index(dtype)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    if kind.itemsize == 2:
        every = np.arange(65536, dtype=np.uint16).view(kind)
        with np.errstate(invalid="ignore"):
            expected = every.astype(np.float64)
        np.testing.assert_array_equal(through(implementation, every, number, r.FLOAT64), expected)
    rng = np.random.default_rng(2)
    doubles = np.concatenate([rng.normal(size=4000) * 10.0 ** rng.integers(-12, 9, 4000), [0.0, -0.0, np.inf, np.nan]])
    ties = np.arange(-2000, 2000) * 2.0**-25
    for values in (doubles, ties, 1.0 + ties, 2048.0 + np.arange(40) / 2):
        with np.errstate(over="ignore", invalid="ignore"):
            expected = (values.astype(np.float32) if dtype == "bfloat16" else values).astype(kind)
        got = through(implementation, values, r.FLOAT64, number)
        np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def through(implementation, values: np.ndarray, source: int, result: int) -> np.ndarray:
    """Values converted by a view of one row."""
    size, kind = len(values), reference_views._dtype(result)
    plan = np.zeros((2, r.VIEW_FIELDS), np.int64)
    slots = 4 * r.BLOCK_FIELDS * 8
    arena = slots + 8 * r.SLOT_FIELDS
    segment = np.zeros(arena + values.nbytes, np.uint8)
    segment[arena:] = np.ascontiguousarray(values).view(np.uint8)
    segment[: 4 * r.BLOCK_FIELDS].view(np.int32)[[r.NEXT, r.PREVIOUS]] = -1
    segment[slots:arena].view(np.int64)[[r.LENGTH, r.PREDECESSOR, r.SUCCESSOR]] = 1, -1, -1
    plan[0, : r.MASK + 1] = (1, values.nbytes, arena, 0, 1, 1, 0, -1)
    plan[0, r.SLOTS : r.PACKED + 1] = slots, 1, 0
    column = plan[1]
    column[[r.STRIDE, r.WIDTH, r.PAD, r.PRESENT, r.DISCOUNT, r.TAKEN]] = values.nbytes, values.nbytes, -1, -1, -1, -1
    column[[r.SOURCE, r.RESULT, r.ELEMENTS, r.SCALE]] = source, result, size, bits(1.0)
    column[r.BYTES] = size * kind.itemsize
    out = np.zeros(size * kind.itemsize, np.uint8)
    none = np.empty(0, np.int32)
    implementation.gather_views(
        segment, plan, np.zeros(0, np.uint8), np.zeros(1, np.int64), np.ones(1, np.int32), none, out
    )
    return out.view(kind)

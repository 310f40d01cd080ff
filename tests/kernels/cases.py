"""Arenas and trees for the kernel tests, small enough to check by eye or made from a random seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from gear.kernels import records as r
from tests.kernels.simulator import at_most

SENTINEL = 0xA5
"""What fills the output before a gather: bytes that no column covers must keep it."""


@dataclass
class GatherCase:
    """Arguments of one gather."""

    segment: np.ndarray
    plan: np.ndarray
    pads: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    out: np.ndarray

    def run(self, implementation) -> np.ndarray:
        out = self.out.copy()
        implementation.gather(self.segment, self.plan, self.pads, self.starts, self.lengths, out)
        return out


@dataclass(frozen=True)
class Shape:
    """What a random gather looks like."""

    steps: int
    blocks: int
    length: int
    items: int
    head: bool
    mask: bool
    interleaved: bool
    columns: tuple[tuple[int, int, bool], ...]  # kind, width, with a pad value
    hostile: bool  # chains, slots and starts may lead anywhere
    seed: int


shapes = st.builds(
    Shape,
    steps=st.integers(1, 9),
    blocks=st.integers(0, 8),
    length=st.one_of(st.just(1), st.integers(0, 12), st.integers(at_most(30, 13), at_most(70, 20))),
    items=st.one_of(st.integers(0, 5), st.integers(at_most(15, 3), at_most(50, 8))),
    head=st.booleans(),
    mask=st.booleans(),
    interleaved=st.booleans(),
    columns=st.lists(
        st.tuples(
            st.sampled_from([r.PER_STEP, r.PER_STEP, r.PER_TRAJECTORY]),
            st.one_of(st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 70), st.integers(250, 600)),
            st.booleans(),
        ),
        max_size=5,
    ).map(tuple),
    hostile=st.booleans(),
    seed=st.integers(0, 2**32),
)


def place_columns(shape: Shape) -> tuple[np.ndarray, int]:
    """Plan with the columns' places inside a block, and the bytes of a block."""
    plan = np.zeros((1 + len(shape.columns), r.PLAN_FIELDS), np.int64)
    plan[1:, r.PAD] = -1
    row = sum(width for kind, width, _ in shape.columns if kind == r.PER_STEP)
    at = 0
    for column, (kind, width, _) in zip(plan[1:], shape.columns, strict=True):
        column[r.KIND], column[r.WIDTH] = kind, width
        if kind == r.PER_STEP:
            column[r.OFFSET], column[r.STRIDE] = at, row if shape.interleaved else width
            at += width if shape.interleaved else width * shape.steps
    return plan, row * shape.steps + 3


def gather_case(shape: Shape) -> GatherCase:
    """A random arena with trajectories of chained blocks, and items of them."""
    rng = np.random.default_rng(shape.seed)
    plan, block_bytes = place_columns(shape)
    arena = shape.blocks * 4 * r.BLOCK_FIELDS + 5
    trajectories = arena + shape.blocks * block_bytes
    strides = sum(width + 1 for kind, width, _ in shape.columns if kind == r.PER_TRAJECTORY)
    segment = rng.integers(0, 256, trajectories + strides * shape.blocks, dtype=np.uint8)
    plan[0, : r.MASK + 1] = (shape.steps, block_bytes, arena, 0, shape.blocks, shape.length, shape.head, -1)
    at, target, pads = trajectories, 7, [np.zeros(0, np.uint8)]
    for column, (kind, width, pad) in zip(plan[1:], shape.columns, strict=True):
        if kind == r.PER_TRAJECTORY:
            column[r.OFFSET], column[r.STRIDE] = at, width + 1
            at += (width + 1) * shape.blocks
        if pad:
            column[r.PAD] = sum(map(len, pads))
            pads.append(rng.integers(0, 256, width, dtype=np.uint8))
        column[r.TARGET] = target
        target += width * shape.items * (shape.length if kind == r.PER_STEP else 1) + 3
    if shape.mask:
        plan[0, r.MASK] = target
        target += shape.items * shape.length + 3
    blocks = segment[: shape.blocks * 4 * r.BLOCK_FIELDS].view(np.int32).reshape(shape.blocks, r.BLOCK_FIELDS)
    order = rng.permutation(shape.blocks)
    blocks[order, r.NEXT] = np.append(order[1:], -1)[: shape.blocks]
    blocks[:, r.SLOT] = rng.integers(0, max(shape.blocks, 1), shape.blocks)
    starts = rng.integers(0, max(shape.blocks * shape.steps, 1), shape.items)
    lengths = rng.integers(0, shape.length + 3, shape.items).astype(np.int32)
    if shape.hostile:
        _corrupt(rng, blocks[:, r.NEXT])
        _corrupt(rng, blocks[:, r.SLOT])
        _corrupt(rng, starts)
        _corrupt(rng, lengths)
    return GatherCase(segment, plan, np.concatenate(pads), starts, lengths, np.full(target + 5, SENTINEL, np.uint8))


def _corrupt(rng: np.random.Generator, numbers: np.ndarray) -> None:
    """Replace about a third of the numbers by ones that make no sense."""
    limits = np.iinfo(numbers.dtype)
    strange = np.array([limits.min, -2, -1, 0, 1, 2, 3, 9, 10**6, limits.max // 2, limits.max], numbers.dtype)
    chosen = rng.random(numbers.shape) < 0.35
    numbers[chosen] = rng.choice(strange, int(chosen.sum()))


def tree_of(implementation, leaves) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tree, mins, starts) over the leaves."""
    sizes = [-(-max(len(leaves), 1) // r.FAN) * r.FAN]
    while sizes[-1] > r.FAN:
        sizes.append(-(-(sizes[-1] // r.FAN) // r.FAN) * r.FAN)
    starts = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
    tree, mins = np.full(sum(sizes), np.nan), np.full(sum(sizes[1:]), np.nan)
    tree[: sizes[0]] = 0.0
    tree[: len(leaves)] = leaves
    implementation.tree_build(tree, mins, starts)
    return tree, mins, starts


def drawn(implementation, tree: np.ndarray, starts: np.ndarray, masses) -> np.ndarray:
    """Items drawn at the masses, which stay as they are."""
    scratch = np.array(masses, np.float64)
    items = np.full(len(scratch), -7, np.int64)
    implementation.tree_draw(tree, starts, scratch, items)
    return items

"""The kernels in plain NumPy, written to be read: the oracle that every other implementation is tested by.

They define what a kernel does, to the byte; how fast is no concern. `host` has the same functions under
the same signatures. The plan and the block records are described in `records`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear.kernels import records as r
from gear.kernels.records import FAN

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

MASK_64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def _block_records(segment: Bytes, plan: Integers) -> npt.NDArray[np.int32]:
    """int32[blocks, BLOCK_FIELDS], a view of the segment."""
    begin, count = int(plan[0, r.BLOCKS]), int(plan[0, r.BLOCK_COUNT])
    end = begin + count * 4 * r.BLOCK_FIELDS
    return segment[begin:end].view(np.int32).reshape(count, r.BLOCK_FIELDS)


def _row(segment: Bytes, plan: Integers, column: Integers, block: int, step: int) -> Bytes:
    """The bytes of one row of a per-step column, a view of the segment."""
    begin = plan[0, r.ARENA] + block * plan[0, r.BLOCK_BYTES] + column[r.OFFSET] + step * column[r.STRIDE]
    return segment[begin : begin + column[r.WIDTH]]


def _check_places(segment: Bytes, plan: Integers) -> None:
    """Refuse a plan whose blocks or columns leave the segment."""
    steps, block_bytes, arena, blocks, count, length = (int(v) for v in plan[0, : r.ITEM_LENGTH + 1])
    columns = plan[1:, [r.OFFSET, r.STRIDE, r.WIDTH, r.TARGET]]
    if steps < 1 or min(block_bytes, arena, blocks, count, length) < 0 or (columns < 0).any():
        raise ValueError("plan: a size or an offset is negative")
    if max(arena + count * block_bytes, blocks + count * 4 * r.BLOCK_FIELDS) > len(segment):
        raise ValueError("plan: the blocks lie outside the segment")
    for column in plan[1:]:
        end = column[r.OFFSET] + (steps - 1) * column[r.STRIDE] + column[r.WIDTH]
        if column[r.KIND] == r.PER_STEP and end > block_bytes:
            raise ValueError("plan: a column lies outside its block")


def _check_output(plan: Integers, pads: Bytes, items: int, out: Bytes) -> None:
    """Refuse a plan whose batch leaves the output, or whose pad values leave the pads."""
    length = plan[0, r.ITEM_LENGTH]
    if plan[0, r.MASK] >= 0 and plan[0, r.MASK] + items * length > len(out):
        raise ValueError("plan: the mask does not fit into the output")
    for column in plan[1:]:
        rows = items * (length if column[r.KIND] == r.PER_STEP else 1)
        if column[r.TARGET] + rows * column[r.WIDTH] > len(out):
            raise ValueError("plan: a column does not fit into the output")
        if column[r.PAD] >= 0 and column[r.PAD] + column[r.WIDTH] > len(pads):
            raise ValueError("plan: a pad value lies outside the pads")


def _rows_there(records: npt.NDArray[np.int32], steps: int, row: int, want: int) -> list[tuple[int, int]]:
    """(block, step) of up to `want` rows; fewer where the chain of blocks ends or leads out of the arena."""
    found: list[tuple[int, int]] = []
    block, step = divmod(row, steps)
    while len(found) < want and 0 <= block < len(records):
        found.append((block, step))
        step += 1
        if step == steps:
            block, step = int(records[block, r.NEXT]), 0
    return found


def gather(
    segment: Bytes, plan: Integers, pads: Bytes, starts: Integers, lengths: npt.NDArray[np.int32], out: Bytes
) -> None:
    """Collect the rows of items into contiguous columns.

    Item k is ``min(lengths[k], L)`` rows from row number ``starts[k]`` on, along the chain of blocks. The
    rows that are there come first (or last, if the plan pads at the head), the others get the column's pad
    value. Per-trajectory columns give the row of the slot that owns the first block, or the pad value if
    the item has no rows.

    Parameters
    ----------
    segment : uint8[*]
        Block records, arena and per-trajectory columns.
    plan : int64[1 + C, PLAN_FIELDS]
        See `records`.
    pads : uint8[P]
        Pad values, one row each, at the offsets that the plan names.
    starts : int64[B]
        Row number ``block * block_steps + step`` of each item's first row; one outside the arena has none.
    lengths : int32[B]
        Rows of each item; below 1 it has none.
    out : uint8[*]
        Receives per column [B, L, width] ([B, width] per trajectory) and, if asked for, the mask bool[B, L].

    Raises
    ------
    ValueError
        If the plan does not fit the arrays.
    """
    if len(lengths) != len(starts):
        raise ValueError("gather: starts and lengths differ in length")
    _check_places(segment, plan)
    _check_output(plan, pads, len(starts), out)
    items, length, mask = len(starts), int(plan[0, r.ITEM_LENGTH]), int(plan[0, r.MASK])
    records = _block_records(segment, plan)
    for k in range(items):
        rows = _rows_there(records, int(plan[0, r.BLOCK_STEPS]), int(starts[k]), min(int(lengths[k]), length))
        first = length - len(rows) if plan[0, r.PAD_HEAD] else 0
        if mask >= 0:
            present = out[mask + k * length : mask + (k + 1) * length]
            present[:] = 0
            present[first : first + len(rows)] = 1
        for column in plan[1:]:
            width, per_step = int(column[r.WIDTH]), column[r.KIND] == r.PER_STEP
            pad = pads[column[r.PAD] : column[r.PAD] + width] if column[r.PAD] >= 0 else np.zeros(width, np.uint8)
            places = length if per_step else 1
            begin = int(column[r.TARGET]) + k * places * width
            target = out[begin : begin + places * width].reshape(places, width)
            target[:] = pad
            if per_step:
                for i, (block, step) in enumerate(rows):
                    target[first + i] = _row(segment, plan, column, block, step)
            elif rows:
                slot = int(records[rows[0][0], r.SLOT])
                at = int(column[r.OFFSET]) + slot * int(column[r.STRIDE])
                if slot >= 0 and at + width <= len(segment):
                    target[0] = segment[at : at + width]


def gather_packed(
    segment: Bytes, plan: Integers, pads: Bytes, starts: Integers, lengths: npt.NDArray[np.int32], out: Bytes
) -> None:
    """Collect the rows of items into contiguous columns, one item behind the other.

    As `gather`, but item k has ``min(lengths[k], L)`` rows in ``out``, none if that is negative, pad values last where
    rows are missing; a column is [sum of these, width]. There is no mask.

    Raises
    ------
    ValueError
        If the plan does not fit the arrays.
    """
    if len(lengths) != len(starts):
        raise ValueError("gather: starts and lengths differ in length")
    _check_places(segment, plan)
    wants = np.clip(lengths, 0, int(plan[0, r.ITEM_LENGTH])).astype(int).tolist()
    at = 0
    for column in plan[1:]:
        rows = sum(wants) if column[r.KIND] == r.PER_STEP else len(starts)
        if column[r.TARGET] + rows * column[r.WIDTH] > len(out):
            raise ValueError("plan: a column does not fit into the output")
        if column[r.PAD] >= 0 and column[r.PAD] + column[r.WIDTH] > len(pads):
            raise ValueError("plan: a pad value lies outside the pads")
    for k, want in enumerate(wants):
        one = plan.copy()
        one[0, r.ITEM_LENGTH], one[0, r.PAD_HEAD], one[0, r.MASK] = want, 0, -1
        for column in one[1:]:
            column[r.TARGET] += (at if column[r.KIND] == r.PER_STEP else k) * column[r.WIDTH]
        gather(segment, one, pads, starts[k : k + 1], lengths[k : k + 1], out)
        at += want


def scatter(
    segment: Bytes, plan: Integers, column: int, blocks: npt.NDArray[np.int32], spans: Integers, values: Bytes
) -> None:
    """Write rows of per-step column number `column` into the blocks of one or more trajectories.

    Parameters
    ----------
    segment, plan
        As for `gather`; only the arena's part of the plan and the column's place matter.
    blocks : int32[N]
        The trajectories' blocks, in order.
    spans : int64[K, 3]
        Per trajectory: its first row in `values`, how many rows, and where its blocks begin in `blocks`. Its
        first row goes to the first row of its first block.
    values : uint8[rows * width]
        The rows, one behind the other.

    Raises
    ------
    ValueError
        If a span leaves the values or the blocks, or the blocks or the column do not fit into the segment;
        nothing is written then.
    """
    _check_places(segment, plan)
    if not 0 <= column < len(plan) - 1 or plan[1 + column, r.KIND] != r.PER_STEP:
        raise ValueError("scatter: not a per-step column")
    steps, count, place = int(plan[0, r.BLOCK_STEPS]), int(plan[0, r.BLOCK_COUNT]), plan[1 + column]
    width = int(place[r.WIDTH])
    if width == 0 or len(values) % width:
        raise ValueError("scatter: the values are not whole rows")
    total = len(values) // width
    for begin, rows, at in spans.tolist():
        if not (0 <= begin <= total and 0 <= rows <= total - begin):
            raise ValueError("scatter: rows outside the given values")
        if not (0 <= at <= len(blocks) and -(-rows // steps) <= len(blocks) - at):
            raise ValueError("scatter: rows outside the given blocks")
    if ((blocks < 0) | (blocks >= count)).any():
        raise ValueError("scatter: a block outside the arena")
    for begin, rows, at in spans.tolist():
        for i in range(rows):
            value = values[(begin + i) * width : (begin + i + 1) * width]
            _row(segment, plan, place, int(blocks[at + i // steps]), i % steps)[:] = value


def _node_sums(level: Floats) -> Floats:
    """Sum of each eight, added in pairs: the order is part of the result."""
    return level.reshape(-1, 2, 2, 2).sum(3).sum(2).sum(1)


def _leaves(tree: Floats, starts: Integers) -> Floats:
    """The leaves and their padding, a view of the tree."""
    return tree[: starts[1] if len(starts) > 1 else len(tree)]


def tree_build(tree: Floats, mins: Floats, starts: Integers) -> None:
    """Make the inner nodes of a sum tree from its leaves.

    Parameters
    ----------
    tree : float64[*]
        The levels one behind the other, leaves first; each padded to a multiple of FAN with zeros. A node's
        value is the sum of its FAN children, the last level holds one node's values.
    mins : float64[*]
        For inner levels only: the smallest leaf below each node that is not zero, inf if there is none.
    starts : int64[levels]
        Where each level begins in `tree`; less ``starts[1]``, where it begins in `mins`. No levels: no tree.
    """
    bounds = [*(int(v) for v in starts), len(tree)]
    for level in range(1, len(starts)):
        children = tree[bounds[level - 1] : bounds[level]].reshape(-1, FAN)
        if level == 1:
            least = np.where(children > 0.0, children, np.inf).min(1)
        else:
            least = mins[bounds[level - 1] - bounds[1] : bounds[level] - bounds[1]].reshape(-1, FAN).min(1)
        here = slice(bounds[level], bounds[level + 1])
        tree[here], mins[bounds[level] - bounds[1] : bounds[level + 1] - bounds[1]] = 0.0, np.inf
        tree[here][: len(children)] = _node_sums(children)
        mins[bounds[level] - bounds[1] :][: len(children)] = least


def tree_update(tree: Floats, mins: Floats, starts: Integers, items: Integers, leaves: Floats) -> None:
    """Set leaves and re-sum their ancestors; of duplicate items the last wins.

    Parameters
    ----------
    tree, mins, starts
        A tree made by `tree_build`.
    items : int64[K]
        Which leaves.
    leaves : float64[K]
        Their new values: finite and not negative, which the caller has checked.

    Raises
    ------
    IndexError
        If an item is not a leaf; nothing is changed then.
    """
    if len(items) != len(leaves):
        raise ValueError("tree_update: items and leaves differ in length")
    if len(items) and (min(items) < 0 or max(items) >= len(_leaves(tree, starts))):
        raise IndexError("tree_update: an item lies outside the tree")
    for item, leaf in zip(items, leaves, strict=True):
        tree[item] = leaf
    tree_build(tree, mins, starts)


def tree_total(tree: Floats, starts: Integers) -> float:
    """Return the sum of all leaves, 0 for no tree."""
    return float(_node_sums(tree[starts[-1] :])[0]) if len(starts) else 0.0


def tree_smallest(tree: Floats, mins: Floats, starts: Integers) -> float:
    """Return the smallest leaf that is not zero, inf if there is none."""
    leaves = _leaves(tree, starts)
    return float(min(leaves[leaves > 0.0], default=np.inf)) if len(starts) else np.inf


def tree_draw(tree: Floats, starts: Integers, masses: Floats, items: Integers) -> None:
    """Find the leaves at which the cumulated leaves first exceed the masses.

    Parameters
    ----------
    tree, starts
        A tree made by `tree_build`.
    masses : float64[B]
        From 0 to the total; used as scratch. Whatever they are, no leaf of zero is drawn: rounding, or a
        mass that is the total, leads to the last leaf that is not zero.
    items : int64[B]
        Receives the leaves; -1 where the total is 0. Other implementations sum along the tree: a mass
        within rounding of a border between two leaves may go to either.
    """
    if len(masses) != len(items):
        raise ValueError("tree_draw: masses and items differ in length")
    alive = np.flatnonzero(_leaves(tree, starts) > 0.0) if len(starts) else np.empty(0, np.int64)
    if len(alive) == 0:
        items[:] = -1
        return
    places = np.searchsorted(np.cumsum(tree[alive]), masses, side="right")
    items[:] = alive[np.minimum(places, len(alive) - 1)]


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
    return z ^ (z >> 31)


def random_bits(seed: int, draw: int, attempt: int) -> int:
    """Return 64 random bits that depend on the three numbers alone.

    The draw-th output of the SplitMix64 generator whose state is the mixed seed, mixed once more with the
    attempt, so that a draw that is rejected has further numbers of its own. The mixing function is
    variant 13 of David Stafford, "Better Bit Mixing" (2011); the generator is of Steele, Lea and Flood,
    "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014). Not for cryptography.
    """
    stream = _mix((seed + GOLDEN) & MASK_64)
    drawn = _mix((stream + draw * GOLDEN) & MASK_64)
    return _mix((drawn + attempt * 0xBF58476D1CE4E5B9) & MASK_64)


def uniforms(seed: int, first_draw: int, out: Floats) -> None:
    """Fill float64[B] with numbers in [0, 1), 53 bits each, for draws first_draw, first_draw + 1, ..."""
    for k in range(len(out)):
        out[k] = (random_bits(seed, first_draw + k, 0) >> 11) * 2.0**-53

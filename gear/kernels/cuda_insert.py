"""An insert on a GPU: rows of all columns go to leased blocks in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear.kernels import records as r
from gear.kernels.cuda_launch import LANES, WARPS, Call, parts
from gear.kernels.cuda_scatter import scatter_columns
from gear.kernels.reference import _check_places

if TYPE_CHECKING:
    from collections.abc import Sequence

Integers = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]


def _check(plan: Integers, column: int, blocks: Shorts, spans: Integers, size: int) -> None:
    """Refuse rows that have no place; see `reference.scatter`."""
    if not 0 <= column < len(plan) - 1 or plan[1 + column, r.KIND] != r.PER_STEP:
        raise ValueError("scatter: not a per-step column")
    width = int(plan[1 + column, r.WIDTH])
    if width == 0 or size % width:
        raise ValueError("scatter: the values are not whole rows")
    total, steps = size // width, int(plan[0, r.BLOCK_STEPS])
    begin, rows, at = spans.reshape(-1, 3).T
    if ((begin < 0) | (begin > total) | (rows < 0) | (rows > total - begin)).any():
        raise ValueError("scatter: rows outside the given values")
    if ((at < 0) | (at > len(blocks)) | (-(-rows // steps) > len(blocks) - at)).any():
        raise ValueError("scatter: rows outside the given blocks")
    if ((blocks < 0) | (blocks >= plan[0, r.BLOCK_COUNT])).any():
        raise ValueError("scatter: a block outside the arena")


def scatter_many(
    segment: Any, plan: Integers, columns: Sequence[int], blocks: Shorts, spans: Integers, values: Sequence[Any],
    stream: Any = 0,
) -> None:  # fmt: skip
    """Write rows of several per-step columns into the blocks of trajectories, in one launch.

    Parameters
    ----------
    segment, plan, blocks, spans
        As for `reference.scatter`; `blocks` and `spans` are NumPy arrays, for they say what is to be written where.
    columns : which columns.
    values : for each of them uint8[rows * width].
    stream : a stream of Numba.

    Raises
    ------
    ValueError
        As `reference.scatter`; nothing is written then.
    """
    _check_places(segment, plan)
    for column, rows in zip(columns, values, strict=True):
        _check(plan, column, blocks, spans, len(rows))
    longest = int(spans[:, 1].max()) if len(spans) else 0
    if not longest:
        return
    with Call(stream) as call:
        table = np.array([(1 + c, call.reads(v)) for c, v in zip(columns, values, strict=True)], np.int64)
        steps, width = int(plan[0, r.BLOCK_STEPS]), int(max(plan[1 + c, r.WIDTH] for c in columns))
        grid = (*parts(len(spans) * len(columns), -(-longest // steps) * max(1, steps * width // 8192)), len(columns))
        arguments = call.writes(segment), call.table(plan), call.copied(table), call.reads(blocks), call.reads(spans)
        call.launch(scatter_columns, grid, (LANES, WARPS), *arguments, len(spans))


def scatter(
    segment: Any, plan: Integers, column: int, blocks: Shorts, spans: Integers, values: Any, stream: Any = 0
) -> None:
    """Write rows of one column into leased blocks; see `reference.scatter`."""
    scatter_many(segment, plan, [column], blocks, spans, [values], stream)

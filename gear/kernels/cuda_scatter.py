"""Writing rows into the blocks of trajectories on a GPU: every column of an insert in one launch."""

from __future__ import annotations

from numba import cuda

from gear.kernels.cuda_copy import copy_rows
from gear.kernels.cuda_seam import kernel, load_4, load_8, quotient
from gear.kernels.cuda_windows import rows_per_tile
from gear.kernels.records import ARENA, BLOCK_BYTES, BLOCK_STEPS, OFFSET, STRIDE, WIDTH


@kernel
def scatter_columns(segment, plan, columns, blocks, spans, trajectories):
    """Write rows of several columns; see `reference.scatter`. Addresses but for `plan` and `columns`, all checked.

    columns: int64[C, 2], the row of the plan and the address of the values. Grid: (trajectories or fewer, parts of a
    trajectory, C); block: (lanes of a warp, warps). Warps take turns at tiles of blocks.
    """
    lane, lanes = cuda.threadIdx.x, cuda.blockDim.x
    warp, warps = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y, cuda.gridDim.y * cuda.blockDim.y
    c, values = columns[cuda.blockIdx.z, 0], columns[cuda.blockIdx.z, 1]
    steps, stride, width = plan[0, BLOCK_STEPS], plan[c, STRIDE], plan[c, WIDTH]
    column, tile = segment + plan[0, ARENA] + plan[c, OFFSET], min(steps, rows_per_tile(width))
    tiles = quotient(steps + tile - 1, tile)  # of a block
    for k in range(cuda.blockIdx.x, trajectories, cuda.gridDim.x):
        first, total, at = load_8(spans + 24 * k), load_8(spans + 24 * k + 8), load_8(spans + 24 * k + 16)
        for unit in range(warp, quotient(total + steps - 1, steps) * tiles, warps):
            block = quotient(unit, tiles)
            step = (unit - block * tiles) * tile
            begin = block * steps + step
            rows = min(min(tile, steps - step), total - begin)
            target = column + load_4(blocks + 4 * (at + block)) * plan[0, BLOCK_BYTES] + step * stride
            copy_rows(target, stride, values + (first + begin) * width, width, width, rows, lane, lanes)

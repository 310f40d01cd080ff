"""The directory of a segment: counters, slots, blocks and free rings, and how they start.

Kernels receive a table as two arrays, ``segment`` (uint8) and ``params`` (int64, `Layout.params`); the
compiled accessors here turn a region into a typed view. Only the shard that owns the table may change
anything here; clients read block and slot records of what they have pinned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.errors import SchemaError
from gear.kernels.compile import kernel
from gear.schema import Prioritized, SampleToInsertRatio, to_bytes
from gear.storage.layout import FORMAT, PARAMS, REGIONS, WRITER

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout

MAGIC = b"GEARSEG\0"

# Counters, int64. FREE_* and *_HEAD describe the rings of free blocks and slots.
(
    STORED_STEPS, STORED, USED_BLOCKS, USED_SLOTS, HELD_BLOCKS, RETIRED_BLOCKS,
    FREE_HEAD, FREE_BLOCKS, SLOT_HEAD, FREE_SLOTS, LEASED_BLOCK_COUNT, LEASED_SLOT_COUNT,
    ITEM_COUNT, INSERTED_ITEMS, DELETED_ITEMS, SAMPLED_ITEMS, RESERVED_ITEMS,
    INSERTED, INSERTED_STEPS, EVICTED_COUNT, EVICTED_STEPS, EVICTED_EARLY, CONSUMED,
    DRAWS, REMOVER_DRAWS, OLDEST, NEWEST, LIVE_UNITS, LIVE_ITEMS, MOST_PER_UNIT, REMOVER_LIVE,
    UPDATED, STALE, HELD_SLOTS, BASE_INSERTED, BASE_DELETED, BASE_SAMPLED,
) = range(37)  # fmt: skip

# Floats, float64: parameters first, then the largest raw priority so far.
ALPHA, EPS, REMOVER_ALPHA, REMOVER_EPS, RATIO, LOW, HIGH, MAX_PRIORITY = range(8)

# Scalars of `params`.
(
    P_TABLE, P_SHARD, P_ROW_BITS, P_BLOCK_STEPS, P_BLOCK_BYTES, P_BLOCKS, P_SLOTS, P_RESERVE_BLOCKS,
    P_RESERVE_SLOTS, P_GENERATIONS, P_ITEM, P_LENGTH, P_STRIDE, P_EDGE, P_STEP_N, P_ITEMS_PER_BLOCK,
    P_SAMPLER, P_REMOVER, P_CAPACITY_KIND, P_CAPACITY, P_MAX_LENGTH, P_MIN_SIZE, P_RATIO, P_MAX_TIMES, P_SEED,
) = range(25)  # fmt: skip

# Regions of `params`, as indices of their (offset, bytes) pairs.
(
    R_COUNTERS, R_FLOATS, R_CLIENTS, R_BLOCKS, R_SLOTS, R_FREE_BLOCKS, R_FREE_SLOTS, R_LIVE, R_POSITION,
    R_COUNT, R_STARTS, R_TREE, R_MINS, R_RAW, R_TIMES, R_REMOVER_LIVE, R_REMOVER_POSITION,
    R_REMOVER_STARTS, R_REMOVER_TREE, R_REMOVER_MINS, R_ARENA, R_TRAJECTORIES,
) = range(len(PARAMS), len(PARAMS) + 2 * len(REGIONS), 2)  # fmt: skip


@kernel
def int64s(segment, params, region):
    """Region as int64[N]."""
    return segment[params[region] : params[region] + params[region + 1]].view(np.int64)


@kernel
def int32s(segment, params, region):
    """Region as int32[N]."""
    return segment[params[region] : params[region] + params[region + 1]].view(np.int32)


@kernel
def float64s(segment, params, region):
    """Region as float64[N]."""
    return segment[params[region] : params[region] + params[region + 1]].view(np.float64)


@kernel
def float32s(segment, params, region):
    """Region as float32[N]."""
    return segment[params[region] : params[region] + params[region + 1]].view(np.float32)


def start(segment: npt.NDArray[np.uint8], layout: Layout) -> None:
    """Write the directory of an empty table into a zeroed segment.

    Raises
    ------
    SchemaError
        If the declaration does not fit into the header.
    """
    table = layout.table
    spec = to_bytes(table)
    header = layout.view(segment, "header")
    if len(spec) + 64 > len(header):
        raise SchemaError(
            f"table {table.name!r}: its declaration takes {len(spec)} bytes, more than {len(header) - 64}"
        )
    header[:8] = np.frombuffer(MAGIC, np.uint8)
    header[8:64].view(np.int64)[:5] = (FORMAT, len(spec), layout.index, layout.shard, layout.nbytes)
    header[64 : 64 + len(spec)] = np.frombuffer(spec, np.uint8)
    layout.view(segment, "blocks")[:, 1:] = -1
    layout.view(segment, "slots")[:, WRITER] = -1
    layout.view(segment, "free_blocks")[:] = np.arange(layout.blocks)
    layout.view(segment, "free_slots")[:] = np.arange(layout.slots)
    counters = layout.view(segment, "counters")
    counters[FREE_BLOCKS], counters[FREE_SLOTS] = layout.blocks, layout.slots
    counters[OLDEST] = counters[NEWEST] = -1
    floats = layout.view(segment, "floats")
    for at, rule in ((ALPHA, table.sampler), (REMOVER_ALPHA, table.remover)):
        if isinstance(rule, Prioritized):
            floats[at : at + 2] = rule.alpha, rule.eps
    if isinstance(table.limiter, SampleToInsertRatio):
        floats[RATIO] = table.limiter.samples_per_insert
        floats[LOW : HIGH + 1] = table.limiter.bounds
    floats[MAX_PRIORITY] = 1.0
    for prefix in ("", "remover_"):
        starts = layout.view(segment, prefix + "starts")
        if len(starts):
            starts[:] = layout.tree_levels[prefix]
            layout.view(segment, prefix + "mins")[:] = np.inf

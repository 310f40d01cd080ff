"""The binary records that kernels read: block records, the gather plan, the sum tree's fan-out.

Constants only, no imports beyond the standard library: whoever lays out memory (`gear.storage.layout`)
and whoever compiles kernels takes them from here, so both always mean the same bytes.
"""

from __future__ import annotations

FAN = 8
"""Children per node of a sum tree: one cache line of float64."""

# Fields of a block record, int32[BLOCK_FIELDS].
BLOCK_FIELDS = 6
GENERATION, SLOT, ORDINAL, NEXT, PREVIOUS, OWNER = range(BLOCK_FIELDS)

# A plan is int64[1 + columns, PLAN_FIELDS]. Row 0 describes the arena and the items.
PLAN_FIELDS = 10
BLOCK_STEPS, BLOCK_BYTES, ARENA, BLOCKS, BLOCK_COUNT, ITEM_LENGTH, PAD_HEAD, MASK = range(8)

# Row 1 + c describes column c. ARENA, BLOCKS and a TRAJECTORY column's OFFSET count from the start of the
# segment, a STEP column's OFFSET from the start of a block; PAD is an offset into `pads` or -1 for zeros.
KIND, OFFSET, STRIDE, WIDTH, TARGET, PAD = range(6)
PER_STEP, PER_TRAJECTORY = range(2)

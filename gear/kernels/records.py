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

# Fields of a slot record, int64[SLOT_FIELDS]. PREDECESSOR, SUCCESSOR: slots of the neighbouring pieces of a split
# trajectory, -1 for none; BASE: steps of the trajectory before this piece; CHAIN, CHECK: checksums of its blocks'
# generations and of the record (`gear.storage.journal`); HANDLE: its number with a client that maps no memory.
SLOT_FIELDS = 22
(
    STATE, FIRST, LAST, LENGTH, FLAGS, ITEMS, WRITER, SEQUENCE,
    ORDER, PINS, CLIENT, CURSOR_BLOCK, OLDER, NEWER, GONE, CURSOR,
    PREDECESSOR, SUCCESSOR, BASE, CHAIN, CHECK, HANDLE,
) = range(SLOT_FIELDS)  # fmt: skip

# Flags of a slot and of a commit entry. CONTINUED / CONTINUES: a piece of a trajectory split at max_length.
TERMINATED, HAS_FINAL, CONTINUED, CONTINUES, END, BEGIN = 1, 2, 4, 8, 16, 32

# A plan is int64[1 + columns, PLAN_FIELDS]. Row 0 describes the arena and the items.
PLAN_FIELDS = 10
BLOCK_STEPS, BLOCK_BYTES, ARENA, BLOCKS, BLOCK_COUNT, ITEM_LENGTH, PAD_HEAD, MASK = range(8)

# Row 1 + c describes column c. ARENA, BLOCKS and a TRAJECTORY column's OFFSET count from the start of the
# segment, a STEP column's OFFSET from the start of a block; PAD is an offset into `pads` or -1 for zeros.
KIND, OFFSET, STRIDE, WIDTH, TARGET, PAD = range(6)
PER_STEP, PER_TRAJECTORY = range(2)

# A plan of views is int64[1 + views, VIEW_FIELDS] and begins as a plan does. Row 0 goes on with where the slots lie,
# and whether items lie behind each other without padding.
VIEW_FIELDS = 24
SLOTS, SLOT_COUNT, PACKED = range(8, 11)

# Row 1 + v goes on with what the view makes (OP), the rows it shows (BEGIN_AT relative to the item's first one; COUNT
# of them, 0 for the item's own), SIDE of the padding, SHIFT, DEPTH (frames of a stack, rewards of a return), whether a
# stack's missing frames REPEAT the first one, dtypes of column and result (indices of DTYPES), elements of a row,
# SCALE and GAMMA (bits of a float64), bytes of a row of the result, and where mask, discounts and numbers of steps go
# (-1: nowhere). PAD is a row of the result.
(
    OP, BEGIN_AT, COUNT, SIDE, SHIFT, DEPTH, REPEAT, SOURCE, RESULT, ELEMENTS, SCALE, GAMMA, BYTES, PRESENT, DISCOUNT,
    TAKEN,
) = range(6, 22)  # fmt: skip
COPY, STACK, N_STEP, TO_GO, TIMESTEP = range(5)
IN_PLACE, AT_TAIL, AT_HEAD = range(3)

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "int64", "uint64",
    "float64",
)  # fmt: skip
"""Dtypes by the numbers that plans use for them."""
(
    BOOL, INT8, UINT8, INT16, UINT16, FLOAT16, BFLOAT16, INT32, UINT32, FLOAT32, INT64, UINT64, FLOAT64,
) = range(13)  # fmt: skip

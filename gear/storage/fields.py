"""The binary fields of a segment: records, states, flags, counters and the parameters of kernels.

Constants only, so that compiled code depends on nothing else. `gear.storage.layout` says where each part
lies; the block records that gather kernels read too are defined beside those kernels.
"""

from __future__ import annotations

from gear.kernels.records import (
    BASE,
    BEGIN,
    BLOCK_FIELDS,
    CHAIN,
    CHECK,
    CLIENT,
    CONTINUED,
    CONTINUES,
    CURSOR,
    CURSOR_BLOCK,
    END,
    FAN,
    FIRST,
    FLAGS,
    GENERATION,
    GONE,
    HANDLE,
    HAS_FINAL,
    ITEMS,
    LAST,
    LENGTH,
    NEWER,
    NEXT,
    OLDER,
    ORDER,
    ORDINAL,
    OWNER,
    PINS,
    PREDECESSOR,
    PREVIOUS,
    SEQUENCE,
    SLOT,
    SLOT_FIELDS,
    STATE,
    SUCCESSOR,
    TERMINATED,
    WRITER,
)

__all__ = [
    "BASE", "BEGIN", "BLOCK_FIELDS", "CHAIN", "CHECK", "CLIENT", "CONTINUED", "CONTINUES", "CURSOR", "CURSOR_BLOCK",
    "END", "FAN", "FIRST", "FLAGS", "GENERATION", "GONE", "HANDLE", "HAS_FINAL", "ITEMS", "LAST", "LENGTH", "NEWER",
    "NEXT", "OLDER", "ORDER", "ORDINAL", "OWNER", "PINS", "PREDECESSOR", "PREVIOUS", "SEQUENCE", "SLOT",
    "SLOT_FIELDS", "STATE", "SUCCESSOR", "TERMINATED", "WRITER",
]  # fmt: skip

ID_TABLE_SHIFT, ID_SHARD_SHIFT, ID_LOW_BITS = 55, 47, 47
"""An id is table (8 bits), shard (8), generation and row (47 together), most significant first."""

MAX_CLIENTS = 4096
"""Client entries a segment remembers for exactly-once inserts."""

CLIENT_FIELDS, COUNTERS, FLOATS = 8, 64, 16

# Of a slot record, CURSOR: where ordered draws of items that are used up go on, and CURSOR_BLOCK a block near it; every
# item before it (`Lifo`: from it on) is used up. Of an evicted slot CURSOR is the number of its blocks.

# States of a slot. OPEN: rows are published, more may follow. EVICTED: out of the table, still pinned.
FREE, LEASED, OPEN, CLOSED, EVICTED = range(5)

TABLE = -2
"""WRITER of an open trajectory that belongs to the table: no client's death ends it."""

TOUCHED = SEQUENCE
"""Of such a trajectory: the time of its last append, `time.time_ns()`."""

MAX_SETS = 10
"""Sets of items with a sampler structure of their own: all, those of 8 requirements, those with open trajectories."""

# The journal of the one change under way, int64[JOURNAL_FIELDS]: what stood there before. MARK is the slot + 1, or 0
# when none is under way. ORDINAL_FROM: first place in the chain that is new; REQUEST: what its leases go back to.
JOURNAL_FIELDS = 24
(
    J_MARK, J_SLOT, J_WRITER, J_STATE, J_LENGTH, J_ITEMS, J_FLAGS, J_SEQUENCE, J_CURSOR, J_LAST, J_CHAIN, J_CHECK,
    J_ORDINAL_FROM, J_REQUEST, J_INSERTED, J_INSERTED_STEPS, J_INSERTED_ITEMS, J_INSERT_CREDIT, J_EVICTED_STEPS,
    J_COMMITTED,
) = range(20)  # fmt: skip

GRANTED = -2
"""ORDINAL of a leased block, SEQUENCE of a leased slot, that its client knows of. Else they hold the number of the
request that it was leased for, until its answer has come; 0: leased for a purpose of the shard's own."""

ERA_SHIFT, ERAS = 45, 1 << 16
"""A pin's number has the era of its shard, how often that was started before, above these bits."""

LATE_FIELDS = 2
# Fields of a slot's late record, int64[LATE_FIELDS]: a bit for each late column that is there; how often its rows
# changed, odd while they are being written.
LATE_BITS, LATE_CHANGES = range(LATE_FIELDS)

# Flags of a slot only: STALE_NOW, it left the table because it was too old; DESCRIBED, the per-trajectory columns of an
# open trajectory of the table are given.
STALE_NOW, DESCRIBED = 64, 128

UNCHECKED = STALE_NOW | DESCRIBED
"""Flags that a slot's checksum does not cover: they change without a commit."""

# Fields of a client record, int64[CLIENT_FIELDS]: identity (128 bits), last committed sequence, leases.
ID_HIGH, ID_LOW, COMMITTED, KNOWN, LEASED_BLOCKS, LEASED_SLOTS = range(6)

# Items, samplers (and removers) and capacities as kernels see them.
WHOLE, STEP, WINDOW = range(3)
INSIDE, TAIL, HEAD = range(3)
UNIFORM, PRIORITIZED, FIFO, LIFO, MAX_HEAP, MIN_HEAP, EPOCHS, FRESH = range(8)
STEPS, TRAJECTORIES, BYTES = range(3)

PARAMS = (
    "table", "shard", "row_bits", "block_steps", "block_bytes", "blocks", "slots", "reserve_blocks",
    "reserve_slots", "generations", "item", "length", "stride", "edge", "step_n", "items_per_block",
    "sampler", "remover", "capacity_kind", "capacity", "max_length", "min_size", "ratio", "max_times", "seed",
    "over", "distinct", "most", "spread", "sets", "needs", "with_open", "by_slot", "late", "versioned",
    "max_staleness", "budget", "eta", "items", "consumers", "leaving", "grouped",
)  # fmt: skip
"""Names of the scalars at the head of `Layout.params`, in order.

`params` holds one such head, with the regions behind it, for each set of items. All share everything but the
sampler's structure and counters; the heads of the others tell `needs` (bits of the late columns that must be there),
`with_open` and `by_slot` (the structure is a heap of slots) apart.
"""

REGIONS = (
    "counters", "floats", "clients", "blocks", "slots", "free_blocks", "free_slots", "live", "position",
    "starts", "tree", "mins", "raw", "times", "remover_live", "remover_position",
    "remover_starts", "remover_tree", "remover_mins", "stamps", "remover_keys", "remover_stamps", "arena",
    "trajectories", "journal", "late", "versions", "slot_keys", "slot_stamps", "lines", "links", "claims",
    "acks", "units", "mates", "changed",
)  # fmt: skip
"""Regions behind the scalars, each as (offset, bytes)."""

# Counters, int64. FREE_* and *_HEAD describe the rings of free blocks and slots.
(
    STORED_STEPS, STORED, USED_BLOCKS, USED_SLOTS, HELD_BLOCKS, RETIRED_BLOCKS,
    FREE_HEAD, FREE_BLOCKS, SLOT_HEAD, FREE_SLOTS, LEASED_BLOCK_COUNT, LEASED_SLOT_COUNT,
    ITEM_COUNT, INSERTED_ITEMS, DELETED_ITEMS, SAMPLED_ITEMS, RESERVED_ITEMS,
    INSERTED, INSERTED_STEPS, EVICTED_COUNT, EVICTED_STEPS, EVICTED_EARLY, CONSUMED,
    DRAWS, REMOVER_DRAWS, OLDEST, NEWEST, LIVE_UNITS, LIVE_ITEMS, MOST_PER_UNIT, REMOVER_LIVE,
    UPDATED, STALE, HELD_SLOTS, STAMP, EPOCH, EPOCH_DRAWN, DRAWN_STEPS, INSERT_CREDIT, CREDITED,
    VERSION, EXPIRED, EXPIRED_STEPS, RETURNED_ITEMS, FILLED, STALE_FILLS,
    OPENED, OPENED_STEPS, OPENED_BLOCKS, OPEN_DROPPED, SUMMED_THERE, CHANGED,
) = range(52)  # fmt: skip

# LIVE_ITEMS: items that can be drawn now; not counted where `Prioritized` may draw an item twice.
# LIVE_UNITS: entries of the list of blocks (or slots) that `Uniform` draws from.
# INSERT_CREDIT: items that may still be inserted, lent by the home of a table that lies on several shards.
# CREDITED: of the home, samples promised or delivered by all shards.
# In a set of its own (LIVE_UNITS with `by_slot`: slots in the heap) only these, EPOCH*, MOST_PER_UNIT and DRAWS count.
# RETURNED_ITEMS: inserted items that the limiter forgot, because they expired. OPENED*: open trajectories of the table.
# SUMMED_THERE: the leaves of this set are summed up on a GPU, for which items whose leaves changed are noted; CHANGED:
# how many were, those beyond the room for them included.
# STAMP: insertions into and updates of heaps so far. EPOCH: epochs ended; EPOCH_DRAWN: items drawn of the running one.

UNLIMITED = 1 << 62
"""Credit of inserts that no limiter ever holds back."""

# Floats, float64: parameters first, then the largest raw priority so far.
ALPHA, EPS, REMOVER_ALPHA, REMOVER_EPS, RATIO, LOW, HIGH, MAX_PRIORITY = range(8)

# Fields of a consumer's line, int64[LINE_FIELDS]: its ends, units and items that wait, and counts of items.
LINE_FIELDS = 8
LINE_HEAD, LINE_TAIL, LINE_UNITS, LINE_WAITING, LINE_SERVED, LINE_ACKNOWLEDGED, LINE_DROPPED, LINE_NEEDS = range(8)
# LINE_NEEDS: bits of the late columns that items have before they join the line.

CLAIM_CLIENT_BITS = 12
"""A claim's number names its client in the lowest bits."""

# Scalars of `params`. P_LEAVING: items leave when every consumer has acknowledged them. P_GROUPED: items per group.
(
    P_TABLE, P_SHARD, P_ROW_BITS, P_BLOCK_STEPS, P_BLOCK_BYTES, P_BLOCKS, P_SLOTS, P_RESERVE_BLOCKS,
    P_RESERVE_SLOTS, P_GENERATIONS, P_ITEM, P_LENGTH, P_STRIDE, P_EDGE, P_STEP_N, P_ITEMS_PER_BLOCK,
    P_SAMPLER, P_REMOVER, P_CAPACITY_KIND, P_CAPACITY, P_MAX_LENGTH, P_MIN_SIZE, P_RATIO, P_MAX_TIMES, P_SEED,
    P_OVER, P_DISTINCT, P_MOST, P_SPREAD, P_SETS, P_NEEDS, P_WITH_OPEN, P_BY_SLOT, P_LATE, P_VERSIONED,
    P_MAX_STALENESS, P_BUDGET, P_ETA, P_ITEMS, P_CONSUMERS, P_LEAVING, P_GROUPED,
) = range(42)  # fmt: skip

# Regions of `params`, as indices of their (offset, bytes) pairs.
(
    R_COUNTERS, R_FLOATS, R_CLIENTS, R_BLOCKS, R_SLOTS, R_FREE_BLOCKS, R_FREE_SLOTS, R_LIVE, R_POSITION,
    R_STARTS, R_TREE, R_MINS, R_RAW, R_TIMES, R_REMOVER_LIVE, R_REMOVER_POSITION,
    R_REMOVER_STARTS, R_REMOVER_TREE, R_REMOVER_MINS, R_STAMPS, R_REMOVER_KEYS,
    R_REMOVER_STAMPS, R_ARENA, R_TRAJECTORIES, R_JOURNAL, R_LATE, R_VERSIONS, R_SLOT_KEYS, R_SLOT_STAMPS, R_LINES,
    R_LINKS, R_CLAIMS, R_ACKS, R_UNITS, R_MATES, R_CHANGED,
) = range(len(PARAMS), len(PARAMS) + 2 * len(REGIONS), 2)  # fmt: skip

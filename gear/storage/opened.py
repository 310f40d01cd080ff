"""Open trajectories of the table: they grow by anybody's appends and outlive every client until they are sealed.

One is a slot in the state OPEN whose writer is `TABLE`. Its rows are written by the shard, and its length is raised
after them. It keeps a pin of its own, is never evicted, and has no items but in the set that asks for open ones.
Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import fence, kernel
from gear.kernels.program import FLAG, FLOATS
from gear.storage import fields as f
from gear.storage.blocks import lease
from gear.storage.commit import enlist, let_go, link
from gear.storage.directory import int32s, int64s
from gear.storage.evict import evict, unpin
from gear.storage.items import indices, item_count
from gear.storage.journal import begin as enter_change
from gear.storage.journal import end as end_change
from gear.storage.journal import stamp
from gear.storage.passing import insert_passes
from gear.storage.programs import COMMIT
from gear.storage.publish import publish
from gear.storage.room import make_room, room_for_lease
from gear.storage.sampler import enter, leave
from gear.storage.seams import join_pieces
from gear.storage.sets import head, items_in
from gear.storage.versions import expire_if_stale

# What stands in the way of an open trajectory.
FINE, TOO_MANY, NO_ROOM, NO_CREDIT, NEVER = range(5)


@kernel
def _fits(segment, params, slot, trajectories, steps, blocks):
    """Whether open trajectories, this much larger, take at most half of the table: FINE, TOO_MANY now, or NEVER."""
    counters = int64s(segment, params, f.R_COUNTERS)
    kind, capacity = params[f.P_CAPACITY_KIND], params[f.P_CAPACITY]
    data_blocks = params[f.P_BLOCKS] - params[f.P_RESERVE_BLOCKS]
    data_slots = params[f.P_SLOTS] - params[f.P_RESERVE_SLOTS]
    length = steps
    if slot >= 0:
        length += int64s(segment, params, f.R_SLOTS)[slot * f.SLOT_FIELDS + f.LENGTH]
    size = (length + params[f.P_BLOCK_STEPS] - 1) // params[f.P_BLOCK_STEPS]
    if length > params[f.P_MAX_LENGTH] or size > data_blocks // 2 or (kind == f.STEPS and length > capacity // 2):
        return NEVER
    if (kind == f.BYTES and size > capacity // 2) or data_slots < 2 or (kind == f.TRAJECTORIES and capacity < 2):
        return NEVER
    if (
        (kind == f.STEPS and counters[f.OPENED_STEPS] + steps > capacity // 2)
        or (kind == f.TRAJECTORIES and counters[f.OPENED] + trajectories > capacity // 2)
        or (kind == f.BYTES and counters[f.OPENED_BLOCKS] + blocks > capacity // 2)
        or counters[f.OPENED_BLOCKS] + blocks > data_blocks // 2
        or counters[f.OPENED] + trajectories > data_slots // 2
    ):
        return TOO_MANY
    return FINE


@kernel
def _take(segment, params, client, slot, trajectories, steps, added, new_slot):
    """Room and blocks: (FINE or NO_ROOM, int32[added] blocks). new_slot: int32[trajectories], filled."""
    counters = int64s(segment, params, f.R_COUNTERS)
    clients = int64s(segment, params, f.R_CLIENTS)
    blocks = np.empty(added, np.int32)
    if not make_room(segment, params, slot, steps, trajectories, added):
        return TOO_MANY, blocks
    short = counters[f.FREE_BLOCKS] < added or counters[f.FREE_SLOTS] < trajectories
    if short and not room_for_lease(segment, params, added, trajectories):
        return NO_ROOM, blocks
    lease(segment, params, client, blocks, new_slot, 0)
    counters[f.LEASED_BLOCK_COUNT] -= added
    counters[f.LEASED_SLOT_COUNT] -= trajectories
    clients[client * f.CLIENT_FIELDS + f.LEASED_BLOCKS] -= added
    clients[client * f.CLIENT_FIELDS + f.LEASED_SLOTS] -= trajectories
    counters[f.USED_BLOCKS] += added
    return FINE, blocks


@COMMIT.kernel()
def start(segment, params, client, version, now):
    """Open a trajectory without rows. Returns (what stands in the way, its slot)."""
    fault = _fits(segment, params, -1, 1, 0, 1)
    if fault != FINE:
        return fault, np.int64(-1)
    new_slot = np.empty(1, np.int32)
    fault, blocks = _take(segment, params, client, -1, 1, 0, 1, new_slot)
    if fault != FINE:
        return fault, np.int64(-1)
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    slot = np.int64(new_slot[0])
    at = slot * f.SLOT_FIELDS
    enter_change(segment, params, slot, 0, 0)
    slots[at + f.WRITER], slots[at + f.TOUCHED] = f.TABLE, now
    slots[at + f.LENGTH] = slots[at + f.ITEMS] = 0
    slots[at + f.CLIENT] = 0
    if params[f.P_VERSIONED] != 0:
        int64s(segment, params, f.R_VERSIONS)[slot] = version
    link(segment, params, slot, True, 0, 1, blocks)
    enlist(segment, params, slot)
    join_pieces(segment, params, slot, 0, 0)
    counters[f.OPENED] += 1
    counters[f.OPENED_BLOCKS] += 1
    stamp(segment, params, slot)
    fence()
    slots[at + f.STATE] = f.OPEN
    end_change(segment, params)
    return FINE, slot


@kernel
def _blocks_of(params, length):
    """Blocks of an open trajectory of that many rows: never none."""
    return max(1, (length + params[f.P_BLOCK_STEPS] - 1) // params[f.P_BLOCK_STEPS])


@kernel
def _link(segment, params, slot, length, added, blocks):
    """Add leased blocks to the chain, behind `length` rows."""
    enter_change(segment, params, slot, (length + params[f.P_BLOCK_STEPS] - 1) // params[f.P_BLOCK_STEPS], 0)
    link(segment, params, slot, False, length, added, blocks)
    stamp(segment, params, slot)
    end_change(segment, params)


@COMMIT.kernel()
def make_longer(segment, params, client, slot, rows):
    """Blocks for `rows` more rows, which are written next; what stands in the way."""
    length = int64s(segment, params, f.R_SLOTS)[slot * f.SLOT_FIELDS + f.LENGTH]
    added = _blocks_of(params, length + rows) - _blocks_of(params, length)
    fault = _fits(segment, params, slot, 0, rows, added)
    if fault != FINE:
        return fault
    fault, blocks = _take(segment, params, client, slot, 0, rows, added, np.empty(0, np.int32))
    if fault == FINE:
        _link(segment, params, slot, max(length, 1), added, blocks)
        int64s(segment, params, f.R_COUNTERS)[f.OPENED_BLOCKS] += added
    return fault


@COMMIT.kernel()
def lengthen(segment, params, slot, rows, now):
    """`rows` more rows are written: they belong to the trajectory. Returns its length."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    last = head(params, params[f.P_SETS] - 1)
    before = items_in(segment, last, slot)
    enter_change(segment, params, slot, params[f.P_BLOCKS], 0)
    slots[at + f.LENGTH] += rows
    slots[at + f.TOUCHED] = now
    stamp(segment, params, slot)
    counters[f.STORED_STEPS] += rows
    counters[f.INSERTED_STEPS] += rows
    counters[f.OPENED_STEPS] += rows
    end_change(segment, params)
    if last[f.P_WITH_OPEN] != 0:
        after = items_in(segment, last, slot)
        if after > before:
            enter(segment, last, slot, indices(segment, params, slot, before, after))
    return slots[at + f.LENGTH]


@COMMIT.kernel(final=FLAG)
def ready(segment, params, client, slot, final):
    """Whether it may be sealed, with a block for a final row where that needs one; what stands in the way."""
    slots = int64s(segment, params, f.R_SLOTS)
    length = slots[slot * f.SLOT_FIELDS + f.LENGTH]
    if not insert_passes(segment, params):
        return NO_CREDIT
    added = _blocks_of(params, length + 1) - _blocks_of(params, length) if final else 0
    blocks = int32s(segment, params, f.R_BLOCKS)
    chain = np.int64(blocks[slots[slot * f.SLOT_FIELDS + f.LAST] * f.BLOCK_FIELDS + f.ORDINAL]) + 1
    added -= chain - _blocks_of(params, length)  # an attempt before may have taken it
    if added <= 0:
        return FINE
    fault, taken = _take(segment, params, client, slot, 0, 0, added, np.empty(0, np.int32))
    if fault == FINE:
        _link(segment, params, slot, length, added, taken)
        int64s(segment, params, f.R_COUNTERS)[f.OPENED_BLOCKS] += added
    return fault


@kernel
def _close(segment, params, slot):
    """It is open no more: it leaves the set of open ones and the counts."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    at = slot * f.SLOT_FIELDS
    last = head(params, params[f.P_SETS] - 1)
    leave(segment, last, slot, items_in(segment, last, slot))
    counters[f.OPENED] -= 1
    counters[f.OPENED_STEPS] -= slots[at + f.LENGTH]
    counters[f.OPENED_BLOCKS] -= np.int64(blocks[slots[at + f.LAST] * f.BLOCK_FIELDS + f.ORDINAL]) + 1
    slots[at + f.WRITER] = -1


@COMMIT.kernel(priorities=FLOATS)
def seal(segment, params, slot, flags, priorities):
    """End it, with `ready` and its final row written: its items are published. priorities: float64[0, 1 or items]."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    n = item_count(params, slots[at + f.LENGTH], True)
    enter_change(segment, params, slot, params[f.P_BLOCKS], 0)
    _close(segment, params, slot)
    slots[at + f.ITEMS] = n
    slots[at + f.FLAGS] |= flags
    stamp(segment, params, slot)
    fence()
    slots[at + f.STATE] = f.CLOSED
    fence()
    publish(segment, params, slot, 0, n, priorities, 0, priorities.shape[0])
    counters[f.ITEM_COUNT] += n
    counters[f.INSERTED_ITEMS] += n
    if params[f.P_SPREAD] != 0:
        counters[f.INSERT_CREDIT] -= n
    end_change(segment, params)
    let_go(segment, params, slot)
    expire_if_stale(segment, params, slot)


@kernel
def drop(segment, params, slot):
    """It leaves the table without being sealed."""
    int64s(segment, params, f.R_COUNTERS)[f.OPEN_DROPPED] += 1
    _close(segment, params, slot)
    evict(segment, params, slot, False)
    unpin(segment, params, slot)


@COMMIT.kernel()
def drop_before(segment, params, moment):
    """Drop those whose last append was before `moment` (`time.time_ns()`). Returns the earliest one of the others."""
    slots = int64s(segment, params, f.R_SLOTS)
    earliest, slot = np.int64(1) << 62, int64s(segment, params, f.R_COUNTERS)[f.OLDEST]
    while slot >= 0:
        at = slot * f.SLOT_FIELDS
        following = slots[at + f.NEWER]
        if slots[at + f.STATE] == f.OPEN and slots[at + f.WRITER] == f.TABLE:
            if slots[at + f.TOUCHED] < moment:
                drop(segment, params, slot)
            else:
                earliest = min(earliest, slots[at + f.TOUCHED])
        slot = following
    return earliest

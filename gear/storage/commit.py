"""Commit: check a batch of entries, make room, publish. One compiled call for a whole message.

`check` looks at every entry before `apply` changes anything. A commit is written so that a crash at any
instruction leaves the whole trajectory or nothing: blocks and record first, a fence, the state word last.
Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import fence, kernel
from gear.selection.limiter import insert_allowed
from gear.selection.prioritized import LARGEST
from gear.storage.blocks import free_block
from gear.storage.directory import (
    DELETED_ITEMS,
    EVICTED_EARLY,
    EVICTED_STEPS,
    FREE_BLOCKS,
    FREE_SLOTS,
    HIGH,
    INSERTED,
    INSERTED_ITEMS,
    INSERTED_STEPS,
    ITEM_COUNT,
    LEASED_BLOCK_COUNT,
    LEASED_SLOT_COUNT,
    NEWEST,
    OLDEST,
    P_BLOCK_STEPS,
    P_BLOCKS,
    P_CAPACITY,
    P_CAPACITY_KIND,
    P_MAX_LENGTH,
    P_MIN_SIZE,
    P_RATIO,
    P_RESERVE_BLOCKS,
    P_RESERVE_SLOTS,
    P_SLOTS,
    R_BLOCKS,
    R_CLIENTS,
    R_COUNTERS,
    R_FLOATS,
    R_FREE_BLOCKS,
    R_SLOTS,
    RATIO,
    RESERVED_ITEMS,
    SAMPLED_ITEMS,
    STORED,
    STORED_STEPS,
    USED_BLOCKS,
    USED_SLOTS,
    float64s,
    int32s,
    int64s,
)
from gear.storage.evict import evict, unpin, victim
from gear.storage.items import add_to_remover, item_count, publish
from gear.storage.layout import (
    BEGIN,
    BLOCK_FIELDS,
    BYTES,
    CLIENT,
    CLIENT_FIELDS,
    CLOSED,
    COMMITTED,
    CONTINUED,
    CONTINUES,
    CURSOR,
    END,
    EVICTED,
    FIRST,
    FLAGS,
    GONE,
    HAS_FINAL,
    ITEMS,
    LAST,
    LEASED,
    LEASED_BLOCKS,
    LEASED_SLOTS,
    LENGTH,
    NEWER,
    NEXT,
    OLDER,
    OPEN,
    ORDER,
    ORDINAL,
    OWNER,
    PINS,
    PREVIOUS,
    SEQUENCE,
    SLOT,
    SLOT_FIELDS,
    STATE,
    STEPS,
    TERMINATED,
    TRAJECTORIES,
    WRITER,
)

ALL_FLAGS = TERMINATED | HAS_FINAL | CONTINUED | CONTINUES | END | BEGIN

# What `check` finds wrong with an entry.
(
    FINE, BAD_SEQUENCE, BAD_SLOT, BAD_BLOCK, BAD_LENGTH, BAD_FLAGS, BAD_COUNT, BAD_PRIORITY, TOO_LONG,
) = range(9)  # fmt: skip


@kernel
def check(segment, params, client, by_rows, entries, named, priorities):
    """Check every entry of one client's message; nothing is changed.

    entries: COMMIT_ENTRY[N]; named: int32[M] block numbers; priorities: float64[P]; by_rows: whether the
    table publishes row by row. Returns (kind of fault, index of the entry, index of the priority).
    """
    blocks = int32s(segment, params, R_BLOCKS)
    slots = int64s(segment, params, R_SLOTS)
    clients = int64s(segment, params, R_CLIENTS)
    steps = params[P_BLOCK_STEPS]
    n = entries.shape[0]
    lengths = np.empty(n, np.int64)  # of each entry's slot after it
    closed = np.zeros(n, np.bool_)
    fault, where, k_block, k_priority = FINE, 0, 0, 0
    last = clients[client * CLIENT_FIELDS + COMMITTED]
    previous_sequence = np.int64(0)
    for i in range(n):
        where = i
        entry = entries[i]
        slot, length, flags = np.int64(entry.slot), np.int64(entry.length), np.int64(entry.flags)
        if entry.blocks < 0 or entry.priorities < 0:
            fault = BAD_COUNT
            break
        if k_block + entry.blocks > named.shape[0] or k_priority + entry.priorities > priorities.shape[0]:
            fault = BAD_COUNT
            break
        if entry.sequence <= previous_sequence:
            fault = BAD_SEQUENCE
            break
        previous_sequence = entry.sequence
        if entry.sequence <= last:  # a resent one: its leases are spent, nothing to check
            lengths[i], closed[i] = -1, True
            k_block += entry.blocks
            k_priority += entry.priorities
            continue
        if slot < 0 or slot >= params[P_SLOTS] or slots[slot * SLOT_FIELDS + WRITER] != client:
            fault = BAD_SLOT
            break
        if flags & ~ALL_FLAGS or (not by_rows and flags & (BEGIN | END) != BEGIN | END):
            fault = BAD_FLAGS
            break
        state, before = slots[slot * SLOT_FIELDS + STATE], slots[slot * SLOT_FIELDS + LENGTH]
        ended = False
        for j in range(i):  # the same slot earlier in this message
            if entries[j].slot == slot and lengths[j] >= 0:
                state, before, ended = OPEN, lengths[j], closed[j]
        begin = flags & BEGIN != 0
        if ended or (begin and state != LEASED) or (not begin and state != OPEN and state != EVICTED):
            fault = BAD_SLOT
            break
        if begin:
            before = np.int64(0)
        if length < 0 or (length == 0 and (begin or flags & END == 0)) or (flags & HAS_FINAL and flags & END == 0):
            fault = BAD_LENGTH
            break
        after = before + length
        if after > params[P_MAX_LENGTH]:
            fault = TOO_LONG
            break
        final = 1 if flags & HAS_FINAL else 0
        if entry.blocks != (after + final + steps - 1) // steps - (before + steps - 1) // steps:
            fault = BAD_COUNT
            break
        for k in range(k_block, k_block + entry.blocks):
            if named[k] < 0 or named[k] >= params[P_BLOCKS] or blocks[named[k] * BLOCK_FIELDS + OWNER] != client:
                fault = BAD_BLOCK
                break
            blocks[named[k] * BLOCK_FIELDS + OWNER] = -2 - client  # so that naming it twice is found
        if fault != FINE:
            break
        if entry.priorities > 1:
            ends = flags & END != 0
            new = item_count(params, after, ends) - (0 if begin else item_count(params, before, False))
            if entry.priorities != new:
                fault = BAD_COUNT
                k_priority = new
                break
        for k in range(k_priority, k_priority + entry.priorities):
            if not (0.0 <= priorities[k] <= LARGEST):
                fault, k_priority = BAD_PRIORITY, k - k_priority
                break
        if fault != FINE:
            break
        lengths[i], closed[i] = after, flags & END != 0
        k_block += entry.blocks
        k_priority += entry.priorities
    if fault == FINE and (k_block != named.shape[0] or k_priority != priorities.shape[0]):
        fault = BAD_COUNT
    at = 0
    for i in range(where + 1 if n else 0):  # resent entries name blocks that are not ours to unmark
        if entries[i].blocks > 0:
            stop = min(at + entries[i].blocks, named.shape[0])
            for k in range(at, stop):
                if 0 <= named[k] < params[P_BLOCKS] and blocks[named[k] * BLOCK_FIELDS + OWNER] == -2 - client:
                    blocks[named[k] * BLOCK_FIELDS + OWNER] = client
            at = stop
    return fault, where, k_priority


@kernel
def _make_room(segment, params, slot, steps, trajectories, blocks):
    """Evict until `steps` more steps, `trajectories` more trajectories and `blocks` more blocks fit."""
    counters = int64s(segment, params, R_COUNTERS)
    kind, capacity = params[P_CAPACITY_KIND], params[P_CAPACITY]
    data_blocks = params[P_BLOCKS] - params[P_RESERVE_BLOCKS]
    data_slots = params[P_SLOTS] - params[P_RESERVE_SLOTS]
    while True:
        full = (
            (kind == STEPS and counters[STORED_STEPS] + steps > capacity)
            or (kind == TRAJECTORIES and counters[STORED] + trajectories > capacity)
            or (kind == BYTES and counters[USED_BLOCKS] + blocks > capacity)
        )
        short = counters[USED_BLOCKS] + blocks > data_blocks or counters[USED_SLOTS] + trajectories > data_slots
        if not full and not short:
            return
        leaving = victim(segment, params, slot)
        if leaving < 0:  # only the growing trajectory itself is left; its length was checked
            return
        if not full:
            counters[EVICTED_EARLY] += 1
        evict(segment, params, leaving, False)


@kernel
def apply(segment, params, client, client_key, entries, named, priorities, lost):
    """Commit checked entries in order until the limiter holds one back.

    lost: int32[N], filled with slots whose open trajectory was evicted meanwhile. Returns (entries done,
    blocks named by them, priorities named by them, slots lost).
    """
    counters = int64s(segment, params, R_COUNTERS)
    floats = float64s(segment, params, R_FLOATS)
    blocks = int32s(segment, params, R_BLOCKS)
    slots = int64s(segment, params, R_SLOTS)
    clients = int64s(segment, params, R_CLIENTS)
    ring = int32s(segment, params, R_FREE_BLOCKS)
    mine = client * CLIENT_FIELDS
    k_block, k_priority, n_lost = 0, 0, 0
    for i in range(entries.shape[0]):
        entry = entries[i]
        slot, length, flags = np.int64(entry.slot), np.int64(entry.length), np.int64(entry.flags)
        added, given = np.int64(entry.blocks), np.int64(entry.priorities)
        if entry.sequence <= clients[mine + COMMITTED]:
            k_block += added
            k_priority += given
            continue
        at = slot * SLOT_FIELDS
        begin, end = flags & BEGIN != 0, flags & END != 0
        gone = slots[at + STATE] == EVICTED
        before = np.int64(0) if begin else slots[at + LENGTH]
        items_before = np.int64(0) if begin else slots[at + ITEMS]
        items_after = max(items_before, item_count(params, before + length, end))
        if not gone:
            if items_after > items_before and not insert_allowed(
                counters[INSERTED_ITEMS],
                counters[DELETED_ITEMS],
                counters[SAMPLED_ITEMS] + counters[RESERVED_ITEMS],
                params[P_RATIO] != 0,
                params[P_MIN_SIZE],
                floats[RATIO],
                floats[HIGH],
            ):
                return i, k_block, k_priority, n_lost
            _make_room(segment, params, slot if not begin else -1, length, 1 if begin else 0, added)
        counters[LEASED_BLOCK_COUNT] -= added
        clients[mine + LEASED_BLOCKS] -= added
        counters[INSERTED_STEPS] += length
        if gone:
            for k in range(k_block, k_block + added):
                free_block(counters, blocks, ring, params, named[k])
            counters[EVICTED_STEPS] += length
            slots[at + LENGTH] += length
            lost[n_lost] = slot
            n_lost += 1
            if end:
                unpin(segment, params, slot)
        else:
            _link(segment, params, slot, begin, before, added, named[k_block : k_block + added])
            if begin:
                counters[LEASED_SLOT_COUNT] -= 1
                clients[mine + LEASED_SLOTS] -= 1
                counters[USED_SLOTS] += 1
                counters[STORED] += 1
                counters[INSERTED] += 1
                slots[at + ORDER] = counters[INSERTED]
                slots[at + CLIENT] = client_key
                slots[at + FLAGS] = 0
                slots[at + GONE] = 0
                slots[at + CURSOR] = 0
                slots[at + PINS] = 1  # the writer's own, until it ends
                slots[at + OLDER] = counters[NEWEST]
                slots[at + NEWER] = -1
                if counters[NEWEST] >= 0:
                    slots[counters[NEWEST] * SLOT_FIELDS + NEWER] = slot
                else:
                    counters[OLDEST] = slot
                counters[NEWEST] = slot
            counters[USED_BLOCKS] += added
            counters[STORED_STEPS] += length
            slots[at + LENGTH] = before + length
            slots[at + ITEMS] = items_after
            slots[at + FLAGS] |= flags & (TERMINATED | HAS_FINAL | CONTINUED | CONTINUES)
            slots[at + SEQUENCE] = entry.sequence
            fence()
            slots[at + STATE] = CLOSED if end else OPEN
            fence()
            publish(segment, params, slot, items_before, items_after, priorities, k_priority, given)
            counters[ITEM_COUNT] += items_after - items_before
            counters[INSERTED_ITEMS] += items_after - items_before
            if end:
                slots[at + PINS] -= 1
                slots[at + WRITER] = -1
                add_to_remover(segment, params, slot)
        fence()
        clients[mine + COMMITTED] = entry.sequence
        k_block += added
        k_priority += given
    return entries.shape[0], k_block, k_priority, n_lost


@kernel
def _link(segment, params, slot, begin, before, added, named):
    """Append leased blocks to the slot's chain; they belong to the slot from now on."""
    blocks = int32s(segment, params, R_BLOCKS)
    slots = int64s(segment, params, R_SLOTS)
    at = slot * SLOT_FIELDS
    steps = params[P_BLOCK_STEPS]
    ordinal = (before + steps - 1) // steps
    previous = np.int64(-1) if begin else slots[at + LAST]
    for k in range(added):
        block = np.int64(named[k])
        record = block * BLOCK_FIELDS
        blocks[record + SLOT] = slot
        blocks[record + ORDINAL] = ordinal + k
        blocks[record + NEXT] = -1
        blocks[record + PREVIOUS] = previous
        blocks[record + OWNER] = -1
        if previous >= 0:
            fence()
            blocks[previous * BLOCK_FIELDS + NEXT] = block
        else:
            slots[at + FIRST] = block
        previous = block
    if added > 0:
        slots[at + LAST] = previous


@kernel
def close_open(segment, params, slot):
    """End the open trajectory of a vanished writer as truncated where it stands."""
    counters = int64s(segment, params, R_COUNTERS)
    slots = int64s(segment, params, R_SLOTS)
    at = slot * SLOT_FIELDS
    before = slots[at + ITEMS]
    after = max(before, item_count(params, slots[at + LENGTH], True))
    slots[at + ITEMS] = after
    slots[at + STATE] = CLOSED
    publish(segment, params, slot, before, after, np.empty(0), 0, 0)
    counters[ITEM_COUNT] += after - before
    counters[INSERTED_ITEMS] += after - before
    slots[at + PINS] -= 1
    slots[at + WRITER] = -1
    add_to_remover(segment, params, slot)


@kernel
def room_for_lease(segment, params, wanted, slots):
    """Evict until that many blocks and slots are free, for a commit that follows; whether they are."""
    counters = int64s(segment, params, R_COUNTERS)
    while counters[FREE_BLOCKS] < wanted or counters[FREE_SLOTS] < slots:
        leaving = victim(segment, params, -1)
        if leaving < 0:
            return False
        counters[EVICTED_EARLY] += 1
        evict(segment, params, leaving, False)
    return True

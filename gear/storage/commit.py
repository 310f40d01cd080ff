"""Commit: check a batch of entries, make room, publish. One compiled call for a whole message.

`check` looks at every entry before `apply` changes anything. A commit is written so that a crash at any
instruction leaves the whole trajectory or nothing: blocks and record first, a fence, the state word last.
Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import fence, kernel, order
from gear.kernels.program import FLAG, FLOATS, SHORTS
from gear.selection.prioritized import LARGEST
from gear.storage import fields as f
from gear.storage.directory import float64s, int32s, int64s
from gear.storage.evict import evict, unpin
from gear.storage.items import item_count
from gear.storage.journal import begin as enter_change
from gear.storage.journal import chained, stamp
from gear.storage.journal import end as end_change
from gear.storage.passing import insert_passes
from gear.storage.programs import COMMIT, ENTRIES
from gear.storage.publish import publish
from gear.storage.remover import add_to_remover
from gear.storage.room import make_room
from gear.storage.seams import join_pieces
from gear.storage.versions import expire_if_stale

ALL_FLAGS = f.TERMINATED | f.HAS_FINAL | f.CONTINUED | f.CONTINUES | f.END | f.BEGIN

# What `check` finds wrong with an entry.
(
    FINE, BAD_SEQUENCE, BAD_SLOT, BAD_BLOCK, BAD_LENGTH, BAD_FLAGS, BAD_COUNT, BAD_PRIORITY, TOO_LONG,
) = range(9)  # fmt: skip


@COMMIT.kernel(by_rows=FLAG, entries=ENTRIES, named=SHORTS, priorities=FLOATS)
def check(segment, params, client, by_rows, entries, named, priorities):
    """Check every entry of one client's message; nothing is changed.

    entries: COMMIT_ENTRY[N]; named: int32[M] block numbers; priorities: float64[P]; by_rows: whether the
    table publishes row by row. Returns (kind of fault, index of the entry, index of the priority).
    """
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    clients = int64s(segment, params, f.R_CLIENTS)
    steps = params[f.P_BLOCK_STEPS]
    n = entries.shape[0]
    lengths = np.empty(n, np.int64)  # of each entry's slot after it
    closed = np.zeros(n, np.bool_)
    fault, where, k_block, k_priority = FINE, 0, 0, 0
    last = clients[client * f.CLIENT_FIELDS + f.COMMITTED]
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
        if slot < 0 or slot >= params[f.P_SLOTS] or slots[slot * f.SLOT_FIELDS + f.WRITER] != client:
            fault = BAD_SLOT
            break
        if flags & ~ALL_FLAGS or (not by_rows and flags & (f.BEGIN | f.END) != f.BEGIN | f.END):
            fault = BAD_FLAGS
            break
        state, before = slots[slot * f.SLOT_FIELDS + f.STATE], slots[slot * f.SLOT_FIELDS + f.LENGTH]
        ended = False
        for j in range(i):  # the same slot earlier in this message
            if entries[j].slot == slot and lengths[j] >= 0:
                state, before, ended = f.OPEN, lengths[j], closed[j]
        begin = flags & f.BEGIN != 0
        if ended or (begin and state != f.LEASED) or (not begin and state != f.OPEN and state != f.EVICTED):
            fault = BAD_SLOT
            break
        if begin:
            before = np.int64(0)
        if (
            length < 0
            or (length == 0 and (begin or flags & f.END == 0))
            or (flags & f.HAS_FINAL and flags & f.END == 0)
        ):
            fault = BAD_LENGTH
            break
        after = before + length
        if after > params[f.P_MAX_LENGTH]:
            fault = TOO_LONG
            break
        final = 1 if flags & f.HAS_FINAL else 0
        if entry.blocks != (after + final + steps - 1) // steps - (before + steps - 1) // steps:
            fault = BAD_COUNT
            break
        for k in range(k_block, k_block + entry.blocks):
            if named[k] < 0 or named[k] >= params[f.P_BLOCKS] or blocks[named[k] * f.BLOCK_FIELDS + f.OWNER] != client:
                fault = BAD_BLOCK
                break
            blocks[named[k] * f.BLOCK_FIELDS + f.OWNER] = -2 - client  # so that naming it twice is found
        if fault != FINE:
            break
        if entry.priorities > 1:
            ends = flags & f.END != 0
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
        lengths[i], closed[i] = after, flags & f.END != 0
        k_block += entry.blocks
        k_priority += entry.priorities
    if fault == FINE and (k_block != named.shape[0] or k_priority != priorities.shape[0]):
        fault = BAD_COUNT
    at = 0
    for i in range(where + 1 if n else 0):  # resent entries name blocks that are not ours to unmark
        if entries[i].blocks > 0:
            stop = min(at + entries[i].blocks, named.shape[0])
            for k in range(at, stop):
                if 0 <= named[k] < params[f.P_BLOCKS] and blocks[named[k] * f.BLOCK_FIELDS + f.OWNER] == -2 - client:
                    blocks[named[k] * f.BLOCK_FIELDS + f.OWNER] = client
            at = stop
    return fault, where, k_priority


@COMMIT.kernel(entries=ENTRIES, named=SHORTS, priorities=FLOATS, lost=SHORTS)
def apply(segment, params, client, client_key, entries, named, priorities, lost):
    """Commit checked entries in order until the limiter holds one back.

    lost: int32[N], filled with slots whose open trajectory was evicted meanwhile. Returns (entries done,
    blocks named by them, priorities named by them, slots lost).
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    clients = int64s(segment, params, f.R_CLIENTS)
    mine, steps = client * f.CLIENT_FIELDS, params[f.P_BLOCK_STEPS]
    k_block, k_priority, n_lost = 0, 0, 0
    for i in range(entries.shape[0]):
        entry = entries[i]
        slot, length, flags = np.int64(entry.slot), np.int64(entry.length), np.int64(entry.flags)
        added, given = np.int64(entry.blocks), np.int64(entry.priorities)
        if entry.sequence <= clients[mine + f.COMMITTED]:
            k_block += added
            k_priority += given
            continue
        at = slot * f.SLOT_FIELDS
        begin, end = flags & f.BEGIN != 0, flags & f.END != 0
        gone = slots[at + f.STATE] == f.EVICTED
        before = np.int64(0) if begin else slots[at + f.LENGTH]
        items_before = np.int64(0) if begin else slots[at + f.ITEMS]
        items_after = max(items_before, item_count(params, before + length, end))
        if not gone:
            allowed = items_after == items_before or insert_passes(segment, params)
            trajectories = 1 if begin else 0
            if not allowed or not make_room(segment, params, -1 if begin else slot, length, trajectories, added):
                return i, k_block, k_priority, n_lost
        enter_change(segment, params, slot, (before + steps - 1) // steps, f.GRANTED)
        counters[f.LEASED_BLOCK_COUNT] -= added
        clients[mine + f.LEASED_BLOCKS] -= added
        counters[f.INSERTED_STEPS] += length
        if gone:
            link(segment, params, slot, False, before, added, named[k_block : k_block + added])
            slots[at + f.CURSOR] += added
            counters[f.HELD_BLOCKS] += added
            counters[f.EVICTED_STEPS] += length
            slots[at + f.LENGTH] += length
            stamp(segment, params, slot)
            lost[n_lost] = slot
            n_lost += 1
            clients[mine + f.COMMITTED] = entry.sequence
            end_change(segment, params)
            if end:
                slots[at + f.WRITER] = -1
                unpin(segment, params, slot)
        else:
            link(segment, params, slot, begin, before, added, named[k_block : k_block + added])
            if begin:
                counters[f.LEASED_SLOT_COUNT] -= 1
                clients[mine + f.LEASED_SLOTS] -= 1
                enlist(segment, params, slot)
                slots[at + f.CLIENT] = client_key
                join_pieces(segment, params, slot, entry.follows, entry.before if flags & f.CONTINUES else 0)
            counters[f.USED_BLOCKS] += added
            counters[f.STORED_STEPS] += length
            slots[at + f.LENGTH] = before + length
            if end and not begin:  # who reads meanwhile and sees how it ended also sees how long it is
                fence()
            slots[at + f.ITEMS] = items_after
            slots[at + f.FLAGS] |= flags & (f.TERMINATED | f.HAS_FINAL | f.CONTINUED | f.CONTINUES)
            slots[at + f.SEQUENCE] = entry.sequence
            stamp(segment, params, slot)
            fence()
            slots[at + f.STATE] = f.CLOSED if end else f.OPEN
            fence()
            publish(segment, params, slot, items_before, items_after, priorities, k_priority, given)
            counters[f.ITEM_COUNT] += items_after - items_before
            counters[f.INSERTED_ITEMS] += items_after - items_before
            if params[f.P_SPREAD] != 0:
                counters[f.INSERT_CREDIT] -= items_after - items_before
            clients[mine + f.COMMITTED] = entry.sequence
            end_change(segment, params)
            if end:
                let_go(segment, params, slot)
                expire_if_stale(segment, params, slot)
        k_block += added
        k_priority += given
    return entries.shape[0], k_block, k_priority, n_lost


@kernel
def enlist(segment, params, slot):
    """A slot whose first block is linked becomes the newest trajectory; its rows are published by its state."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    counters[f.USED_SLOTS] += 1
    counters[f.STORED] += 1
    counters[f.INSERTED] += 1
    slots[at + f.ORDER] = counters[f.INSERTED]
    slots[at + f.FLAGS] = 0
    slots[at + f.GONE] = 0
    slots[at + f.CURSOR], slots[at + f.CURSOR_BLOCK] = 0, slots[at + f.FIRST]
    slots[at + f.PINS] = 1  # the writer's own, until it ends
    slots[at + f.OLDER] = counters[f.NEWEST]
    slots[at + f.NEWER] = -1
    if counters[f.NEWEST] >= 0:
        slots[counters[f.NEWEST] * f.SLOT_FIELDS + f.NEWER] = slot
    else:
        counters[f.OLDEST] = slot
    counters[f.NEWEST] = slot
    version = np.int64(0)
    if params[f.P_VERSIONED] != 0:
        versions = int64s(segment, params, f.R_VERSIONS)
        if versions[slot] < 0:  # the writer did not say
            versions[slot] = counters[f.VERSION]
        version = versions[slot]
    if params[f.P_LATE] != 0:
        int64s(segment, params, f.R_LATE)[slot * f.LATE_FIELDS + f.LATE_BITS] = 0
    keys = float64s(segment, params, f.R_SLOT_KEYS)
    if keys.shape[0] > 0:
        order = slots[at + f.ORDER]
        stamps = int64s(segment, params, f.R_SLOT_STAMPS)
        keys[slot], stamps[slot] = 0.0, order
        if params[f.P_SAMPLER] == f.LIFO:
            keys[slot] = float(order)
        elif params[f.P_SAMPLER] == f.FRESH:
            keys[slot] = float(version)


@kernel
def link(segment, params, slot, begin, before, added, named):
    """Append leased blocks to the slot's chain; they belong to the slot from now on."""
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    steps = params[f.P_BLOCK_STEPS]
    ordinal = (before + steps - 1) // steps
    previous = np.int64(-1) if begin else slots[at + f.LAST]
    if begin:
        slots[at + f.CHAIN] = 0
    for k in range(added):
        block = np.int64(named[k])
        record = block * f.BLOCK_FIELDS
        blocks[record + f.SLOT] = slot
        blocks[record + f.ORDINAL] = ordinal + k
        blocks[record + f.NEXT] = -1
        blocks[record + f.PREVIOUS] = previous
        slots[at + f.CHAIN] += chained(block, ordinal + k, blocks[record + f.GENERATION])
        blocks[record + f.OWNER] = -1
        if previous >= 0:
            order()  # who follows the chain of an open trajectory finds the record whole
            blocks[previous * f.BLOCK_FIELDS + f.NEXT] = block
        else:
            slots[at + f.FIRST] = block
        previous = block
    if added > 0:
        slots[at + f.LAST] = previous


@COMMIT.kernel()
def close_open(segment, params, slot):
    """End the open trajectory of a vanished writer as truncated where it stands."""
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    before = slots[at + f.ITEMS]
    after = max(before, item_count(params, slots[at + f.LENGTH], True))
    enter_change(segment, params, slot, params[f.P_BLOCKS], f.GRANTED)
    slots[at + f.ITEMS] = after
    stamp(segment, params, slot)
    slots[at + f.STATE] = f.CLOSED
    publish(segment, params, slot, before, after, np.empty(0), 0, 0)
    counters[f.ITEM_COUNT] += after - before
    counters[f.INSERTED_ITEMS] += after - before
    end_change(segment, params)
    let_go(segment, params, slot)


@kernel
def let_go(segment, params, slot):
    """The writer of a slot that was just closed lets go; a trajectory used up while it was open leaves now."""
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    slots[at + f.PINS] -= 1
    slots[at + f.WRITER] = -1
    add_to_remover(segment, params, slot)
    if slots[at + f.ITEMS] > 0 and slots[at + f.GONE] == slots[at + f.ITEMS]:
        evict(segment, params, slot, True)

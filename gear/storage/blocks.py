"""The block allocator: leases out of a ring of free blocks, and their way back.

Blocks freed longest ago go out first, their generation is raised each time, and one that has used up its
generations is retired for ever, so that no id is issued twice. Slots have a ring of their own. Compiled;
single writer.
"""

from __future__ import annotations

from gear.kernels.compile import kernel
from gear.storage.directory import (
    FREE_BLOCKS,
    FREE_HEAD,
    FREE_SLOTS,
    LEASED_BLOCK_COUNT,
    LEASED_SLOT_COUNT,
    P_BLOCKS,
    P_GENERATIONS,
    P_SLOTS,
    R_BLOCKS,
    R_CLIENTS,
    R_COUNTERS,
    R_FREE_BLOCKS,
    R_FREE_SLOTS,
    R_SLOTS,
    RETIRED_BLOCKS,
    SLOT_HEAD,
    int32s,
    int64s,
)
from gear.storage.layout import (
    BLOCK_FIELDS,
    CLIENT_FIELDS,
    FREE,
    GENERATION,
    LEASED,
    LEASED_BLOCKS,
    LEASED_SLOTS,
    NEXT,
    ORDINAL,
    OWNER,
    PREVIOUS,
    SLOT,
    SLOT_FIELDS,
    STATE,
    WRITER,
)


@kernel
def lease(segment, params, client, out_blocks, out_slots):
    """Fill the arrays with leased blocks and slots for `client`; the caller checked that they are free."""
    counters = int64s(segment, params, R_COUNTERS)
    blocks = int32s(segment, params, R_BLOCKS)
    slots = int64s(segment, params, R_SLOTS)
    clients = int64s(segment, params, R_CLIENTS)
    ring = int32s(segment, params, R_FREE_BLOCKS)
    slot_ring = int32s(segment, params, R_FREE_SLOTS)
    size, slot_size = params[P_BLOCKS], params[P_SLOTS]
    for k in range(out_blocks.shape[0]):
        head = counters[FREE_HEAD]
        block = ring[head]
        counters[FREE_HEAD] = head + 1 if head + 1 < size else 0
        counters[FREE_BLOCKS] -= 1
        at = block * BLOCK_FIELDS
        blocks[at + GENERATION] += 1
        blocks[at + SLOT] = -1
        blocks[at + NEXT] = -1
        blocks[at + PREVIOUS] = -1
        blocks[at + OWNER] = client
        out_blocks[k] = block
    for k in range(out_slots.shape[0]):
        head = counters[SLOT_HEAD]
        slot = slot_ring[head]
        counters[SLOT_HEAD] = head + 1 if head + 1 < slot_size else 0
        counters[FREE_SLOTS] -= 1
        slots[slot * SLOT_FIELDS + STATE] = LEASED
        slots[slot * SLOT_FIELDS + WRITER] = client
        out_slots[k] = slot
    counters[LEASED_BLOCK_COUNT] += out_blocks.shape[0]
    counters[LEASED_SLOT_COUNT] += out_slots.shape[0]
    clients[client * CLIENT_FIELDS + LEASED_BLOCKS] += out_blocks.shape[0]
    clients[client * CLIENT_FIELDS + LEASED_SLOTS] += out_slots.shape[0]


@kernel
def free_block(counters, blocks, ring, params, block):
    """Return a block that nobody can touch any more to the ring."""
    at = block * BLOCK_FIELDS
    blocks[at + SLOT] = -1
    blocks[at + ORDINAL] = -1
    blocks[at + OWNER] = -1
    if blocks[at + GENERATION] >= params[P_GENERATIONS]:
        counters[RETIRED_BLOCKS] += 1
        return
    size = params[P_BLOCKS]
    tail = counters[FREE_HEAD] + counters[FREE_BLOCKS]
    ring[tail - size if tail >= size else tail] = block
    counters[FREE_BLOCKS] += 1


@kernel
def free_slot(counters, slots, ring, params, slot):
    """Return a slot to the ring."""
    slots[slot * SLOT_FIELDS + STATE] = FREE
    slots[slot * SLOT_FIELDS + WRITER] = -1
    size = params[P_SLOTS]
    tail = counters[SLOT_HEAD] + counters[FREE_SLOTS]
    ring[tail - size if tail >= size else tail] = slot
    counters[FREE_SLOTS] += 1


@kernel
def end_leases(segment, params, client, blocks_back, slots_back):
    """Free leases of `client`; returns how many entries were not its own (those are left alone)."""
    counters = int64s(segment, params, R_COUNTERS)
    blocks = int32s(segment, params, R_BLOCKS)
    slots = int64s(segment, params, R_SLOTS)
    clients = int64s(segment, params, R_CLIENTS)
    ring = int32s(segment, params, R_FREE_BLOCKS)
    slot_ring = int32s(segment, params, R_FREE_SLOTS)
    strange = 0
    for k in range(blocks_back.shape[0]):
        block = blocks_back[k]
        if block < 0 or block >= params[P_BLOCKS] or blocks[block * BLOCK_FIELDS + OWNER] != client:
            strange += 1
            continue
        free_block(counters, blocks, ring, params, block)
        counters[LEASED_BLOCK_COUNT] -= 1
        clients[client * CLIENT_FIELDS + LEASED_BLOCKS] -= 1
    for k in range(slots_back.shape[0]):
        slot = slots_back[k]
        at = slot * SLOT_FIELDS
        if slot < 0 or slot >= params[P_SLOTS] or slots[at + STATE] != LEASED or slots[at + WRITER] != client:
            strange += 1
            continue
        free_slot(counters, slots, slot_ring, params, slot)
        counters[LEASED_SLOT_COUNT] -= 1
        clients[client * CLIENT_FIELDS + LEASED_SLOTS] -= 1
    return strange

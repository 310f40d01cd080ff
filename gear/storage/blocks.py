"""The block allocator: leases out of a ring of free blocks, and their way back.

Blocks freed longest ago go out first, their generation is raised each time, and one that has used up its
generations is retired for ever, so that no id is issued twice. Slots have a ring of their own. Compiled;
single writer.
"""

from __future__ import annotations

from gear.kernels.compile import kernel
from gear.kernels.program import SHORTS
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.programs import COMMIT


@COMMIT.kernel(out_blocks=SHORTS, out_slots=SHORTS)
def lease(segment, params, client, out_blocks, out_slots, request):
    """Fill the arrays with leased blocks and slots for `client`; the caller checked that they are free.

    request: number of its request that they are for, see `fields.GRANTED`.
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    clients = int64s(segment, params, f.R_CLIENTS)
    ring = int32s(segment, params, f.R_FREE_BLOCKS)
    slot_ring = int32s(segment, params, f.R_FREE_SLOTS)
    size, slot_size = params[f.P_BLOCKS], params[f.P_SLOTS]
    for k in range(out_blocks.shape[0]):
        head = counters[f.FREE_HEAD]
        block = ring[head]
        counters[f.FREE_HEAD] = head + 1 if head + 1 < size else 0
        counters[f.FREE_BLOCKS] -= 1
        at = block * f.BLOCK_FIELDS
        blocks[at + f.GENERATION] += 1
        blocks[at + f.SLOT] = -1
        blocks[at + f.ORDINAL] = request
        blocks[at + f.NEXT] = -1
        blocks[at + f.PREVIOUS] = -1
        blocks[at + f.OWNER] = client
        out_blocks[k] = block
    for k in range(out_slots.shape[0]):
        head = counters[f.SLOT_HEAD]
        slot = slot_ring[head]
        counters[f.SLOT_HEAD] = head + 1 if head + 1 < slot_size else 0
        counters[f.FREE_SLOTS] -= 1
        slots[slot * f.SLOT_FIELDS + f.STATE] = f.LEASED
        slots[slot * f.SLOT_FIELDS + f.WRITER] = client
        slots[slot * f.SLOT_FIELDS + f.SEQUENCE] = request
        out_slots[k] = slot
    counters[f.LEASED_BLOCK_COUNT] += out_blocks.shape[0]
    counters[f.LEASED_SLOT_COUNT] += out_slots.shape[0]
    clients[client * f.CLIENT_FIELDS + f.LEASED_BLOCKS] += out_blocks.shape[0]
    clients[client * f.CLIENT_FIELDS + f.LEASED_SLOTS] += out_slots.shape[0]


@kernel
def free_block(counters, blocks, ring, params, block):
    """Return a block that nobody can touch any more to the ring."""
    at = block * f.BLOCK_FIELDS
    blocks[at + f.SLOT] = -1
    blocks[at + f.ORDINAL] = -1
    blocks[at + f.OWNER] = -1
    if blocks[at + f.GENERATION] >= params[f.P_GENERATIONS]:
        counters[f.RETIRED_BLOCKS] += 1
        return
    size = params[f.P_BLOCKS]
    tail = counters[f.FREE_HEAD] + counters[f.FREE_BLOCKS]
    ring[tail - size if tail >= size else tail] = block
    counters[f.FREE_BLOCKS] += 1


@kernel
def free_slot(counters, slots, ring, params, slot):
    """Return a slot to the ring."""
    slots[slot * f.SLOT_FIELDS + f.STATE] = f.FREE
    slots[slot * f.SLOT_FIELDS + f.WRITER] = -1
    size = params[f.P_SLOTS]
    tail = counters[f.SLOT_HEAD] + counters[f.FREE_SLOTS]
    ring[tail - size if tail >= size else tail] = slot
    counters[f.FREE_SLOTS] += 1


@COMMIT.kernel(blocks_back=SHORTS, slots_back=SHORTS)
def end_leases(segment, params, client, blocks_back, slots_back):
    """Free leases of `client`; returns how many entries were not its own (those are left alone)."""
    counters = int64s(segment, params, f.R_COUNTERS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    slots = int64s(segment, params, f.R_SLOTS)
    clients = int64s(segment, params, f.R_CLIENTS)
    ring = int32s(segment, params, f.R_FREE_BLOCKS)
    slot_ring = int32s(segment, params, f.R_FREE_SLOTS)
    strange = 0
    for k in range(blocks_back.shape[0]):
        block = blocks_back[k]
        if block < 0 or block >= params[f.P_BLOCKS] or blocks[block * f.BLOCK_FIELDS + f.OWNER] != client:
            strange += 1
            continue
        free_block(counters, blocks, ring, params, block)
        counters[f.LEASED_BLOCK_COUNT] -= 1
        clients[client * f.CLIENT_FIELDS + f.LEASED_BLOCKS] -= 1
    for k in range(slots_back.shape[0]):
        slot = slots_back[k]
        at = slot * f.SLOT_FIELDS
        if slot < 0 or slot >= params[f.P_SLOTS] or slots[at + f.STATE] != f.LEASED or slots[at + f.WRITER] != client:
            strange += 1
            continue
        free_slot(counters, slots, slot_ring, params, slot)
        counters[f.LEASED_SLOT_COUNT] -= 1
        clients[client * f.CLIENT_FIELDS + f.LEASED_SLOTS] -= 1
    return strange

"""What makes a change of the directory whole or nothing, and what tells a damaged entry.

A commit first writes down what stood there before, then a mark, then changes, then takes the mark away; the
acknowledgement is sent after that. Whoever finds the mark after a crash puts everything back, so that the client, who
has no acknowledgement, sends it again and it is done once. Each entry carries a checksum over its record and one over
the numbers and generations of its blocks. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel, order
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s

_FACTOR = np.int64(-7046029254386353131)  # 0x9E3779B97F4A7C15, Knuth's multiplicative hashing


@kernel
def mix(value, more):
    """A checksum that goes on with another int64."""
    value = (np.int64(value) ^ np.int64(more)) * _FACTOR
    return value ^ (value >> 29)


@kernel
def chained(block, ordinal, generation):
    """What a block adds to the checksum of its chain."""
    return mix(mix(mix(np.int64(1), np.int64(block)), np.int64(ordinal)), np.int64(generation))


@kernel
def checksum(slots, slot):
    """Of a stored slot's record, as it is."""
    at = slot * f.SLOT_FIELDS
    value = mix(np.int64(slot), slots[at + f.FIRST])
    value = mix(value, slots[at + f.LAST])
    value = mix(value, slots[at + f.LENGTH])
    value = mix(value, slots[at + f.FLAGS] & ~f.UNCHECKED)
    value = mix(value, slots[at + f.ITEMS])
    value = mix(value, slots[at + f.SEQUENCE])
    value = mix(value, slots[at + f.ORDER])
    value = mix(value, slots[at + f.CLIENT])
    value = mix(value, slots[at + f.BASE])
    return mix(value, slots[at + f.CHAIN])


@kernel
def stamp(segment, params, slot):
    """Seal a slot's record with its checksum."""
    slots = int64s(segment, params, f.R_SLOTS)
    slots[slot * f.SLOT_FIELDS + f.CHECK] = checksum(slots, slot)


@kernel
def begin(segment, params, slot, ordinal, request):
    """A slot is about to change, blocks from place `ordinal` of its chain on are new.

    request: what the leases of those are marked with if all is put back.
    """
    journal, slots = int64s(segment, params, f.R_JOURNAL), int64s(segment, params, f.R_SLOTS)
    counters = int64s(segment, params, f.R_COUNTERS)
    at = slot * f.SLOT_FIELDS
    journal[f.J_SLOT] = slot
    journal[f.J_WRITER] = slots[at + f.WRITER]
    journal[f.J_STATE] = slots[at + f.STATE]
    journal[f.J_LENGTH] = slots[at + f.LENGTH]
    journal[f.J_ITEMS] = slots[at + f.ITEMS]
    journal[f.J_FLAGS] = slots[at + f.FLAGS]
    journal[f.J_SEQUENCE] = slots[at + f.SEQUENCE]
    journal[f.J_CURSOR] = slots[at + f.CURSOR]
    journal[f.J_LAST] = slots[at + f.LAST]
    journal[f.J_CHAIN] = slots[at + f.CHAIN]
    journal[f.J_CHECK] = slots[at + f.CHECK]
    journal[f.J_ORDINAL_FROM] = ordinal
    journal[f.J_REQUEST] = request
    journal[f.J_INSERTED] = counters[f.INSERTED]
    journal[f.J_INSERTED_STEPS] = counters[f.INSERTED_STEPS]
    journal[f.J_INSERTED_ITEMS] = counters[f.INSERTED_ITEMS]
    journal[f.J_INSERT_CREDIT] = counters[f.INSERT_CREDIT]
    journal[f.J_EVICTED_STEPS] = counters[f.EVICTED_STEPS]
    if slots[at + f.WRITER] >= 0:
        clients = int64s(segment, params, f.R_CLIENTS)
        journal[f.J_COMMITTED] = clients[slots[at + f.WRITER] * f.CLIENT_FIELDS + f.COMMITTED]
    order()
    journal[f.J_MARK] = slot + 1
    order()


@kernel
def end(segment, params):
    """The change is whole."""
    order()
    int64s(segment, params, f.R_JOURNAL)[f.J_MARK] = 0
    order()


@kernel
def undo(segment, params):
    """Put back what was under way when the shard died; whether anything was."""
    journal, slots = int64s(segment, params, f.R_JOURNAL), int64s(segment, params, f.R_SLOTS)
    blocks, counters = int32s(segment, params, f.R_BLOCKS), int64s(segment, params, f.R_COUNTERS)
    slot = journal[f.J_MARK] - 1
    if slot < 0 or slot >= params[f.P_SLOTS] or journal[f.J_SLOT] != slot:
        journal[f.J_MARK] = 0
        return False
    for block in range(params[f.P_BLOCKS]):
        record = block * f.BLOCK_FIELDS
        if blocks[record + f.SLOT] == slot and blocks[record + f.ORDINAL] >= journal[f.J_ORDINAL_FROM]:
            blocks[record + f.SLOT], blocks[record + f.ORDINAL] = -1, journal[f.J_REQUEST]
            blocks[record + f.NEXT] = blocks[record + f.PREVIOUS] = -1
            blocks[record + f.OWNER] = journal[f.J_WRITER] if journal[f.J_WRITER] >= 0 else -1
    at = slot * f.SLOT_FIELDS
    last = journal[f.J_LAST]
    if journal[f.J_STATE] != f.LEASED and 0 <= last < params[f.P_BLOCKS]:
        blocks[last * f.BLOCK_FIELDS + f.NEXT] = -1
    slots[at + f.WRITER] = journal[f.J_WRITER]
    slots[at + f.STATE] = journal[f.J_STATE]
    slots[at + f.LENGTH] = journal[f.J_LENGTH]
    slots[at + f.ITEMS] = journal[f.J_ITEMS]
    slots[at + f.FLAGS] = journal[f.J_FLAGS]
    slots[at + f.SEQUENCE] = journal[f.J_SEQUENCE]
    slots[at + f.CURSOR] = journal[f.J_CURSOR]
    slots[at + f.LAST] = last
    slots[at + f.CHAIN] = journal[f.J_CHAIN]
    slots[at + f.CHECK] = journal[f.J_CHECK]
    counters[f.INSERTED] = journal[f.J_INSERTED]
    counters[f.INSERTED_STEPS] = journal[f.J_INSERTED_STEPS]
    counters[f.INSERTED_ITEMS] = journal[f.J_INSERTED_ITEMS]
    counters[f.INSERT_CREDIT] = journal[f.J_INSERT_CREDIT]
    counters[f.EVICTED_STEPS] = journal[f.J_EVICTED_STEPS]
    if 0 <= journal[f.J_WRITER] < f.MAX_CLIENTS:
        clients = int64s(segment, params, f.R_CLIENTS)
        clients[journal[f.J_WRITER] * f.CLIENT_FIELDS + f.COMMITTED] = journal[f.J_COMMITTED]
    order()
    journal[f.J_MARK] = 0
    return True

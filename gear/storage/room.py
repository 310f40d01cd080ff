"""Room: what is evicted so that a commit, or a lease for one, fits.

A queue or stack evicts nothing that was not delivered: its commits wait for room instead. Compiled; single writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.storage import fields as f
from gear.storage.directory import int64s
from gear.storage.evict import drive_out
from gear.storage.programs import COMMIT
from gear.storage.remover import idle, idle_victim, victim


@kernel
def make_room(segment, params, slot, steps, trajectories, blocks):
    """Evict until `steps` more steps, `trajectories` more trajectories and `blocks` more blocks fit; whether they do.

    slot: the trajectory that grows, -1 for a new one.
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    kind, capacity = params[f.P_CAPACITY_KIND], params[f.P_CAPACITY]
    data_blocks = params[f.P_BLOCKS] - params[f.P_RESERVE_BLOCKS]
    data_slots = params[f.P_SLOTS] - params[f.P_RESERVE_SLOTS]
    while True:
        full = (
            (kind == f.STEPS and counters[f.STORED_STEPS] + steps > capacity)
            or (kind == f.TRAJECTORIES and counters[f.STORED] + trajectories > capacity)
            or (kind == f.BYTES and counters[f.USED_BLOCKS] + blocks > capacity)
        )
        short = counters[f.USED_BLOCKS] + blocks > data_blocks or counters[f.USED_SLOTS] + trajectories > data_slots
        if not full and not short:
            return True
        leaving = _delivered(segment, params, slot) if params[f.P_MOST] > 0 else victim(segment, params, slot)
        if leaving < 0:
            # Only the growing trajectory itself is left, whose length was checked; or a queue is full, or what is left
            # are open trajectories of the table.
            return params[f.P_MOST] == 0 and counters[f.OPENED] == 0
        if not full:
            counters[f.EVICTED_EARLY] += 1
        drive_out(segment, params, leaving)


@kernel
def _delivered(segment, params, keep):
    """The oldest slot of a queue or stack, but `keep`, that holds nothing undelivered; -1 if there is none.

    It is open, waiting for its writer: a closed one leaves with its last item. One without an item yet stays while
    deliveries of others can still make room.
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    slots = int64s(segment, params, f.R_SLOTS)
    slot = counters[f.OLDEST]
    while slot >= 0:
        at = slot * f.SLOT_FIELDS
        begun = slots[at + f.ITEMS] > 0 or counters[f.ITEM_COUNT] == 0
        kept = slot == keep or slots[at + f.WRITER] == f.TABLE
        if not kept and begun and slots[at + f.GONE] == slots[at + f.ITEMS]:
            return slot
        slot = slots[at + f.NEWER]
    return np.int64(-1)


@COMMIT.kernel()
def room_for_lease(segment, params, wanted, slots):
    """Evict until that many blocks and slots are free, for a commit that follows; whether they are.

    Only trajectories that nobody reads or writes go, and only if that is enough: the others would leave the
    table without giving a block.
    """
    counters = int64s(segment, params, f.R_COUNTERS)
    if not _can_free(segment, params, wanted - counters[f.FREE_BLOCKS], slots - counters[f.FREE_SLOTS]):
        return False
    records = int64s(segment, params, f.R_SLOTS)
    while counters[f.FREE_BLOCKS] < wanted or counters[f.FREE_SLOTS] < slots:
        leaving = victim(segment, params, -1)
        if leaving < 0 or not idle(records, leaving):
            leaving = idle_victim(segment, params)
        if leaving < 0:  # blocks that had used up their generations did not come back
            return False
        counters[f.EVICTED_EARLY] += 1
        drive_out(segment, params, leaving)
    return True


@kernel
def _can_free(segment, params, blocks, slots):
    """Whether evicting idle slots frees that many blocks and slots."""
    records = int64s(segment, params, f.R_SLOTS)
    steps = params[f.P_BLOCK_STEPS]
    slot = int64s(segment, params, f.R_COUNTERS)[f.OLDEST]
    if params[f.P_MOST] > 0:  # what is idle was not delivered
        slot = -1
    while (blocks > 0 or slots > 0) and slot >= 0:
        at = slot * f.SLOT_FIELDS
        if idle(records, slot):
            final = 1 if records[at + f.FLAGS] & f.HAS_FINAL else 0
            blocks -= (records[at + f.LENGTH] + final + steps - 1) // steps
            slots -= 1
        slot = records[at + f.NEWER]
    return blocks <= 0 and slots <= 0

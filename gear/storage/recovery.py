"""Taking up the segment of a shard that died: what was under way is put back, entries are checked, the rest is made
anew.

Kept as they stand in the segment: rows, records, versions, keys, acknowledgements, uses that were delivered,
priorities, sequence numbers, counts of the limiter and of draws. Made anew: free rings, chains, samplers,
removers, lines, totals. Gone with the shard: pins, claims, credit that was reserved. A damaged entry is left out with
its blocks, and counted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gear.schema import MinSize
from gear.storage import fields as f
from gear.storage import format, order, rebuild
from gear.storage.evict import evict
from gear.storage.journal import undo
from gear.storage.versions import expire_if_stale

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.table import StoredTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """What a recovery found of a table: trajectories, steps, damaged entries left out, and what readers may hold.

    haunted : slots that some client of before may still be reading, int64[N].
    """

    trajectories: int
    steps: int
    damaged: int
    haunted: npt.NDArray[np.int64]


def recover(stored: StoredTable) -> Found:
    """Take up a segment whose header was found to be right; nobody else writes to it."""
    segment, params, layout = stored.segment, stored.params, stored.layout
    format.declare(segment, layout)
    undo(segment, params)
    slots, blocks = layout.view(segment, "slots"), layout.view(segment, "blocks")
    counters = stored.counters
    taken, chains = np.zeros(layout.blocks, np.bool_), np.zeros(layout.slots, np.int64)
    damaged = int(rebuild.survey(segment, params, taken, chains))
    bad = np.flatnonzero(chains < 0)
    if damaged:
        _quarantine(stored, blocks, slots, bad, taken)
    state, writer = slots[:, f.STATE], slots[:, f.WRITER]
    _attribute(stored, blocks, slots, chains, taken)
    owned = ((state == f.OPEN) | (state == f.EVICTED)) & (writer != -1)
    pinned = np.maximum(slots[:, f.PINS] - owned, 0) * ((state == f.OPEN) | (state == f.CLOSED) | (state == f.EVICTED))
    _free_unread(slots, chains, taken, (state == f.EVICTED) & ~owned & (pinned == 0))
    haunted = np.flatnonzero(pinned)
    slots[:, f.PINS] = owned
    slots[haunted, f.PINS] += 1
    slots[:, f.PINS] *= (state == f.OPEN) | (state == f.CLOSED) | (state == f.EVICTED)
    _free_rings(stored, blocks, slots, taken, bad)
    stay = np.flatnonzero((state == f.OPEN) | (state == f.CLOSED))
    stay = stay[np.argsort(slots[stay, f.ORDER], kind="stable")]
    _part_strangers(slots, state)
    if layout.late:
        late = layout.view(segment, "late")
        torn = late[:, f.LATE_CHANGES] % 2 == 1
        late[torn, f.LATE_BITS], late[torn, f.LATE_CHANGES] = 0, late[torn, f.LATE_CHANGES] + 1
    rebuild.link_slots(segment, params, stay)
    items = int(rebuild.recount_uses(segment, params, stay))
    _recount(stored, slots, stay, chains, items)
    before = order.remember(segment, layout)
    rebuild.resample(segment, params, stay)
    rebuild.reseat_remover(segment, params, stay)
    order.put_back(segment, layout, before)
    _serve(stored, slots, stay)
    _finish(stored, slots, stay)
    return Found(int(counters[f.STORED]), int(counters[f.STORED_STEPS]), damaged, haunted)


def _quarantine(
    stored: StoredTable,
    blocks: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int64],
    bad: npt.NDArray[np.int64],
    taken: npt.NDArray[np.bool_],
) -> None:
    """Leave damaged entries out: neither they nor blocks that name them are used again."""
    orders = slots[bad, f.ORDER].tolist()
    logger.error(
        "table %s: %d entries of the directory are damaged and left out (trajectories number %s)",
        stored.table.name, len(bad), ", ".join(map(str, orders[:8])) + (", ..." if len(orders) > 8 else ""),
    )  # fmt: skip
    theirs = np.isin(blocks[:, f.SLOT], bad) & ~taken
    blocks[theirs, f.GENERATION] = stored.layout.generations
    blocks[theirs, f.SLOT] = blocks[theirs, f.OWNER] = -1
    slots[bad, f.STATE], slots[bad, f.WRITER], slots[bad, f.PINS] = f.FREE, -1, 0


def _attribute(
    stored: StoredTable,
    blocks: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int64],
    chains: npt.NDArray[np.int64],
    taken: npt.NDArray[np.bool_],
) -> None:
    """Whose slots and leases are: those of clients that are known, and that the clients may know of."""
    state, writer = slots[:, f.STATE], slots[:, f.WRITER]
    known = np.append(stored.records[:, f.KNOWN] != 0, False)
    writer[(state == f.FREE) | (state == f.CLOSED)] = -1
    strange = (state == f.LEASED) & ((writer < 0) | (writer >= f.MAX_CLIENTS) | (slots[:, f.SEQUENCE] == 0))
    strange |= (state == f.LEASED) & ~known[np.where(strange, 0, np.clip(writer, 0, f.MAX_CLIENTS))]
    state[strange], writer[strange] = f.FREE, -1
    slots[state == f.EVICTED, f.CURSOR] = chains[state == f.EVICTED]
    owner = blocks[:, f.OWNER]
    owner[taken] = -1
    strange = ~taken & ((owner < 0) | (owner >= f.MAX_CLIENTS) | (blocks[:, f.ORDINAL] == 0))
    strange |= ~taken & ~known[np.where(strange, 0, np.clip(owner, 0, f.MAX_CLIENTS))]
    owner[strange] = -1


def _free_unread(
    slots: npt.NDArray[np.int64],
    chains: npt.NDArray[np.int64],
    taken: npt.NDArray[np.bool_],
    gone: npt.NDArray[np.bool_],
) -> None:
    """Evicted slots that nobody reads are free."""
    slots[gone, f.STATE], slots[gone, f.WRITER] = f.FREE, -1
    chains[gone] = 0


def _free_rings(
    stored: StoredTable,
    blocks: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int64],
    taken: npt.NDArray[np.bool_],
    bad: npt.NDArray[np.int64],
) -> None:
    """What nobody has is free; what was free before keeps its place in the ring."""
    segment, layout, counters = stored.segment, stored.layout, stored.counters
    state = slots[:, f.STATE]
    used = np.zeros(layout.slots, np.bool_)
    used[(state == f.OPEN) | (state == f.CLOSED) | (state == f.EVICTED)] = True
    free = (blocks[:, f.OWNER] == -1) & ~(taken & used[blocks[:, f.SLOT] % layout.slots])
    worn = free & (blocks[:, f.GENERATION] >= layout.generations)
    blocks[free, f.SLOT] = blocks[free, f.ORDINAL] = -1
    counters[f.RETIRED_BLOCKS] = int(worn.sum())
    counters[f.FREE_BLOCKS] = _ring(layout.view(segment, "free_blocks"), counters, f.FREE_HEAD, free & ~worn)
    idle = state == f.FREE
    idle[bad] = False
    counters[f.FREE_SLOTS] = _ring(layout.view(segment, "free_slots"), counters, f.SLOT_HEAD, idle)
    for at, count, holders in (
        (f.LEASED_BLOCKS, f.LEASED_BLOCK_COUNT, blocks[:, f.OWNER]),
        (f.LEASED_SLOTS, f.LEASED_SLOT_COUNT, slots[state == f.LEASED, f.WRITER]),
    ):
        held = np.bincount(holders[holders >= 0], minlength=f.MAX_CLIENTS)
        stored.records[:, at], counters[count] = held, held.sum()


def _ring(ring: npt.NDArray[np.int32], counters: npt.NDArray[np.int64], head: int, free: npt.NDArray[np.bool_]) -> int:
    before = np.roll(ring, -int(counters[head]) % len(ring))
    before = before[(before >= 0) & (before < len(ring))]
    _, first = np.unique(before, return_index=True)
    before = before[np.sort(first)]  # each once
    before = before[free[before]]
    rest = free.copy()
    rest[before] = False
    whole = np.concatenate((before, np.flatnonzero(rest)))
    ring[: len(whole)] = whole
    counters[head] = 0
    return len(whole)


def _part_strangers(slots: npt.NDArray[np.int64], state: npt.NDArray[np.int64]) -> None:
    """Seams hold between pieces that both name each other and have blocks."""
    there = (state == f.OPEN) | (state == f.CLOSED) | (state == f.EVICTED)
    mine = np.arange(len(slots))
    for way, back in ((f.PREDECESSOR, f.SUCCESSOR), (f.SUCCESSOR, f.PREDECESSOR)):
        other = slots[:, way]
        inside = (other >= 0) & (other < len(slots)) & there
        other[~inside] = -1
        named = slots[np.maximum(other, 0)]
        other[inside & ((named[:, back] != mine) | ~there[np.maximum(other, 0)])] = -1


def _recount(
    stored: StoredTable,
    slots: npt.NDArray[np.int64],
    stay: npt.NDArray[np.int64],
    chains: npt.NDArray[np.int64],
    items: int,
) -> None:
    counters, table, layout = stored.counters, stored.table, stored.layout
    held = np.flatnonzero(slots[:, f.STATE] == f.EVICTED)
    counters[f.HELD_BLOCKS], counters[f.HELD_SLOTS] = chains[held].sum(), len(held)
    counters[f.USED_BLOCKS], counters[f.STORED_STEPS] = chains[stay].sum(), slots[stay, f.LENGTH].sum()
    counters[f.STORED] = counters[f.USED_SLOTS] = len(stay)
    counters[f.ITEM_COUNT], counters[f.DELETED_ITEMS] = items, counters[f.INSERTED_ITEMS] - items
    counters[f.EVICTED_COUNT] = counters[f.INSERTED] - counters[f.CONSUMED] - len(stay)
    counters[f.RESERVED_ITEMS] = 0
    if layout.params[f.P_MOST] and not table.lines:  # an item of a queue is sampled when it leaves
        counters[f.SAMPLED_ITEMS] = counters[f.DELETED_ITEMS] - counters[f.RETURNED_ITEMS]
    if layout.spread and not isinstance(table.limiter, MinSize):
        counters[f.INSERT_CREDIT] = min(0, int(counters[f.INSERT_CREDIT]))
    open_ones = stay[(slots[stay, f.STATE] == f.OPEN) & (slots[stay, f.WRITER] == f.TABLE)]
    counters[f.OPENED], counters[f.OPENED_BLOCKS] = len(open_ones), chains[open_ones].sum()
    counters[f.OPENED_STEPS] = slots[open_ones, f.LENGTH].sum()


def _serve(stored: StoredTable, slots: npt.NDArray[np.int64], stay: npt.NDArray[np.int64]) -> None:
    """The lines of consumers, from their acknowledgements; groups, from their keys."""
    if stored.claims is None:
        return
    segment, layout = stored.segment, stored.layout
    units = layout.view(segment, "units")
    layout.view(segment, "claims")[:] = 0
    if stored.groups is None:
        items = rebuild.served_items(segment, stored.params, stay)
        stored.claims.restart(items[np.argsort(units[items], kind="stable")])
        return
    mates = layout.view(segment, "mates")
    mates[:] = np.arange(len(mates))
    together: dict[int, int] = {}
    for slot in stay.tolist():
        unit = int(units[slot])
        if unit:
            first = together.setdefault(unit, slot)
            mates[slot], mates[first] = (mates[first], slot) if first != slot else (slot, slot)
    stored.groups.restart()


def _finish(stored: StoredTable, slots: npt.NDArray[np.int64], stay: npt.NDArray[np.int64]) -> None:
    """Do what the shard had still to do: trajectories that are used up leave, and those that are too old."""
    segment, params = stored.segment, stored.params
    for slot in stay[(slots[stay, f.STATE] == f.OPEN) & (slots[stay, f.WRITER] == -1)].tolist():  # was being dropped
        evict(segment, params, slot, False)
    for slot in stay[(slots[stay, f.ITEMS] > 0) & (slots[stay, f.GONE] == slots[stay, f.ITEMS])].tolist():
        if slots[slot, f.STATE] == f.CLOSED:
            evict(segment, params, slot, True)
    if params[f.P_MAX_STALENESS] >= 0:
        for slot in stay.tolist():
            expire_if_stale(segment, params, slot)

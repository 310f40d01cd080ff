"""Seams: pieces of one trajectory, split at `max_length`, know their neighbours while both are there.

A link lasts until the blocks of either piece are freed, longer than the piece is in the table: who pinned it may
still read over the seam. Whoever draws pins neighbours that are in the table and nobody else's. Compiled; single
writer.
"""

from __future__ import annotations

import numpy as np

from gear.kernels.compile import kernel
from gear.kernels.program import LONGS, SHORTS
from gear.storage import fields as f
from gear.storage.directory import int32s, int64s
from gear.storage.programs import DRAW

LOOKS = 4096
"""Trajectories looked through, newest first, for the piece before: more than writers have open at a time."""


@kernel
def join_pieces(segment, params, slot, follows, steps):
    """Link a new slot to the piece that entry number `follows` of the same client ended; `steps` lie before it."""
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    slots[at + f.PREDECESSOR] = slots[at + f.SUCCESSOR] = -1
    slots[at + f.BASE] = steps
    if follows <= 0:
        return
    other = slots[at + f.OLDER]
    for _ in range(LOOKS):
        if other < 0:
            return
        there = other * f.SLOT_FIELDS
        if slots[there + f.SEQUENCE] == follows and slots[there + f.CLIENT] == slots[at + f.CLIENT]:
            if slots[there + f.FLAGS] & f.CONTINUED and slots[there + f.STATE] == f.CLOSED:
                slots[at + f.PREDECESSOR] = other
                slots[there + f.SUCCESSOR] = slot
            return
        other = slots[there + f.OLDER]


@kernel
def part_pieces(segment, params, slot):
    """Unlink a slot whose blocks are freed."""
    slots = int64s(segment, params, f.R_SLOTS)
    at = slot * f.SLOT_FIELDS
    before, behind = slots[at + f.PREDECESSOR], slots[at + f.SUCCESSOR]
    if before >= 0:
        slots[before * f.SLOT_FIELDS + f.SUCCESSOR] = -1
    if behind >= 0:
        slots[behind * f.SLOT_FIELDS + f.PREDECESSOR] = -1
    slots[at + f.PREDECESSOR] = slots[at + f.SUCCESSOR] = -1


@kernel
def _reach(segment, params, slot, way, need, out, n):
    """Put the pieces that follow in one direction until `need` rows are covered into `out` from place n on."""
    slots = int64s(segment, params, f.R_SLOTS)
    while need > 0:
        slot = slots[slot * f.SLOT_FIELDS + way]
        if slot < 0:
            return n
        at = slot * f.SLOT_FIELDS
        if slots[at + f.STATE] != f.OPEN and slots[at + f.STATE] != f.CLOSED:
            return n
        if n < out.shape[0]:
            out[n] = slot
        n += 1
        need -= max(np.int64(1), slots[at + f.LENGTH])
    return n


@kernel
def _neighbours(segment, params, starts, lengths, before, after, out):
    """Slots of other pieces within reach of items, as often as items reach them; returns how many there are."""
    slots = int64s(segment, params, f.R_SLOTS)
    blocks = int32s(segment, params, f.R_BLOCKS)
    steps, n = params[f.P_BLOCK_STEPS], 0
    for k in range(starts.shape[0]):
        record = starts[k] // steps * f.BLOCK_FIELDS
        slot = np.int64(blocks[record + f.SLOT])
        at = slot * f.SLOT_FIELDS
        if slots[at + f.PREDECESSOR] < 0 and slots[at + f.SUCCESSOR] < 0:
            continue
        t = np.int64(blocks[record + f.ORDINAL]) * steps + starts[k] % steps
        n = _reach(segment, params, slot, f.PREDECESSOR, before - t, out, n)
        behind = slots[at + f.LENGTH] - t - lengths[k]
        n = _reach(segment, params, slot, f.SUCCESSOR, after - behind, out, n)
    return n


@DRAW.kernel(starts=LONGS, lengths=SHORTS)
def neighbours(segment, params, starts, lengths, before, after, pin):
    """Other pieces in the table from which `before` rows before items and `after` rows behind them come.

    starts: int64[B]; lengths: int32[B]; pin: 1 pins them, 0 does not. Returns their slots, int32[K], in rising order;
    each is there once, and pinned once.
    """
    none = np.empty(0, np.int32)
    n = _neighbours(segment, params, starts, lengths, before, after, none)
    if n == 0:
        return none
    found = np.empty(n, np.int32)
    _neighbours(segment, params, starts, lengths, before, after, found)
    found.sort()
    slots = int64s(segment, params, f.R_SLOTS)
    kept = 0
    for k in range(n):
        if k == 0 or found[k] != found[k - 1]:
            found[kept] = found[k]
            kept += 1
    for k in range(kept):
        slots[found[k] * f.SLOT_FIELDS + f.PINS] += pin
    return found[:kept].copy()

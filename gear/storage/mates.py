"""Mates: the trajectories of one group, a ring over their slots. Compiled; single writer."""

from __future__ import annotations

from gear.kernels.compile import kernel
from gear.storage import fields as f
from gear.storage.directory import int32s


@kernel
def join(segment, params, slot, other):
    """A slot that is alone joins the ring of another."""
    mates = int32s(segment, params, f.R_MATES)
    mates[slot] = mates[other]
    mates[other] = slot


@kernel
def part(segment, params, slot):
    """A slot leaves its ring and is alone."""
    mates = int32s(segment, params, f.R_MATES)
    before = slot
    while mates[before] != slot:
        before = mates[before]
    mates[before] = mates[slot]
    mates[slot] = slot

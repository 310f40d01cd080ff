"""The best entries by key on a GPU, for samplers that draw the largest or smallest priorities; see `reference_top`.

A tournament: a block of threads sorts a tile of entries in its shared memory (Batcher, "Sorting networks and their
applications", 1968) and lets the best `KEEP` of them through, again and again, until one tile is left. More than `KEEP`
are found in rounds, each of which admits what comes behind the last one found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from gear.kernels.cuda_launch import Call
from gear.kernels.cuda_seam import SIMULATED, device, kernel, load_8, load_float, store_8

TILE = 8 if SIMULATED else 1024
"""Entries of a tile, a power of two; half as many threads sort it."""

KEEP = TILE // 2
"""Entries of a tile that are let through at most."""


@device
def _before(key, stamp, entry, other_key, other_stamp, other_entry):
    """Whether an entry comes before another one; -1 is no entry and comes last."""
    if entry < 0 or other_entry < 0:
        return entry > other_entry
    if key != other_key:
        return key > other_key
    if stamp != other_stamp:
        return stamp < other_stamp
    return entry < other_entry


@kernel
def best_of_tiles(entries, count, keys, stamps, sign, last, out, keep):
    """out: int64[tiles, keep], the best of each tile of entries: int64[count] that come behind entry `last`.

    last: address of an int64, or 0 for no such condition; -1 there: nothing comes behind. Grid: tiles; block: TILE / 2.
    """
    key_of = cuda.shared.array(TILE, np.float64)
    stamp_of = cuda.shared.array(TILE, np.int64)
    entry_of = cuda.shared.array(TILE, np.int64)
    thread, threads, begin = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * TILE
    bound = load_8(last) if last != 0 else 0
    bound_key, bound_stamp = 0.0, 0
    if last != 0 and bound >= 0:
        bound_key, bound_stamp = sign * load_float(keys + 8 * bound), load_8(stamps + 8 * bound)
    for i in range(thread, TILE, threads):
        entry = load_8(entries + 8 * (begin + i)) if begin + i < count else -1
        key, stamp = 0.0, 0
        if entry >= 0:
            key, stamp = sign * load_float(keys + 8 * entry), load_8(stamps + 8 * entry)
            if last != 0 and (bound < 0 or not _before(bound_key, bound_stamp, bound, key, stamp, entry)):
                entry = -1
        key_of[i], stamp_of[i], entry_of[i] = key, stamp, entry
    cuda.syncthreads()
    size = 2
    while size <= TILE:
        apart = size // 2
        while apart > 0:
            one = 2 * thread - (thread & (apart - 1))
            other = one + apart
            key, stamp, entry = key_of[one], stamp_of[one], entry_of[one]
            ahead = _before(key, stamp, entry, key_of[other], stamp_of[other], entry_of[other])
            if ahead != ((one & size) == 0):
                key_of[one], stamp_of[one], entry_of[one] = key_of[other], stamp_of[other], entry_of[other]
                key_of[other], stamp_of[other], entry_of[other] = key, stamp, entry
            cuda.syncthreads()
            apart //= 2
        size *= 2
    for i in range(thread, keep, threads):
        store_8(out + 8 * (cuda.blockIdx.x * keep + i), entry_of[i])


class Top:
    """Finds up to `most` best of up to `entries` entries, one call at a time; owns what rounds leave to each other.

    Launches: for up to `KEEP` found, one for each time that the entries are reduced to a tile's worth: two or three of
    a million for 16 of them, ten for `KEEP`. More are found `KEEP` at a time.
    """

    def __init__(self, entries: int, most: int) -> None:
        self.entries, self.most = entries, most
        keep = max(1, min(most, KEEP))
        self.rest = [cuda.device_array(max(1, -(-entries // TILE)) * keep, np.int64) for _ in range(2)]

    def __call__(self, entries: Any, keys: Any, stamps: Any, sign: float, out: Any, stream: Any = 0) -> None:
        """Find the best; see `reference_top.top`."""
        if len(entries) > self.entries or len(out) > self.most:
            raise ValueError(
                f"top: made for {self.most} of {self.entries} entries, got {len(out)} of {len(entries)}; "
                "make a larger one"
            )
        with Call(stream) as call:
            given, by = call.reads(entries), (call.reads(keys), call.reads(stamps), float(sign))
            result, rest, last = call.writes(out), [call.writes(a) for a in self.rest], 0
            for begin in range(0, len(out), KEEP):
                keep = min(KEEP, len(out) - begin)
                source, count, side = given, len(entries), 0
                while True:
                    tiles = max(1, -(-count // TILE))
                    target = result + 8 * begin if tiles == 1 else rest[side]
                    call.launch(
                        best_of_tiles,
                        tiles,
                        TILE // 2,
                        source,
                        count,
                        *by,
                        last if source == given else 0,
                        target,
                        keep,
                    )
                    if tiles == 1:
                        break
                    source, count, side = target, tiles * keep, 1 - side
                last = result + 8 * (begin + keep - 1)


def top(entries: Any, keys: Any, stamps: Any, sign: float, out: Any, stream: Any = 0) -> None:
    """Find the best entries, the best first; see `reference_top.top`."""
    if len(out):
        Top(len(entries), len(out))(entries, keys, stamps, sign, out, stream)

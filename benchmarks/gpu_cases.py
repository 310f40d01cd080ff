"""What is measured on a GPU: arenas to gather from, trees to draw from, and the limits that figures are held against.

Index sets take turns, so that a few do not stay in the cache. Memory is page-locked and mapped, or the device's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import cuda

from benchmarks.measure import WrongResult
from gear.kernels import cuda as kernels
from gear.kernels import host
from gear.kernels import records as r
from gear.kernels.cuda_copy import copy_words
from gear.kernels.cuda_launch import THREADS, Call, room
from gear.kernels.cuda_seam import kernel

SETS = 16
"""Index sets that take turns."""


@kernel
def stream_words(target: int, source: int, words: int) -> None:
    """Copy 16-byte words, all threads side by side."""
    copy_words(target, source, words, 16, cuda.grid(1), cuda.gridsize(1))


def memory(nbytes: int, mapped: bool) -> Any:
    """uint8[nbytes], page-locked and mapped or the device's."""
    return cuda.mapped_array(nbytes, np.uint8) if mapped else cuda.device_array(nbytes, np.uint8)


def filled(content: np.ndarray, mapped: bool) -> Any:
    """Memory with this content."""
    if not mapped:
        return cuda.to_device(content)
    made = cuda.mapped_array(content.shape, content.dtype)
    made[:] = content
    return made


def ceilings(nbytes: int) -> Iterator[tuple[str, Callable[[int], object], float]]:
    """(name, call, bytes moved): the device's own copy, a kernel's, and a kernel that reads mapped host memory."""
    target, source = memory(nbytes, False), filled(np.arange(nbytes, dtype=np.uint32).astype(np.uint8), False)
    yield "device memory, copied", lambda k: target.copy_to_device(source), 2 * nbytes

    def by_kernel(origin: Any) -> Callable[[int], object]:
        def call(k: int) -> None:
            with Call() as launch:
                addresses = launch.writes(target), launch.reads(origin)
                launch.launch(stream_words, room(), THREADS, *addresses, len(origin) // 16)

        return call

    yield "device memory, copied by a kernel", by_kernel(source), 2 * nbytes
    mapped = filled(np.arange(nbytes // 4, dtype=np.uint32).astype(np.uint8), True)
    yield "mapped host memory, read", by_kernel(mapped), nbytes // 4


def busy(nbytes: int) -> Callable[[], None]:
    """Work that keeps the device busy while the host prepares what is to be timed."""
    target, source = memory(nbytes, False), memory(nbytes, False)

    def call() -> None:
        with Call() as launch:
            addresses = launch.writes(target), launch.reads(source)
            for _ in range(4):
                launch.launch(stream_words, room(), THREADS, *addresses, nbytes // 16)

    return call


class _Gathers:
    """Batches of items of one column from an arena of chained blocks in random order."""

    name = ""

    def __init__(self, mapped: bool, steps: int, blocks: int, chain: int, length: int, width: int, items: int) -> None:
        rng = np.random.default_rng(1)
        records = -(-blocks * 4 * r.BLOCK_FIELDS // 64) * 64
        content = rng.integers(0, 256, records + blocks * steps * width, dtype=np.uint8)
        table = content[: blocks * 4 * r.BLOCK_FIELDS].view(np.int32).reshape(blocks, r.BLOCK_FIELDS)
        order = rng.permutation(blocks)
        table[:, r.NEXT] = -1
        table[order[:-1], r.NEXT] = order[1:]
        table[order[chain - 1 :: chain], r.NEXT] = -1
        plan = np.zeros((2, r.PLAN_FIELDS), np.int64)
        plan[0, : r.MASK + 1] = (steps, steps * width, records, 0, blocks, length, 0, -1)
        plan[1, : r.PAD + 1] = (r.PER_STEP, 0, width, width, 0, -1)
        places = rng.integers(0, max(1, chain * steps - length + 1), (SETS, items))
        firsts = rng.integers(0, blocks // chain, (SETS, items))
        self.starts = order[firsts * chain + places // steps].astype(np.int64) * steps + places % steps
        self.lengths = np.full(items, length, np.int32)
        self.content, self.plan, self.nbytes = content, plan, items * length * width
        self.out = cuda.to_device(np.full(self.nbytes, 0xA5, np.uint8))
        self.ready = kernels.Gather(content, plan, np.zeros(0, np.uint8), items, self.out)
        self.segment = filled(content, mapped)
        self.given = [cuda.to_device(s) for s in self.starts], cuda.to_device(self.lengths)
        self.last = 0

    def gather(self, k: int) -> None:
        self.last = k % SETS
        self.ready(self.segment, self.given[0][self.last], self.given[1], self.out)

    def rows_of(self, starts: np.ndarray, steps: int) -> np.ndarray:
        """The numbers of all rows of items, along the chains of blocks."""
        table = self.content[: 4 * r.BLOCK_FIELDS * int(self.plan[0, r.BLOCK_COUNT])].view(np.int32)
        after = table.reshape(-1, r.BLOCK_FIELDS)[:, r.NEXT]
        length = int(self.plan[0, r.ITEM_LENGTH])
        found, row = np.empty((len(starts), length), np.int64), starts.copy()
        for step in range(length):
            found[:, step] = row
            last = row % steps == steps - 1
            row = np.where(last, after[row // steps].astype(np.int64) * steps, row + 1)
        return found.reshape(-1)

    def copied(self, batch: np.ndarray, k: int) -> None:
        """Bring a batch of the host to the device."""
        self.last = k % SETS
        self.out.copy_to_device(batch)

    def verify(self) -> None:
        """The last batch is what the host gathers."""
        expected = np.empty(self.nbytes, np.uint8)
        host.gather(self.content, self.plan, np.zeros(0, np.uint8), self.starts[self.last], self.lengths, expected)
        if not np.array_equal(self.out.copy_to_host(), expected):
            raise WrongResult(f"{self.name}: the batch differs from the host's")


class Windows(_Gathers):
    """Windows of 64 steps of 256 bytes."""

    name = "windows of 64 x 256 B"

    def __init__(self, tiny: bool, mapped: bool) -> None:
        blocks, items = (8, 2) if tiny else (65536, 4096)
        super().__init__(mapped, 8 if tiny else 64, blocks, 4, 5 if tiny else 64, 16 if tiny else 256, items)


class Frames(_Gathers):
    """Windows of 4 frames of 84 x 84 x 4 bytes."""

    name = "4 frames of 28224 B"

    def __init__(self, tiny: bool, mapped: bool) -> None:
        blocks, items = (8, 2) if tiny else (8192, 512)
        super().__init__(mapped, 4, blocks, 4, 4, 48 if tiny else 28224, items)


class Rows(_Gathers):
    """Random rows of 68 bytes: reported only."""

    name = "random rows of 68 B"

    def __init__(self, tiny: bool, mapped: bool) -> None:
        blocks, items = (8, 4) if tiny else (1 << 20, 65536)
        super().__init__(mapped, 16, blocks, 1, 1, 68, items)


def host_ways(case: _Gathers) -> Iterator[tuple[str, Callable[[int], object]]]:
    """The same batch gathered by the host into page-locked memory and copied: by NumPy, as users do, and by GEAR."""
    batch, pads = cuda.pinned_array(case.nbytes, np.uint8), np.zeros(0, np.uint8)
    steps, width, begin = (int(v) for v in (case.plan[0, r.BLOCK_STEPS], case.plan[1, r.WIDTH], case.plan[0, r.ARENA]))
    rows = case.content[begin:].reshape(-1, width)
    numbers = [case.rows_of(starts, steps) for starts in case.starts]  # which rows, known beforehand

    def by_numpy(k: int) -> None:
        np.take(rows, numbers[k % SETS], axis=0, out=batch.reshape(-1, width), mode="clip")
        case.copied(batch, k)

    def by_gear(k: int) -> None:
        host.gather(case.content, case.plan, pads, case.starts[k % SETS], case.lengths, batch)
        case.copied(batch, k)

    yield "by NumPy's take, copied", by_numpy
    yield "by GEAR on the host, copied", by_gear


class Tree:
    """A sum tree of random priorities, on the device and, for comparison, on the host."""

    def __init__(self, size: int) -> None:
        self.size, self.rng = size, np.random.default_rng(2)
        self.applied: list[tuple[np.ndarray, np.ndarray]] = []
        sizes = [-(-size // r.FAN) * r.FAN]
        while sizes[-1] > r.FAN:
            sizes.append(-(-(sizes[-1] // r.FAN) // r.FAN) * r.FAN)
        self.starts = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
        self.tree, self.mins = np.zeros(sum(sizes)), np.zeros(max(1, sum(sizes[1:])))
        self.tree[:size] = self.rng.random(size)
        self.there = cuda.to_device(self.tree), cuda.to_device(self.mins)
        kernels.tree_build(*self.there, self.starts)
        host.tree_build(self.tree, self.mins, self.starts)

    def draw(self, count: int) -> Callable[[int], object]:
        items, probabilities = cuda.device_array(count, np.int64), cuda.device_array(count, np.float64)
        return lambda k: kernels.tree_sample(self.there[0], self.starts, 7, k * count, items, probabilities)

    def update(self, count: int) -> Callable[[int], object]:
        items = [self.rng.integers(0, self.size, count) for _ in range(SETS)]
        leaves = self.rng.random(count)
        given, values = [cuda.to_device(i) for i in items], cuda.to_device(leaves)
        updates, status = kernels.Updates(count), cuda.to_device(np.zeros(1, np.int64))

        def call(k: int) -> None:
            updates(*self.there, self.starts, given[k % SETS], values, status)
            self.applied.append((items[k % SETS], leaves))

        return call

    def best(self, count: int) -> Callable[[int], object]:
        entries, stamps = cuda.to_device(np.arange(self.size)), cuda.to_device(self.rng.permutation(self.size))
        top, out = kernels.Top(self.size, count), cuda.device_array(count, np.int64)
        return lambda k: top(entries, self.there[0], stamps, 1.0, out)

    def verify(self) -> None:
        """After all updates, which the host makes up for, the sums are its sums."""
        for items, leaves in self.applied:
            host.tree_update(self.tree, self.mins, self.starts, items, leaves)
        if not np.array_equal(self.there[0].copy_to_host(), self.tree):
            raise WrongResult(f"tree of {self.size}: its sums differ from the host's")

"""Gather stays inside its arrays, shown by pages around them that nobody may touch.

A process of its own puts segment and output at the very end, then at the very start, of the memory that it
may touch, and gathers random items over random damaged chains, at rest or changing meanwhile. One byte too
far would kill it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GUARDED = """
import ctypes, mmap
import numpy as np
from gear.kernels import host
from tests.kernels.cases import Shape, gather_case

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
keep = []

def guarded(array, at_the_end):
    pages = -(-max(array.nbytes, 1) // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    whole = np.frombuffer(memory, np.uint8)
    for page in (0, pages + 1):
        assert libc.mprotect(whole.ctypes.data + page * PAGE, PAGE, 0) == 0
    keep[:] = [*keep[-6:], memory]
    first = (pages + 1) * PAGE - array.nbytes if at_the_end else PAGE
    first -= first % array.itemsize
    view = whole[first:first + array.nbytes].view(array.dtype)
    view[:] = array
    return view
"""

AT_REST = """
rng = np.random.default_rng(0)
for number in range(300):
    widths = rng.choice([1, 2, 3, 4, 5, 7, 8, 13, 16, 24, 31, 68, 300], rng.integers(1, 5))
    columns = tuple((int(rng.integers(2)), int(w), bool(rng.integers(2))) for w in widths)
    shape = Shape(
        steps=int(rng.integers(1, 9)), blocks=int(rng.integers(0, 8)), length=int(rng.choice([1, 1, 2, 5, 40])),
        items=int(rng.integers(0, 40)), head=bool(rng.integers(2)), mask=bool(rng.integers(2)),
        interleaved=bool(rng.integers(2)), columns=columns, hostile=True, seed=number,
    )
    case = gather_case(shape)
    for at_the_end in (True, False):
        arrays = [guarded(a, at_the_end) for a in (case.segment, case.pads, case.starts, case.lengths, case.out)]
        segment, pads, starts, lengths, out = arrays
        host.gather(segment, case.plan, pads, starts, lengths, out)
        assert (out == case.run(host)).all()
print("inside")
"""

CONCURRENTLY = """
import threading
import numba
from gear.kernels.records import BLOCK_FIELDS

@numba.njit(nogil=True)
def disturb(records, blocks, rounds):
    # What the shard may do to the records while a reader that has lost its pin still gathers.
    x = np.int64(1)
    for _ in range(rounds):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        strange = (x >> 8) & 7 == 0
        records[(x >> 11) % records.shape[0]] = x if strange else (x >> 20) % blocks

for length, steps in ((40, 1), (40, 3), (1, 2)):
    case = gather_case(Shape(steps, 8, length, 40, False, True, False, ((0, 4, True), (1, 9, True)), False, 0))
    case.lengths[:] = length
    segment = guarded(case.segment, True)
    records = segment[:8 * 4 * BLOCK_FIELDS].view(np.int32)
    disturb(records, 8, 1)
    thread = threading.Thread(target=disturb, args=(records, 8, 50_000_000))
    thread.start()
    while thread.is_alive():
        host.gather(segment, case.plan, case.pads, case.starts, case.lengths, case.out)
print("inside")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect")
@pytest.mark.parametrize("script", [AT_REST, CONCURRENTLY], ids=["chains at rest", "chains that change"])
def test_gather_never_leaves_its_arrays(script):
    result = subprocess.run(
        [sys.executable, "-c", GUARDED + script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout.strip()) == (0, "inside"), result.stderr

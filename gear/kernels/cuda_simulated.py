"""What kernels do with memory and bits in Numba's CUDA simulator; see `cuda_seam`, and `cuda_words` for what each does.

Each access is checked: it lies in an array of the launch that may be read (or written), and its address is a multiple
of its width, as a GPU demands. So the simulator also shows what on a GPU would be a fault or silent damage.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cuda.simulator.kernel import BlockManager, BlockThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MASK = (1 << 64) - 1
_readable: list[tuple[int, int]] = []
_writable: list[tuple[int, int]] = []
_atomic = threading.Lock()
widths: set[tuple[str, int]] = set()
"""("move" or "move four", bytes of a word) of every copy so far."""


@contextlib.contextmanager
def accessible(read: Sequence[tuple[int, int]], write: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Let the launches within touch only these (address, bytes); what may be written may be read."""
    _writable[:] = [(at, at + size) for at, size in write]
    _readable[:] = [*_writable, *((at, at + size) for at, size in read)]
    try:
        yield
    finally:
        _writable.clear()
        _readable.clear()


def _check(kind: str, spans: list[tuple[int, int]], address: int, size: int) -> int:
    if address % size:
        raise AssertionError(f"{kind} of {size} bytes at {address:#x}: not a multiple")
    if not any(begin <= address and address + size <= end for begin, end in spans):
        raise AssertionError(f"{kind} of {size} bytes at {address:#x}: outside of all arrays")
    return int(address)


def _read(address: int, size: int) -> bytes:
    return ctypes.string_at(_check("load", _readable, address, size), size)


def _write(address: int, value: bytes) -> None:
    ctypes.memmove(_check("store", _writable, address, len(value)), value, len(value))


def _mover(size: int) -> Callable[[int, int], None]:
    def move(target: int, source: int) -> None:
        widths.add(("move", size))
        _write(target, _read(source, size))

    return move


def _four(size: int) -> Callable[[int, int, int], None]:
    def move_four(target: int, source: int, step: int) -> None:
        widths.add(("move four", size))
        values = [_read(source + i * step, size) for i in range(4)]
        for i, value in enumerate(values):
            _write(target + i * step, value)

    return move_four


def _loader(size: int, signed: bool = False) -> Callable[[int], int]:
    def load(address: int) -> int:
        return int.from_bytes(_read(address, size), "little", signed=signed or size == 8)

    return load


def _storer(size: int) -> Callable[[int, int], None]:
    def store(address: int, value: int) -> None:
        word = min(size, 8)
        _write(address, (int(value) & (1 << 8 * word) - 1).to_bytes(word, "little") * (size // word))

    return store


move_1, move_2, move_4, move_8, move_16 = (_mover(size) for size in (1, 2, 4, 8, 16))
move_four_4, move_four_8, move_four_16 = (_four(size) for size in (4, 8, 16))
load_1, load_2, load_4, load_8 = (_loader(size) for size in (1, 2, 4, 8))
store_1, store_2, store_4, store_8, store_16 = (_storer(size) for size in (1, 2, 4, 8, 16))
peek_4, peek_8 = _loader(4, signed=True), _loader(8)


def load_float(address: int) -> float:
    return float(struct.unpack("<d", _read(address, 8))[0])


def store_float(address: int, value: float) -> None:
    _write(address, struct.pack("<d", value))


def fence() -> None:
    pass


def claim(address: int, value: int) -> int:
    with _atomic:
        found = peek_8(address)
        if found == 0:
            store_8(address, value)
        return found


def raise_to(address: int, value: int) -> None:
    with _atomic:
        if value > peek_8(address):
            store_8(address, value)


def times(one: float, other: float) -> float:
    return one * other


def bits_of(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def number_of(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def bits_of_single(number: float) -> int:
    with np.errstate(over="ignore", invalid="ignore"):
        return int(np.float64(number).astype(np.float32).view(np.uint32))


def number_of_single(bits: int) -> float:
    return float(np.uint32(bits & 0xFFFFFFFF).view(np.float32))


def from_unsigned(bits: int) -> float:
    return float(bits & _MASK)


def wrapped(value: int) -> int:
    """Python's whole numbers do not wrap around; this one does, to int64."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def quotient(number: int, divisor: int) -> int:
    return number // divisor


def _run_block(manager: Any, grid_point: tuple[int, ...], *arguments: Any) -> None:
    """Run the threads of a block; in place of Numba's own, which polls them, and so takes most of the time itself."""
    points = list(np.ndindex(*manager._block_dim))
    manager.barrier = threading.Barrier(len(points))
    threads = [_Thread(lambda: manager._f(*arguments), manager, grid_point, point, False) for point in points]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [thread.exception for thread in threads if thread.exception]
    failed.sort(key=lambda pair: isinstance(pair[0], threading.BrokenBarrierError))
    if failed:
        raise failed[0][0].with_traceback(failed[0][1])


class _Thread(BlockThread):  # type: ignore[misc]
    def run(self) -> None:
        super().run()
        if self.exception:
            self._manager.barrier.abort()

    def syncthreads(self) -> None:
        self._manager.barrier.wait()


BlockManager.run = _run_block

"""Array files of a checkpoint: ``.npy`` that NumPy reads, written and checked without ever holding one in memory.

A file is its header, which follows from dtype and shape alone, and raw bytes. Its checksum (XXH3, 64 bits) covers the
bytes; header and length are compared with what they must be, so that no flipped bit of a file goes unnoticed. Files are
synced before they count as written. Nothing here knows tables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from xxhash import xxh3_64

from gear.errors import CheckpointError
from gear.storage.pastcache import PastCache, Stage

CHUNK = 16 << 20
"""Bytes that are read and summed at a time."""

PIECE = 4 << 20
"""Bytes that are written at a time. More do not stay in a core's cache between being copied, summed and written; for
fewer the interpreter is taken from its owner more often."""

_HEADER = 128


class ArrayFile(msgspec.Struct, frozen=True):
    """A file as the manifest knows it; `file` is its path within the checkpoint: nothing outside is named."""

    file: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_@-][A-Za-z0-9_.@-]*/)*[A-Za-z0-9_@-][A-Za-z0-9_.@-]*$")]
    dtype: Literal["bool", "uint8", "int32", "int64", "float32", "float64", "uint32", "uint64"]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**48)], ...], Meta(min_length=1, max_length=8)]
    xxh3: str

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return _HEADER + int(np.dtype(self.dtype).itemsize) * self.count


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The first bytes of a file, format 1.0 of ``.npy``."""
    text = f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': {shape}, }}"
    body = text.encode().ljust(_HEADER - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def write(
    folder: Path, name: str, array: npt.NDArray, stage: Stage, progress: Callable[[int, bool], object]
) -> ArrayFile:
    """Write an array whole, synced."""
    file = Appending(folder, name, array.dtype.name, array.shape[1:], stage)
    try:
        rows = max(1, PIECE // max(1, array[:1].nbytes))
        for begin in range(0, len(array), rows):
            part = array[begin : begin + rows]
            file.space(len(part))[:] = np.ascontiguousarray(part).reshape(len(part), -1).view(np.uint8)
            file.append(len(part))
            progress(part.nbytes, False)
        return file.finish()
    except BaseException:
        file.abandon()
        raise


class Appending:
    """A file that grows by rows until it is finished."""

    def __init__(self, folder: Path, name: str, dtype: str, row: tuple[int, ...], stage: Stage) -> None:
        self._name, self._dtype, self._row = name, dtype, row
        self._width = int(np.dtype(dtype).itemsize) * math.prod(row)
        self.rows, self._sum = 0, xxh3_64()
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = PastCache(path, stage)
        self._file.space(_HEADER)[:] = 0
        self._file.advance(_HEADER)
        self._space = np.empty((0, self._width), np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes so far."""
        return self._file.nbytes

    def space(self, n: int) -> npt.NDArray[np.uint8]:
        """Where the next rows are to be put, uint8[n, bytes]: `append` takes them from there."""
        self._space = self._file.space(n * self._width).reshape(n, self._width)
        return self._space

    def append(self, n: int) -> None:
        """Write the first `n` rows of the space behind those that are there."""
        data = self._space[:n].reshape(-1)
        self._sum.update(data.data)
        self._file.advance(len(data))
        self.rows += n

    def finish(self) -> ArrayFile:
        """Write the header, have it all on the disk, and close."""
        shape = (self.rows, *self._row)
        self._file.finish(header(self._dtype, shape))
        return ArrayFile(self._name, cast("Any", self._dtype), shape, self._sum.hexdigest())

    def abandon(self) -> None:
        """Close it as it is."""
        self._file.close()


def chunks(root: Path, entry: ArrayFile) -> Iterator[npt.NDArray]:
    """The rows of a file, some at a time, in memory that the next ones overwrite.

    Raises
    ------
    CheckpointError
        If the file is not what the manifest says: at the end, or before.
    """
    path, row = root / entry.file, entry.shape[1:]
    width = int(np.dtype(entry.dtype).itemsize) * math.prod(row)
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise CheckpointError(
            f"{path}: {(error.strerror or str(error)).lower()}; the checkpoint is not whole"
        ) from None
    with file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.nbytes:  # before any memory is taken for it
            raise CheckpointError(f"{path} has {size} bytes, expected {entry.nbytes}: it is damaged")
        if file.read(_HEADER) != header(entry.dtype, entry.shape):
            raise CheckpointError(f"{path}: its header is not that of {entry.dtype}{list(entry.shape)}: it is damaged")
        most = max(1, CHUNK // max(1, width))
        buffer = np.empty(min(most, entry.shape[0]) * width, np.uint8)
        found, left = xxh3_64(), entry.shape[0]
        while left:
            n = min(most, left)
            data = buffer[: n * width].data
            got = 0
            while got < len(data):
                came = file.readinto(data[got:])
                if not came:
                    raise CheckpointError(f"{path} ended {len(data) - got} bytes early: it is damaged")
                got += came
            found.update(data)
            yield buffer[: n * width].view(entry.dtype).reshape(n, *row)
            left -= n
    if found.hexdigest() != entry.xxh3:
        raise CheckpointError(f"{path}: its checksum is {found.hexdigest()}, expected {entry.xxh3}: it is damaged")


def read(root: Path, entry: ArrayFile) -> npt.NDArray:
    """A file's array, checked.

    Raises
    ------
    CheckpointError
    """
    whole, at = np.empty(0, entry.dtype), 0
    for rows in chunks(root, entry):
        if not at:  # the file is as long as it says
            whole = np.empty(entry.shape, entry.dtype)
        whole[at : at + len(rows)] = rows
        at += len(rows)
    return whole if at else np.empty(entry.shape, entry.dtype)


def verify(root: Path, entry: ArrayFile) -> int:
    """Check a file from its first to its last bit; its bytes.

    Raises
    ------
    CheckpointError
    """
    for _ in chunks(root, entry):
        pass
    return entry.nbytes


def make_folder(path: Path) -> None:
    """Make a directory, and those above it that are not there, with their names on the disk."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in reversed(missing):
        sync_folder(one.parent)


def sync_folder(path: Path) -> None:
    """Have the names in a directory on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

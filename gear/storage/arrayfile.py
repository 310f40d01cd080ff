"""Array files of a checkpoint: ``.npy`` that NumPy reads, written and checked without ever holding one in memory.

A file is its header, which follows from dtype and shape alone, and raw bytes. Its checksum (XXH3, 64 bits) covers the
bytes; header and length are compared with what they must be, so that no flipped bit of a file goes unnoticed. Files are
synced before they count as written. Nothing here knows tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64

from gear.errors import CheckpointError

CHUNK = 16 << 20
"""Bytes that are read, summed and written at a time: in each the interpreter is taken from its owner a few times."""

_HEADER = 128


class ArrayFile(msgspec.Struct, frozen=True):
    """A file as the manifest knows it; `file` is its path within the checkpoint."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    xxh3: str

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return _HEADER + int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The first bytes of a file, format 1.0 of ``.npy``."""
    text = f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': {shape}, }}"
    body = text.encode().ljust(_HEADER - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def write(folder: Path, name: str, array: npt.NDArray, progress: Callable[[int], None] = lambda n: None) -> ArrayFile:
    """Write an array whole, synced."""
    file = Appending(folder, name, array.dtype.name, array.shape[1:])
    try:
        rows = max(1, CHUNK // max(1, array[:1].nbytes))
        for begin in range(0, len(array), rows):
            file.append(np.ascontiguousarray(array[begin : begin + rows]))
            progress(array[begin : begin + rows].nbytes)
        return file.finish()
    except BaseException:
        file.abandon()
        raise


class Appending:
    """A file that grows by rows until it is finished."""

    def __init__(self, folder: Path, name: str, dtype: str, row: tuple[int, ...]) -> None:
        self._path, self._name, self._dtype, self._row = folder / name, name, dtype, row
        self.rows, self._sum, self._at = 0, xxh3_64(), _HEADER
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    @property
    def nbytes(self) -> int:
        """Bytes so far."""
        return self._at

    def append(self, rows: npt.NDArray) -> None:
        """Write rows behind those that are there; C-contiguous."""
        data = rows.reshape(-1).view(np.uint8).data
        self._sum.update(data)
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], self._at + done)
        self._at += done
        self.rows += len(rows)
        if hasattr(os, "posix_fadvise"):  # have it written now, and do not fill the page cache with it
            os.posix_fadvise(self._descriptor, self._at - done, done, os.POSIX_FADV_DONTNEED)

    def finish(self) -> ArrayFile:
        """Write the header, have it all on the disk, and close."""
        shape = (self.rows, *self._row)
        os.pwrite(self._descriptor, header(self._dtype, shape), 0)
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        return ArrayFile(self._name, self._dtype, shape, self._sum.hexdigest())

    def abandon(self) -> None:
        """Close it as it is."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def chunks(root: Path, entry: ArrayFile) -> Iterator[npt.NDArray]:
    """The rows of a file, some at a time, in memory that the next ones overwrite.

    Raises
    ------
    CheckpointError
        If the file is not what the manifest says: at the end, or before.
    """
    path, row = root / entry.file, entry.shape[1:]
    width = int(np.dtype(entry.dtype).itemsize * np.prod(row, dtype=np.int64))
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise CheckpointError(
            f"{path}: {(error.strerror or str(error)).lower()}; the checkpoint is not whole"
        ) from None
    with file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.nbytes:
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
    whole, at = np.empty(entry.shape, entry.dtype), 0
    for rows in chunks(root, entry):
        whole[at : at + len(rows)] = rows
        at += len(rows)
    return whole


def verify(root: Path, entry: ArrayFile) -> int:
    """Check a file from its first to its last bit; its bytes.

    Raises
    ------
    CheckpointError
    """
    for _ in chunks(root, entry):
        pass
    return entry.nbytes


def sync_folder(path: Path) -> None:
    """Have the names in a directory on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

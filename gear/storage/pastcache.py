"""Bytes to the end of a new file, past the page cache where the filesystem lets them.

What goes through the page cache is copied once more, and written back by the kernel when it thinks best: then whoever
runs waits for it. Written directly (`O_DIRECT`), a chunk costs a sixth of the processor's time and is on its way to the
disk when the call returns. Memory, offset and length must be whole pages for that: so bytes are put together in a
`Stage`, and those that do not fill a page wait for the next ones. Nothing here knows arrays.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

PAGE = 4096
"""Bytes that offset and length of a direct write are multiples of: no less than a block of any disk."""


class Stage:
    """Memory in which a chunk is put together; one for all files that a thread writes, one after the other."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def room(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory of `nbytes` at least, at the beginning of a page; uint8[n]. What was in it may be gone."""
        if len(self._memory) < nbytes:
            self._memory = np.frombuffer(mmap.mmap(-1, -(-nbytes // PAGE) * PAGE), np.uint8)
        return self._memory


class PastCache:
    """A file that is made now and grows until it is finished.

    Parameters
    ----------
    path : Path
    stage : Stage
        Shared with other files: between `space` and `advance` nobody else asks it for room.

    Raises
    ------
    FileExistsError, OSError
        If it cannot be made.
    """

    def __init__(self, path: Path, stage: Stage) -> None:
        self._stage, self._written, self._rest = stage, 0, np.empty(0, np.uint8)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._direct = hasattr(os, "O_DIRECT")
        if self._direct:
            try:
                self._set_direct(True)
            except OSError:  # this filesystem writes through the page cache only
                self._direct = False

    @property
    def nbytes(self) -> int:
        """Bytes so far."""
        return self._written + len(self._rest)

    def space(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Where the next bytes of the file are to be put, uint8[nbytes]; as many of them as `advance` says count."""
        begin = len(self._rest)
        memory = self._stage.room(begin + nbytes)
        memory[:begin] = self._rest
        return memory[begin : begin + nbytes]

    def advance(self, nbytes: int) -> None:
        """So many bytes of the space are there: write all pages that are full.

        Raises
        ------
        OSError
            If they cannot be written: the disk is full, say.
        """
        end = len(self._rest) + nbytes
        memory, full = self._stage.room(end), end // PAGE * PAGE
        if full:
            self._write(memory[:full].data, self._written)
            self._written += full
            if not self._direct:
                self._flush(full)
        self._rest = memory[full:end].copy()

    def finish(self, head: bytes) -> None:
        """Write what is left, and `head` over the first bytes; have it all on the disk, and close.

        Raises
        ------
        OSError
        """
        if self._direct:
            self._set_direct(False)
            self._direct = False
        self._write(self._rest.data, self._written)
        self._write(memoryview(head), 0)
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Close it as it is; once more does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, data: memoryview, at: int) -> None:
        done = 0
        while done < len(data):
            try:
                done += os.pwrite(self._descriptor, data[done:], at + done)
            except OSError as error:
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                self._set_direct(False)  # the filesystem promised what it does not do
                self._direct = False

    def _flush(self, nbytes: int) -> None:
        """Have the last bytes on the disk: no more than these wait to be written back, and stand in others' way."""
        os.fdatasync(self._descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, self._written - nbytes, nbytes, os.POSIX_FADV_DONTNEED)

    def _set_direct(self, direct: bool) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        flags = flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)

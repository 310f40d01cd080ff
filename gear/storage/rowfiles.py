"""The rows of a table in a checkpoint: in files of many rows, of which later checkpoints keep what has not changed.

A row is a block, or what a trajectory has once. Each row in use stands in one file, at one place. A file of an earlier
checkpoint is linked, not copied, while at least half of its rows are in use; the others' rows are written again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gear.storage.arrayfile import Appending, ArrayFile, chunks

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.pastcache import Stage

FILE = 256 << 20
"""Bytes of a file, about."""

LEAST_USED = 0.5
"""Share of the rows of a file that must be in use for it to be kept."""


class RowFiles:
    """The row files of one kind of a checkpoint that is being written.

    Parameters
    ----------
    root : Path
        Of the checkpoint.
    prefix : str
        What the names of new files begin with, within it.
    numbers : int
        How many rows may be in use.
    width : int
        Bytes of a row.
    stage : Stage
        Where they are put together.

    Attributes
    ----------
    file, row : int32[numbers], where each row stands; -1 where it does not.
    files : those that are written or linked.
    written : bytes of new files.
    """

    def __init__(self, root: Path, prefix: str, numbers: int, width: int, stage: Stage) -> None:
        self._root, self._prefix, self._width, self._stage = root, prefix, width, stage
        self.file, self.row = np.full(numbers, -1, np.int32), np.full(numbers, -1, np.int32)
        self.files: list[ArrayFile] = []
        self.written = 0
        self._new: Appending | None = None
        self._serial = 0

    def link(
        self,
        before: Path,
        files: list[ArrayFile],
        file: npt.NDArray[np.int32],
        row: npt.NDArray[np.int32],
        same: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        """Take over rows of the checkpoint `before`: bool[numbers], which were.

        files, file, row : what it has.
        same : bool[numbers], those that have not changed.
        """
        taken = np.zeros(len(self.file), np.bool_)
        used = np.bincount(file[same & (file >= 0)], minlength=len(files))
        for k, entry in enumerate(files):
            if not used[k] or used[k] < LEAST_USED * entry.shape[0]:
                continue
            folder = self._root / Path(self._prefix).parent
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = str(Path(self._prefix).parent / Path(entry.file).name)
            try:
                os.link(before / entry.file, self._root / name)
            except OSError:  # another filesystem, too many links, gone: written again
                continue
            mine = same & (file == k)
            self.file[mine], self.row[mine] = len(self.files), row[mine]
            self.files.append(ArrayFile(name, entry.dtype, entry.shape, entry.xxh3))
            taken |= mine
        return taken

    def space(self, n: int) -> npt.NDArray[np.uint8]:
        """Where the next rows are to be put, uint8[n, width]: `append` takes them from there."""
        if self._new is None:
            name = f"{self._prefix}{self._serial}.npy"
            self._new = Appending(self._root, name, "uint8", (self._width,), self._stage)
            self._serial += 1
        return self._new.space(n)

    def append(self, numbers: npt.NDArray) -> None:
        """Write as many rows as there are numbers, the first of the space."""
        assert self._new is not None
        first = self._new.rows
        self._new.append(len(numbers))
        self.file[numbers] = len(self.files)
        self.row[numbers] = first + np.arange(len(numbers))
        if self._new.nbytes >= FILE:
            self._finish()

    def _finish(self) -> None:
        if self._new is not None:
            new, self._new = self._new, None
            try:
                self.files.append(new.finish())
            except BaseException:
                new.abandon()
                raise
            self.written += self.files[-1].nbytes

    def finish(self) -> None:
        """Have all of it on the disk."""
        self._finish()

    def abandon(self) -> None:
        """Close what is open."""
        if self._new is not None:
            self._new.abandon()


def scatter(
    root: Path,
    files: list[ArrayFile],
    file: npt.NDArray[np.int32],
    row: npt.NDArray[np.int32],
    strips: list[npt.NDArray[np.uint8]],
    to: npt.NDArray[np.int64] | None = None,
) -> None:
    """Read every file from its beginning to its end, and put the rows that are in use where they belong.

    Parameters
    ----------
    file, row : int32[numbers]
        Where each row stands; -1 where it does not.
    strips : uint8[n, width] each
        The memory to be filled, by number; together they are as wide as a row.
    to : int64[numbers], optional
        New numbers of all, -1 for those that are not wanted. Default: the same.

    Raises
    ------
    CheckpointError
        If a file is damaged.
    """
    if to is not None:
        file = np.where(to >= 0, file, -1)
    ends = np.cumsum([strip.shape[1] for strip in strips])
    for k, entry in enumerate(files):
        mine = np.flatnonzero(file == k)
        mine = mine[np.argsort(row[mine], kind="stable")]
        places, first, at = row[mine], 0, 0
        for rows in chunks(root, entry):
            end = int(np.searchsorted(places, first + len(rows)))
            if end > at:
                numbers = mine[at:end] if to is None else to[mine[at:end]]
                for strip, part in zip(strips, np.split(rows, ends[:-1], axis=1), strict=True):
                    strip[numbers] = part[places[at:end] - first]
            at, first = end, first + len(rows)

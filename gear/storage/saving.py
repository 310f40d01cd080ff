"""Saving: what one shard holds, as its part of a checkpoint.

`prepare` and `write` run on a thread of their own; `take` is the instant and runs on the owner's, as does `let_go`.
Between `take` and the end of `write` the owner serves everybody.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.errors import CheckpointError
from gear.storage import arrayfile, manifest, shelf
from gear.storage.lineage import line_of
from gear.storage.pace import Pace
from gear.storage.pastcache import Stage
from gear.storage.saving_table import Progress, Subject, TableSave, layout_sum
from gear.storage.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.arrays import Entry
    from gear.storage.table import StoredTable


class Parcel(NamedTuple):
    """Something that was published: immutable."""

    name: str
    version: int
    entries: tuple[Entry, ...]
    offsets: list[int]
    memory: npt.NDArray[np.uint8]


class PartSave:
    """One save of one shard.

    Parameters
    ----------
    directory : Path
        That of all checkpoints.
    token : str
        Of the save.
    shard : int
    subjects : what to save.
    parcels : () -> sequence of Parcel
        What is published, asked at the instant.
    room : see `Snapshot`.
    yields : bool
        Whether it is written at a pace that leaves the processor to others.
    in_vain : () -> bool
        Asked between the pieces: whether nobody will complete it any more, so that it is given up.
    dropped : StoredTable -> bool
        Asked before a table is written and afterwards: whether it was dropped since, so that it is left out.
    """

    def __init__(
        self,
        directory: Path,
        token: str,
        shard: int,
        subjects: Sequence[Subject],
        parcels: Callable[[], Sequence[Parcel]] = list,
        room: int | None = None,
        yields: bool = True,
        in_vain: Callable[[], bool] = lambda: False,
        dropped: Callable[[StoredTable], bool] = lambda stored: False,
    ) -> None:
        self._directory, self.token, self._shard, self._room = directory, token, shard, room
        self._root = shelf.partial(directory, token)
        self._subjects, self._published = list(subjects), parcels
        self._parcels: Sequence[Parcel] = ()
        self.progress = Progress()
        self.snapshots: list[Snapshot] = []
        self._stage, self._yields, self._in_vain, self._dropped = Stage(), yields, in_vain, dropped
        self._pace: Pace | None = None

    def prepare(self) -> None:
        """Make the memory ready that the copies of the directories take.

        Raises
        ------
        CheckpointError
            If the directory cannot be written to.
        """
        folder = shelf.part_folder(self._root, self._shard)
        try:
            arrayfile.make_folder(self._directory)
            if folder.exists():  # only then: it takes the root along, which others may be about to write to
                shelf.abandon(self._root, self._shard)
            folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise _failed(folder, error) from None
        self.snapshots = [Snapshot(subject.stored, self._room) for subject in self._subjects]

    def take(self) -> None:
        """The instant."""
        for snapshot in self.snapshots:
            snapshot.take()
        self._parcels = list(self._published())
        self.progress.total = sum(
            int(np.count_nonzero(s.pending)) * s.layout.full_block_bytes
            + int(np.count_nonzero(s.values_pending)) * s.value_bytes
            + sum(a.nbytes for a in s.arrays.values())
            for s in self.snapshots
        ) + sum(len(parcel.memory) for parcel in self._parcels)

    def let_go(self) -> None:
        """The owner need not look after the snapshots any more."""
        for snapshot in self.snapshots:
            snapshot.let_go()

    def write(self) -> manifest.Part:
        """Write everything; what was saved.

        Raises
        ------
        CheckpointError
            If it cannot be written: the disk is full, say; or if it is in vain. What was written is removed.
        """
        began, self._pace = time.monotonic(), Pace() if self._yields else None
        try:
            before = self._before()
            written, tables = 0, []
            for subject, snapshot in zip(self._subjects, self.snapshots, strict=True):
                if self._dropped(subject.stored):
                    snapshot.forget()
                    continue
                earlier = next((t for t in before.tables if _same_line(t, subject)), None) if before else None
                one = TableSave(self._root, self._shard, subject, snapshot, self._stage, self._advance)
                saved, bytes_ = one.write(before.path if before else None, earlier)
                snapshot.forget()
                if self._dropped(subject.stored):
                    folder = shelf.part_folder(self._root, self._shard) / f"table-{saved.index}"
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                tables.append(saved)
                written += bytes_
            weights = []
            for k, parcel in enumerate(self._parcels):
                weights.append(self._write_parcel(k, parcel))
                written += weights[-1].file.nbytes
            part = manifest.Part(self._shard, tables, weights, written, time.monotonic() - began)
            shelf.write_part(self._root, part)
            return part
        except BaseException as error:
            shelf.abandon(self._root, self._shard)
            if isinstance(error, OSError) and not isinstance(error, CheckpointError):
                raise _failed(self._root, error) from None
            raise

    def _before(self) -> _Earlier | None:
        """The newest complete checkpoint, whose rows may be taken over."""
        for one in reversed(shelf.listed(self._directory)):
            try:
                parts = manifest.load(one.path).parts
            except CheckpointError:
                return None
            return _Earlier(one.path, [table for part in parts for table in part.tables])
        return None

    def _write_parcel(self, k: int, parcel: Parcel) -> manifest.SavedWeights:
        name = f"shard-{self._shard}/weights-{k}.npy"
        file = arrayfile.write(self._root, name, parcel.memory, self._stage, self._advance)
        arrays = [
            manifest.SavedArray(e.name, e.dtype, e.shape, at)
            for e, at in zip(parcel.entries, parcel.offsets, strict=True)
        ]
        return manifest.SavedWeights(parcel.name, parcel.version, arrays, file)

    def _advance(self, nbytes: int, hurry: bool) -> bool:
        if self._in_vain():
            raise CheckpointError("the server ends and saves what it holds then: the checkpoint under way is given up")
        self.progress.done += nbytes
        return self._pace is not None and self._pace.rest(hurry)


class _Earlier(NamedTuple):
    path: Path
    tables: list[manifest.SavedTable]


def _same_line(saved: manifest.SavedTable, subject: Subject) -> bool:
    stored = subject.stored
    return (
        saved.line == line_of(stored.segment)
        and saved.layout == layout_sum(stored.layout.params)
        and (saved.name, saved.index, saved.shard) == (stored.table.name, stored.layout.index, stored.layout.shard)
    )


def _failed(path: Path, error: OSError) -> CheckpointError:
    reason = (error.strerror or str(error)).lower()
    return CheckpointError(
        f"the checkpoint could not be saved: {error.filename or path}: {reason}; nothing of it is kept"
    )

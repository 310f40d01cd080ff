"""Saving one table: what has not changed is linked, the rest is read from the snapshot and written.

It runs on a thread of its own, while the table's owner serves everybody.
"""

from __future__ import annotations

import logging
import secrets
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.errors import CheckpointError
from gear.storage import arrayfile, manifest
from gear.storage import fields as f
from gear.storage.lineage import line_of
from gear.storage.rowfiles import RowFiles
from gear.storage.snapshot import rows_in
from gear.toml import to_toml

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.schema import Table
    from gear.storage.layout import Layout
    from gear.storage.pastcache import Stage
    from gear.storage.snapshot import Snapshot
    from gear.storage.table import StoredTable

PIECES = 4
"""Pieces that are written before the order is thought over: it takes the interpreter for a tenth of a millisecond. With
a rest in between it is thought over after each, as much may be leased during a rest."""

logger = logging.getLogger(__name__)


class Subject(NamedTuple):
    """A table to be saved; see `manifest.SavedTable`."""

    stored: StoredTable
    whole: Table
    declaration: bytes
    part: int
    parts: int
    shown: bool


@dataclass
class Progress:
    """How far a save has come: bytes to be looked at, bytes done, when it began (`time.monotonic()`)."""

    total: int = 0
    done: int = 0
    began: float = field(default_factory=time.monotonic)


def layout_sum(params: npt.NDArray[np.int64]) -> int:
    """Where everything of a table lies, and how it is served, as one number."""
    return zlib.crc32(params.tobytes())


class TableSave:
    """The save of one table in the checkpoint being made at `root`.

    `advance` is told of bytes as they are done, and whether the next ones are to follow at once; it says whether it
    rested.
    """

    def __init__(
        self,
        root: Path,
        shard: int,
        subject: Subject,
        snapshot: Snapshot,
        stage: Stage,
        advance: Callable[[int, bool], bool],
    ) -> None:
        self._root, self._subject, self._snapshot, self._advance = root, subject, snapshot, advance
        self._layout, self._stage = snapshot.layout, stage
        self._folder = f"shard-{shard}/table-{self._layout.index}"
        unique = secrets.token_hex(8)  # linked files of earlier checkpoints keep their names beside these
        layout, rows, values = self._layout, f"{self._folder}/rows-{unique}-", f"{self._folder}/values-{unique}-"
        self._blocks = RowFiles(root, rows, layout.blocks, layout.full_block_bytes, stage)
        self._values = RowFiles(root, values, layout.slots, snapshot.value_bytes, stage)

    def write(self, before: Path | None, earlier: manifest.SavedTable | None) -> tuple[manifest.SavedTable, int]:
        """What was saved, and the bytes of new files. `earlier`: of checkpoint `before`, on the same line."""
        snapshot, subject, layout = self._snapshot, self._subject, self._layout
        try:
            if before is not None and earlier is not None:
                try:
                    self._take_over(before, earlier)
                except CheckpointError as error:  # what is damaged is not built upon
                    logger.warning("everything is written anew, as the checkpoint before is damaged: %s", error)
            self._write_values()
            self._write_blocks()
            left_out = snapshot.leave_out()
            self._blocks.finish()
            self._values.finish()
        finally:
            self._blocks.abandon()
            self._values.abandon()
        slots = snapshot.records("slots")
        lost_blocks = snapshot.rows >= 0
        lost_blocks &= snapshot.lost[np.maximum(snapshot.records("blocks")[:, f.SLOT], 0)]
        self._blocks.file[lost_blocks] = self._blocks.row[lost_blocks] = -1
        self._values.file[snapshot.lost] = self._values.row[snapshot.lost] = -1
        arrays = dict(snapshot.arrays)
        arrays |= {"block_file": self._blocks.file, "block_row": self._blocks.row}
        if snapshot.value_bytes:
            arrays |= {"value_file": self._values.file, "value_row": self._values.row}
        files = {name: self._write_array(name, array) for name, array in arrays.items()}
        there = snapshot.stored_slots & ~snapshot.lost
        saved = manifest.SavedTable(
            name=layout.table.name,
            declaration=subject.declaration.hex(),
            toml=to_toml([subject.whole]),
            index=layout.index,
            shard=layout.shard,
            part=subject.part,
            parts=subject.parts,
            shown=subject.shown,
            line=line_of(subject.stored.segment),
            layout=layout_sum(layout.params),
            block_steps=layout.block_steps,
            block_bytes=layout.full_block_bytes,
            columns=_geometry(layout),
            arrays=files,
            rows=self._blocks.files,
            values=self._values.files,
            trajectories=int(there.sum()),
            steps=int(slots[there, f.LENGTH].sum()),
            left_out=left_out,
        )
        written = sum(file.nbytes for file in files.values()) + self._blocks.written + self._values.written
        return saved, written

    def _write_array(self, name: str, array: np.ndarray) -> arrayfile.ArrayFile:
        fields = self._layout.fields_of(name)
        array = array.reshape(-1, fields) if fields > 1 else array
        return arrayfile.write(self._root, f"{self._folder}/{name}.npy", array, self._stage, self._advance)

    def _take_over(self, before: Path, earlier: manifest.SavedTable) -> None:
        """Link the files of the checkpoint before, as far as their rows have not changed."""
        snapshot, layout = self._snapshot, self._layout

        def of(name: str) -> np.ndarray:
            return arrayfile.read(before, earlier.arrays[name])

        slots, blocks = snapshot.records("slots"), snapshot.records("blocks")
        slots_then, blocks_then = of("slots"), of("blocks")
        same = (snapshot.rows > 0) & (rows_in(layout, slots_then, blocks_then) == snapshot.rows)
        same &= blocks[:, f.GENERATION] == blocks_then[:, f.GENERATION]
        same &= blocks[:, f.SLOT] == blocks_then[:, f.SLOT]
        unchanged = slots[:, f.ORDER] == slots_then[:, f.ORDER]
        if layout.late:
            changes, changes_then = snapshot.records("late")[:, f.LATE_CHANGES], of("late")[:, f.LATE_CHANGES]
            unchanged &= changes == changes_then
            same &= unchanged[np.maximum(blocks[:, f.SLOT], 0)]
        taken = self._blocks.link(before, earlier.rows, of("block_file"), of("block_row"), same)
        self._pass(taken, snapshot.pending, layout.full_block_bytes)
        if snapshot.value_bytes:
            closed = (slots[:, f.STATE] == f.CLOSED) & (slots_then[:, f.STATE] == f.CLOSED) & unchanged
            file, row = of("value_file"), of("value_row")
            taken = self._values.link(before, earlier.values, file, row, closed)
            self._pass(taken, snapshot.values_pending, snapshot.value_bytes)

    def _pass(self, taken: npt.NDArray[np.bool_], pending: npt.NDArray[np.bool_], width: int) -> None:
        pending[taken] = False
        self._advance(int(taken.sum()) * width, True)

    def _write_values(self) -> None:
        snapshot = self._snapshot
        if not snapshot.value_bytes:
            return
        order, n = snapshot.removal_order(), max(1, arrayfile.PIECE // snapshot.value_bytes)
        for begin in range(0, len(order), n):
            slots = order[begin : begin + n]
            slots = slots[snapshot.values_pending[slots]]
            self._write_rows(slots, snapshot.read_values, self._values)

    def _write_blocks(self) -> None:
        """Blocks that are about to be leased first, then those of trajectories that are about to be evicted."""
        snapshot = self._snapshot
        rank = np.zeros(self._layout.slots, np.int64)
        slots = snapshot.removal_order()
        rank[slots] = np.arange(len(slots))
        blocks = snapshot.records("blocks")
        order = np.flatnonzero(snapshot.pending)
        order = order[np.lexsort((blocks[order, f.ORDINAL], rank[blocks[order, f.SLOT]]))]
        n = max(1, arrayfile.PIECE // self._layout.full_block_bytes)
        at, rested = 0, False
        while True:
            many = n if rested else PIECES * n
            chosen, hurry = snapshot.urgent(many)
            if not hurry:  # else a rest for each few blocks that are evicted could be all that is done for hours
                rest = order[at : at + many - len(chosen)]
                at += len(rest)
                chosen = np.concatenate((chosen, rest[~np.isin(rest, chosen)]))
                if not len(rest) and not len(chosen):
                    return
            for first in range(0, len(chosen), n):
                piece = chosen[first : first + n]
                rested = self._write_rows(piece[snapshot.pending[piece]], snapshot.read, self._blocks, hurry)

    def _write_rows(
        self,
        numbers: npt.NDArray,
        read: Callable[[npt.NDArray, npt.NDArray[np.uint8]], npt.NDArray[np.bool_]],
        files: RowFiles,
        hurry: bool = False,
    ) -> bool:
        """Write rows that are still there; whether it rested after that."""
        if not len(numbers):
            return False
        rows = files.space(len(numbers))
        there = read(numbers, rows)
        if not there.all():
            numbers = numbers[there]
            rows[: len(numbers)] = rows[there]
        if len(numbers):
            files.append(numbers)
        return self._advance(rows.nbytes, hurry)


def _geometry(layout: Layout) -> list[manifest.Geometry]:
    """Where each column lies: per-step ones in a block, the others in the row of a trajectory."""
    found, at = [], 0
    steps = [p for p in layout.placements.values() if p.column.per == "step"]
    for place in [*steps, *layout.once]:
        column, once = place.column, place.column.per != "step"
        offset, stride = (at, place.width) if once else (layout.offset_of(place), place.stride)
        at += place.width if once else 0
        found.append(
            manifest.Geometry(column.name, column.per, column.dtype, tuple(column.shape), offset, stride, place.width)
        )
    return found

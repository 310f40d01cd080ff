"""Whether the parts of a checkpoint fit together: what it says of its files, its files and the table.

A checksum tells that a file is what was written, not that who wrote it was right. Whatever is read is a number that is
used as a place somewhere; here it is made sure, before anything is filled, that it is one. What is inside a directory
(`slots`, `blocks`) is checked as after a crash where a shard takes it up, and here where it is used without that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gear.errors import CheckpointError
from gear.storage import fields as f
from gear.storage.kept import kept_regions

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.arrayfile import ArrayFile
    from gear.storage.layout import Layout
    from gear.storage.manifest import SavedTable

_FAULTS = (LookupError, ValueError, TypeError, ArithmeticError, MemoryError)


@contextlib.contextmanager
def reading(root: Path, table: str) -> Iterator[None]:
    """Whatever does not fit in here is the checkpoint's fault.

    Raises
    ------
    CheckpointError
    """
    try:
        yield
    except _FAULTS as error:
        if isinstance(error, CheckpointError):
            raise
        raise unfit(root, table, f"{type(error).__name__}: {error}") from error


def unfit(root: Path, table: str, why: str) -> CheckpointError:
    """The error to raise."""
    return CheckpointError(f"{root}, table {table!r}: its parts do not fit together ({why}): the checkpoint is damaged")


def check_table(root: Path, table: SavedTable, layout: Layout) -> None:
    """A table's files are those that its layout asks for.

    Raises
    ------
    CheckpointError
        Naming the first one that is not.
    """
    expected = {
        name: (np.dtype(layout.regions[name].dtype).name, count) for name, count in kept_regions(layout).items()
    }
    places = [("block_file", layout.blocks), ("block_row", layout.blocks)]
    places += [("value_file", layout.slots), ("value_row", layout.slots)] if layout.once else []
    expected |= {name: ("int32", count) for name, count in places}
    if table.arrays.keys() != expected.keys():
        differing = ", ".join(sorted(table.arrays.keys() ^ expected.keys()))
        raise unfit(root, table.name, f"expected arrays {', '.join(sorted(expected))}; missing or unknown: {differing}")
    for name, (dtype, count) in expected.items():
        entry = table.arrays[name]
        flat = name.endswith(("_file", "_row")) and len(entry.shape) != 1
        if (entry.dtype, entry.count) != (dtype, count) or flat:
            got = f"{entry.dtype}{list(entry.shape)}"
            raise unfit(root, table.name, f"array {name}: expected {count} numbers {dtype}, got {got}")
    for entries, width in ((table.rows, layout.full_block_bytes), (table.values, sum(p.width for p in layout.once))):
        check_rows(root, table.name, entries, width)


def check_rows(root: Path, table: str, entries: list[ArrayFile], width: int) -> None:
    """Files of rows are uint8[n, width].

    Raises
    ------
    CheckpointError
    """
    for entry in entries:
        if entry.dtype != "uint8" or len(entry.shape) != 2 or entry.shape[1] != width:
            got = f"{entry.dtype}{list(entry.shape)}"
            raise unfit(root, table, f"{entry.file}: expected uint8[n, {width}], got {got}")


def check_places(
    root: Path, table: str, entries: list[ArrayFile], file: npt.NDArray[np.int32], row: npt.NDArray[np.int32]
) -> None:
    """Each number stands in one of these files, at a row that this has, or nowhere (file -1).

    Raises
    ------
    CheckpointError
    """
    if file.ndim != 1 or file.shape != row.shape or file.dtype != np.int32 or row.dtype != np.int32:
        raise unfit(root, table, "files and rows are int32[n]")
    lengths = np.array([*(entry.shape[0] for entry in entries), 0], np.int64)
    if not ((file >= -1) & (file < len(entries))).all():
        raise unfit(root, table, f"numbers of files beyond the {len(entries)} that there are")
    there = file >= 0
    if not ((row[there] >= 0) & (row[there] < lengths[file[there]])).all():
        raise unfit(root, table, "rows beyond the ends of their files")


def check_directory(root: Path, table: SavedTable, layout: Layout, arrays: Mapping[str, np.ndarray]) -> None:
    """The chains of what is stored are chains: of blocks of its own, in order, as many as its rows take.

    Raises
    ------
    CheckpointError
    """
    slots, blocks = arrays["slots"], arrays["blocks"]
    if slots.ndim != 2 or blocks.ndim != 2:
        raise unfit(root, table.name, "slots and blocks are tables of records")
    state, lengths = slots[:, f.STATE], slots[:, f.LENGTH]
    for slot in np.flatnonzero(((state == f.OPEN) & (lengths != 0)) | (state == f.CLOSED)).tolist():
        length = int(lengths[slot])
        rows = length + bool(slots[slot, f.FLAGS] & f.HAS_FINAL)
        block, last, n = int(slots[slot, f.FIRST]), -1, layout.blocks_for(rows)
        for ordinal in range(n if 0 < length <= layout.max_length else 0):
            if not 0 <= block < len(blocks) or tuple(blocks[block, [f.SLOT, f.ORDINAL]]) != (slot, ordinal):
                break
            last, block = block, int(blocks[block, f.NEXT])
        else:
            if block == -1 and last >= 0 and last == int(slots[slot, f.LAST]):
                continue
        raise unfit(root, table.name, f"the blocks of trajectory {slot} are no chain for its {length} rows")

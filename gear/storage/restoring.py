"""Restoring: a checkpoint's part of a shard becomes the segments that a shard takes up as if it had died over them.

What is made is the memory at the instant of the save, without what belonged to clients of then: leases, pins, claims.
`gear.storage.recovery` makes the rest. A segment counts as finished when all of the shard's are.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gear import schema
from gear.errors import CheckpointError, GearError
from gear.storage import arrayfile, format, memory
from gear.storage import fields as f
from gear.storage.journal import stamp
from gear.storage.layout import Layout
from gear.storage.lineage import finish, hide, set_line
from gear.storage.manifest import Manifest, Part, SavedTable, SavedWeights
from gear.storage.rowfiles import scatter
from gear.storage.saving_table import layout_sum

if TYPE_CHECKING:
    import numpy.typing as npt


def part_of(manifest: Manifest, shard: int) -> Part:
    """What a shard has saved."""
    return next(part for part in manifest.parts if part.shard == shard)


def layout_of(table: SavedTable) -> Layout:
    """The layout that a table had, as this release makes it.

    Raises
    ------
    CheckpointError
        If its declaration cannot be read here, or it is laid out otherwise.
    """
    from gear.parts import is_spread, part

    try:
        whole = schema.from_bytes(bytes.fromhex(table.declaration))
        mine = part(whole, table.part, table.parts)
        layout = Layout(mine, table.index, table.shard, spread=is_spread(whole, table.parts))
    except (GearError, ValueError) as error:
        raise CheckpointError(f"table {table.name!r}: its declaration cannot be read here ({error})") from None
    if layout_sum(layout.params) != table.layout:
        raise CheckpointError(
            f"table {table.name!r} is laid out otherwise by this release than by the one that saved it; restore it "
            "with that release, or insert it anew with `gear checkpoint restore`"
        )
    return layout


def restore(root: Path, part: Part, folder: Path, same_line: bool, limit: int | None = None) -> None:
    """Make the segments of a shard in its directory from what it has saved in checkpoint `root`.

    Parameters
    ----------
    same_line : bool
        Whether nothing was saved after this checkpoint, see `lineage`.
    limit : int, optional
        Bytes that they may take.

    Raises
    ------
    CheckpointError
        If a file is damaged or missing, naming it: no segment counts as finished then.
    InsufficientMemory
    """
    layouts = [layout_of(table) for table in part.tables]
    total = sum(layout.nbytes for layout in layouts)
    if limit is not None and total > limit:
        from gear.errors import InsufficientMemory

        raise InsufficientMemory(
            f"the tables of {root} take {memory.size_text(total)} ({total} bytes) on shard {part.shard}, but --memory "
            f"allows {memory.size_text(limit)} ({limit} bytes) there; raise it"
        )
    made: list[npt.NDArray[np.uint8]] = []
    for table, layout in zip(part.tables, layouts, strict=True):
        path = folder / f"table-{table.index}"
        path.unlink(missing_ok=True)
        segment = memory.create(path, layout.nbytes, f"table {table.name!r}")
        whole = bytes.fromhex(table.declaration)
        format.start(segment, layout, format.Origin(whole, table.part, table.parts))
        hide(segment)
        if table.shown:
            format.show(segment)
        set_line(segment, table.line if same_line else 0)
        fill(root, table, layout, segment)
        made.append(segment)
    for segment in made:
        finish(segment)


def fill(root: Path, table: SavedTable, layout: Layout, segment: npt.NDArray[np.uint8]) -> None:
    """Fill the memory of an empty table with what was saved.

    Raises
    ------
    CheckpointError
    """
    own = {"block_file", "block_row", "value_file", "value_row"}
    for name, entry in table.arrays.items():
        if name in own:
            continue
        region = layout.regions.get(name)
        count = int(np.prod(entry.shape, dtype=np.int64))
        if region is None or np.dtype(region.dtype) != np.dtype(entry.dtype) or count > region.count:
            raise CheckpointError(f"{root / entry.file} does not fit table {table.name!r}: the manifest is damaged")
        at = region.offset
        for rows in arrayfile.chunks(root, entry):
            data = rows.reshape(-1).view(np.uint8)
            segment[at : at + len(data)] = data
            at += len(data)
    arena = layout.regions["arena"]
    blocks = segment[arena.offset : arena.offset + arena.nbytes].reshape(layout.blocks, layout.block_bytes)

    def put(numbers: npt.NDArray, rows: npt.NDArray[np.uint8]) -> None:
        blocks[numbers] = rows

    place = arrayfile.read(root, table.arrays["block_file"]), arrayfile.read(root, table.arrays["block_row"])
    scatter(root, table.rows, *place, arrayfile.chunks, put)
    if "value_file" in table.arrays:
        base = layout.regions["trajectories"].offset

        def put_values(numbers: npt.NDArray, rows: npt.NDArray[np.uint8]) -> None:
            at = 0
            for p in layout.once:
                strip = np.lib.stride_tricks.as_strided(
                    segment[base + p.offset :], (layout.slots, p.width), (p.stride, 1)
                )
                strip[numbers] = rows[:, at : at + p.width]
                at += p.width

        place = arrayfile.read(root, table.arrays["value_file"]), arrayfile.read(root, table.arrays["value_row"])
        scatter(root, table.values, *place, arrayfile.chunks, put_values)
    _forget_clients(layout, segment)


def _forget_clients(layout: Layout, segment: npt.NDArray[np.uint8]) -> None:
    """Leases and pins are over; the writers' open trajectories wait for them as for any who fell silent."""
    slots, blocks = layout.view(segment, "slots"), layout.view(segment, "blocks")
    state = slots[:, f.STATE]
    void = (state == f.LEASED) | (state == f.EVICTED)
    slots[void, f.STATE], slots[void, f.WRITER] = f.FREE, -1
    slots[:, f.PINS] = (state == f.OPEN) & (slots[:, f.WRITER] != -1)
    blocks[:, f.OWNER] = -1
    now = time.time_ns()
    for slot in np.flatnonzero((state == f.OPEN) & (slots[:, f.WRITER] == f.TABLE)).tolist():
        slots[slot, f.TOUCHED] = now  # `open_ttl` does not run while nobody could append
        stamp(segment, layout.params, slot)


def weights(root: Path, saved: SavedWeights) -> npt.NDArray[np.uint8]:
    """The bytes of what was published, checked.

    Raises
    ------
    CheckpointError
    """
    return arrayfile.read(root, saved.file)

"""Restoring: a checkpoint's part of a shard becomes the segments that a shard takes up as if it had died over them.

What is made is the memory at the instant of the save, without what belonged to clients of then: leases, pins, claims.
`gear.storage.recovery` makes the rest. A segment counts as finished when all of the shard's are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear import schema
from gear.errors import CheckpointError, GearError, InsufficientMemory
from gear.parts import holders, is_spread
from gear.parts import part as part_
from gear.storage import arrayfile, format, memory, replanting
from gear.storage import fields as f
from gear.storage.journal import stamp
from gear.storage.layout import Layout
from gear.storage.lineage import finish, hide, set_line
from gear.storage.manifest import Manifest, Part, SavedTable, SavedWeights
from gear.storage.rowfiles import scatter
from gear.storage.saving_table import layout_sum

if TYPE_CHECKING:
    import numpy.typing as npt

logger = logging.getLogger(__name__)


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
    try:
        whole = schema.from_bytes(bytes.fromhex(table.declaration))
        mine = part_(whole, table.part, table.parts)
        layout = Layout(mine, table.index, table.shard, spread=is_spread(whole, table.parts))
    except (GearError, ValueError) as error:
        raise CheckpointError(f"table {table.name!r}: its declaration cannot be read here ({error})") from None
    if layout_sum(layout.params) != table.layout:
        raise CheckpointError(
            f"table {table.name!r} is laid out otherwise by this release than by the one that saved it; restore it "
            "with that release, or insert it anew with `gear checkpoint restore`"
        )
    return layout


class Piece(NamedTuple):
    """What a shard makes of a table: its layout here, how it is filled, and what its header says."""

    table: SavedTable
    layout: Layout
    origin: format.Origin
    line: int
    fill: Callable[[npt.NDArray[np.uint8]], None]


def pieces(root: Path, manifest: Manifest, shard: int, shards: int, same_line: bool) -> list[Piece]:
    """What falls to a shard of a server of so many; `same_line`: nothing was saved after this checkpoint.

    Raises
    ------
    CheckpointError
    """
    if manifest.shards == shards:
        return [_again(root, table, layout_of(table), same_line) for table in part_of(manifest, shard).tables]
    found, by_name = [], dict[str, list[SavedTable]]()
    for part in manifest.parts:
        for table in part.tables:
            by_name.setdefault(table.name, []).append(table)
    for index, (name, saved) in enumerate(by_name.items()):
        whole = schema.from_bytes(bytes.fromhex(saved[0].declaration))
        there = holders(whole, shards)
        if len(saved) != saved[0].parts:
            raise CheckpointError(f"table {name!r} has {len(saved)} of its {saved[0].parts} parts in {root}")
        if shard not in there:
            continue
        saved = sorted(saved, key=lambda table: table.part)
        number = there.index(shard)
        layouts = [
            Layout(part_(whole, k, len(there)), index, there[k], spread=is_spread(whole, len(there)))
            for k in range(len(there))
        ]
        layout = layouts[number]
        if len(there) == len(saved):  # the same parts elsewhere
            layout_of(saved[number])
            found.append(_again(root, saved[number], layout, False))
        else:
            found.append(_anew(root, saved, layouts, number))
    return found


def _again(root: Path, table: SavedTable, layout: Layout, same_line: bool) -> Piece:
    origin = format.Origin(bytes.fromhex(table.declaration), table.part, table.parts)
    line = table.line if same_line else 0
    return Piece(table, layout, origin, line, lambda segment: fill(root, table, layout, segment))


def _anew(root: Path, saved: list[SavedTable], layouts: list[Layout], number: int) -> Piece:
    def plant(segment: npt.NDArray[np.uint8]) -> None:
        sources = [replanting.load(root, table, layout_of(table)) for table in saved]
        plans, left_out = replanting.deal(sources, layouts)
        replanting.plant(root, sources, plans, number, layouts[number], segment)
        if left_out and number == 0:
            logger.warning(
                "table %s: %d trajectories, the oldest, have no place on %d shards and are left out",
                saved[0].name, left_out, len(layouts),
            )  # fmt: skip

    origin = format.Origin(bytes.fromhex(saved[0].declaration), number, len(layouts))
    return Piece(saved[0], layouts[number], origin, 0, plant)


def restore(root: Path, found: list[Piece], folder: Path, limit: int | None = None) -> None:
    """Make the segments of a shard in its directory.

    Parameters
    ----------
    found : see `pieces`.
    limit : int, optional
        Bytes that they may take.

    Raises
    ------
    CheckpointError
        If a file is damaged or missing, naming it: no segment counts as finished then.
    InsufficientMemory
    """
    total = sum(piece.layout.nbytes for piece in found)
    if limit is not None and total > limit:
        raise InsufficientMemory(
            f"the tables of {root} take {memory.size_text(total)} ({total} bytes) on a shard, but --memory allows "
            f"{memory.size_text(limit)} ({limit} bytes) there; raise it"
        )
    made: list[npt.NDArray[np.uint8]] = []
    for piece in found:
        path = folder / f"table-{piece.layout.index}"
        path.unlink(missing_ok=True)
        segment = memory.create(path, piece.layout.nbytes, f"table {piece.table.name!r}")
        format.start(segment, piece.layout, piece.origin)
        hide(segment)
        if piece.table.shown:
            format.show(segment)
        set_line(segment, piece.line)
        piece.fill(segment)
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
    place = arrayfile.read(root, table.arrays["block_file"]), arrayfile.read(root, table.arrays["block_row"])
    scatter(root, table.rows, *place, [blocks])
    if "value_file" in table.arrays:
        place = arrayfile.read(root, table.arrays["value_file"]), arrayfile.read(root, table.arrays["value_row"])
        scatter(root, table.values, *place, layout.strips(segment))
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

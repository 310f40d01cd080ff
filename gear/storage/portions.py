"""What falls to one shard of a checkpoint: which tables, as they were saved, dealt out anew, or moved to the host."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gear import schema
from gear.errors import CheckpointError
from gear.parts import holders, is_spread
from gear.parts import part as part_
from gear.storage import fitting, format, replanting
from gear.storage.layout import Layout
from gear.storage.manifest import Manifest, Part, SavedTable
from gear.storage.putting_back import on_host
from gear.storage.restoring import fill, layout_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gear.devices.arena import Arena

logger = logging.getLogger(__name__)


def part_of(manifest: Manifest, shard: int) -> Part:
    """What a shard has saved."""
    return next(part for part in manifest.parts if part.shard == shard)


class Piece(NamedTuple):
    """What a shard makes of a table: its layout here, how it is filled, and what its header says."""

    table: SavedTable
    layout: Layout
    origin: format.Origin
    line: int
    fill: Callable[[npt.NDArray[np.uint8], Arena | None], None]


class Wish(NamedTuple):
    """What is wanted of a checkpoint, where not all of it as it was saved.

    to_host : columns that were on a device lie on the host from now on.
    beside : tables that are there and their numbers, and numbers that are not to be used: only what has columns on a
        device and is not among them, for device memory is not kept. None: everything.
    """

    to_host: bool = False
    beside: tuple[frozenset[str], frozenset[int]] | None = None


EVERYTHING = Wish()


def pieces(
    root: Path, manifest: Manifest, shard: int, shards: int, same_line: bool, wish: Wish = EVERYTHING
) -> list[Piece]:
    """What falls to a shard of a server of so many; `same_line`: nothing was saved after this checkpoint.

    Raises
    ------
    CheckpointError
    """
    if wish.beside is not None:
        return _beside(pieces(root, manifest, shard, shards, False, wish._replace(beside=None)), wish)
    if manifest.shards == shards:
        tables = part_of(manifest, shard).tables
        if len({table.index for table in tables}) != len(tables) or any(table.shard != shard for table in tables):
            raise CheckpointError(f"{root}: tables of shard {shard} are there twice, or are another's; it is damaged")
        return [
            _on_host(root, manifest, table)
            if wish.to_host and _on_device(table)
            else _again(root, table, layout_of(table), same_line)
            for table in tables
        ]
    found, by_name = [], dict[str, list[SavedTable]]()
    for part in manifest.parts:
        for table in part.tables:
            by_name.setdefault(table.name, []).append(table)
    for index, (name, saved) in enumerate(by_name.items()):
        layout_of(saved[0])
        whole = schema.from_bytes(bytes.fromhex(saved[0].declaration))
        moved = wish.to_host and _on_device(saved[0])
        whole = on_host(whole) if moved else whole
        there = holders(whole, shards)
        if sorted(table.part for table in saved) != list(range(saved[0].parts)):
            raise CheckpointError(f"table {name!r} has {len(saved)} of its {saved[0].parts} parts in {root}")
        if len({table.declaration for table in saved}) > 1:
            raise CheckpointError(f"the parts of table {name!r} in {root} are declared differently: it is damaged")
        if shard not in there:
            continue
        saved = sorted(saved, key=lambda table: table.part)
        number = there.index(shard)
        layouts = [
            Layout(part_(whole, k, len(there)), index, there[k], spread=is_spread(whole, len(there)))
            for k in range(len(there))
        ]
        layout = layouts[number]
        if len(there) == len(saved) and not moved:  # the same parts elsewhere
            layout_of(saved[number])
            found.append(_again(root, saved[number], layout, False))
        else:
            found.append(_anew(root, saved, layouts, number, schema.to_bytes(whole)))
    return found


def _again(root: Path, table: SavedTable, layout: Layout, same_line: bool, whole: bytes | None = None) -> Piece:
    origin = format.Origin(whole or bytes.fromhex(table.declaration), table.part, table.parts)
    line = table.line if same_line else 0
    return Piece(table, layout, origin, line, lambda segment, arena: fill(root, table, layout, segment, arena))


def _on_device(table: SavedTable) -> bool:
    return any(c.placement == "device" for c in schema.from_bytes(bytes.fromhex(table.declaration)).columns)


def _on_host(root: Path, manifest: Manifest, table: SavedTable) -> Piece:
    """A table whose columns on a device come to the host: as it was, or dealt out anew where it has other blocks."""
    whole = on_host(schema.from_bytes(bytes.fromhex(table.declaration)))
    spread, parts = is_spread(whole, table.parts), range(table.parts)
    mine = Layout(part_(whole, table.part, table.parts), table.index, table.shard, spread=spread)
    then = layout_of(table)
    if (mine.blocks, mine.slots) == (then.blocks, then.slots):
        return _again(root, table, mine, False, schema.to_bytes(whole))
    saved = sorted((t for part in manifest.parts for t in part.tables if t.name == table.name), key=lambda t: t.part)
    layouts = [Layout(part_(whole, k, table.parts), saved[k].index, saved[k].shard, spread=spread) for k in parts]
    return _anew(root, saved, layouts, table.part, schema.to_bytes(whole))


def _beside(found: list[Piece], wish: Wish) -> list[Piece]:
    """Those that have columns on a device and are not there, under numbers that are free."""
    assert wish.beside is not None
    names, numbers = wish.beside[0], set(wish.beside[1])
    kept = []
    for piece in found:
        if piece.table.name in names or not _on_device(piece.table):
            continue
        number = next(n for n in range(256) if n not in numbers)
        numbers.add(number)
        piece.layout.renumber(number)
        kept.append(piece)
    return kept


def _anew(root: Path, saved: list[SavedTable], layouts: list[Layout], number: int, whole: bytes) -> Piece:
    def plant(segment: npt.NDArray[np.uint8], arena: Arena | None) -> None:
        sources = [replanting.load(root, table, layout_of(table)) for table in saved]
        with fitting.reading(root, saved[0].name):
            plans, left_out = replanting.deal(sources, layouts)
            replanting.plant(root, sources, plans, number, layouts[number], segment, arena)
        if left_out and number == 0:
            logger.warning(
                "table %s: %d trajectories, the oldest, have no place on %d shards and are left out",
                saved[0].name, left_out, len(layouts),
            )  # fmt: skip

    origin = format.Origin(whole, number, len(layouts))
    return Piece(saved[0], layouts[number], origin, 0, plant)

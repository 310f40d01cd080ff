"""Restoring: a checkpoint's part of a shard becomes the segments that a shard takes up as if it had died over them.

What is made is the memory at the instant of the save, without what belonged to clients of then: leases, pins, claims.
`gear.storage.recovery` makes the rest. A segment counts as finished when all of the shard's are.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gear import schema
from gear.errors import CheckpointError, DeviceError, GearError, InsufficientMemory
from gear.parts import is_spread
from gear.parts import part as part_
from gear.storage import arrayfile, fitting, format, memory
from gear.storage import fields as f
from gear.storage.journal import stamp
from gear.storage.layout import Layout
from gear.storage.lineage import finish, hide, set_line
from gear.storage.manifest import SavedTable, SavedWeights
from gear.storage.putting_back import places
from gear.storage.rowfiles import scatter
from gear.storage.saving_table import layout_sum

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.devices.arena import Arena
    from gear.storage.portions import Piece

logger = logging.getLogger(__name__)


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


def restore(
    root: Path, found: list[Piece], folder: Path, limit: int | None = None, gpu: str = "", there: int = 0
) -> dict[int, Arena]:
    """Make the segments of a shard in its directory; the arenas of columns on its device, by the tables' numbers.

    Parameters
    ----------
    found : see `pieces`.
    limit : int, optional
        Bytes that they may take.
    gpu, there : UUID of the shard's device, "" without one, and bytes that they may take of it.

    Raises
    ------
    CheckpointError
        If a file is damaged or missing, naming it: no segment counts as finished then.
    InsufficientMemory, DeviceError
    """
    _check_device(root, found, gpu, there)
    total = sum(piece.layout.nbytes for piece in found)
    if limit is not None and total > limit:
        raise InsufficientMemory(
            f"the tables of {root} take {memory.size_text(total)} ({total} bytes) on a shard, but --memory allows "
            f"{memory.size_text(limit)} ({limit} bytes) there; raise it"
        )
    made: list[npt.NDArray[np.uint8]] = []
    arenas: dict[int, Arena] = {}
    for piece in found:
        path = folder / f"table-{piece.layout.index}"
        path.unlink(missing_ok=True)
        segment = memory.create(path, piece.layout.nbytes, f"table {piece.table.name!r}")
        format.start(segment, piece.layout, piece.origin)
        hide(segment)
        if piece.table.shown:
            format.show(segment)
        set_line(segment, piece.line)
        arena = None
        if piece.layout.device_bytes:
            from gear.devices.arena import Arena

            arena = arenas[piece.layout.index] = Arena(piece.layout, gpu)
        piece.fill(segment, arena)
        made.append(segment)
    for segment in made:
        finish(segment)
    return arenas


def _check_device(root: Path, found: list[Piece], gpu: str, there: int) -> None:
    """Refuse columns on a device where there is none, or too little of it."""
    names = [piece.table.name for piece in found if piece.layout.device_bytes]
    total = sum(piece.layout.device_bytes for piece in found)
    if names and not gpu:
        raise DeviceError(
            f"tables {', '.join(names)} of {root} have columns on a GPU, but this server runs on the CPU; start "
            "it with --devices 0, or with --restore-to-host to have them on the host from now on"
        )
    if total > there:
        raise InsufficientMemory(
            f"the tables of {root} take {memory.size_text(total)} ({total} bytes) of a GPU, but --device-memory allows "
            f"{memory.size_text(there)} ({there} bytes); raise it, or add --restore-to-host"
        )


def fill(
    root: Path, table: SavedTable, layout: Layout, segment: npt.NDArray[np.uint8], arena: Arena | None = None
) -> None:
    """Fill the memory of an empty table with what was saved.

    Raises
    ------
    CheckpointError
    """
    fitting.check_table(root, table, layout_of(table))
    for name, entry in table.arrays.items():
        if name in ("block_file", "block_row", "value_file", "value_row"):
            continue
        at = layout.regions[name].offset
        for rows in arrayfile.chunks(root, entry):
            data = rows.reshape(-1).view(np.uint8)
            segment[at : at + len(data)] = data
            at += len(data)
    place = arrayfile.read(root, table.arrays["block_file"]), arrayfile.read(root, table.arrays["block_row"])
    fitting.check_places(root, table.name, table.rows, *place)
    scatter(root, table.rows, *place, places(layout_of(table), layout, segment, arena))
    if "value_file" in table.arrays:
        place = arrayfile.read(root, table.arrays["value_file"]), arrayfile.read(root, table.arrays["value_row"])
        fitting.check_places(root, table.name, table.values, *place)
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

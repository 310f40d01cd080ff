"""A shard that begins with what it has saved in a checkpoint, and which checkpoint a server begins with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from gear import schema
from gear.arrays import Entry
from gear.errors import CheckpointError, ServerConflict
from gear.storage import manifest, shelf
from gear.storage.memory import size_text

if TYPE_CHECKING:
    from gear.devices.arena import Arena
    from gear.server.config import Options
    from gear.server.runtime import Claim
    from gear.server.tables import Place, Tables
    from gear.server.weights import Weights

logger = logging.getLogger(__name__)

LATEST = "latest"


def begin_with(options: Options, claim: Claim, shards: int) -> str:
    """The checkpoint that a server begins with, "" for none; memory that is kept holds more than any.

    Raises
    ------
    ServerConflict
        If one was named, and memory is kept.
    CheckpointError
    """
    if not options.restore:
        return ""
    if claim.kept and options.restore != LATEST:
        raise ServerConflict(
            f"--restore {options.restore}: memory of an earlier server is kept in {claim.directory}; add --discard to "
            "remove it and go back to the checkpoint, or leave --restore away to go on with it"
        )
    if claim.living:
        logger.warning("nothing is restored: shards of an earlier server live, which hold more")
        return ""
    if claim.kept:
        return _beside_kept(options, shards)
    path, said = chosen(options.restore, options.checkpoint, shards)
    logger.warning("%s", said)
    return path


def _beside_kept(options: Options, shards: int) -> str:
    """The checkpoint from which tables come whose columns lay on a device, the one memory that is never kept."""
    try:
        path = chosen(options.restore, options.checkpoint, shards)[0]
        there = _on_devices(Path(path)) if path else []
    except CheckpointError as error:
        logger.warning("nothing is restored beside the memory that an earlier server kept: %s", error)
        return ""
    only = f"of {path} only what had columns on a GPU ({', '.join(there)})" if there else "nothing"
    logger.warning("%s is restored: the memory of an earlier server is kept, which holds more", only)
    return path if there else ""


def _on_devices(path: Path) -> list[str]:
    """The tables of a checkpoint that had columns on a device."""
    tables = {t.name: t.declaration for part in manifest.load(path).parts for t in part.tables}
    declared = {name: schema.from_bytes(bytes.fromhex(text)) for name, text in tables.items()}
    return [name for name, table in declared.items() if any(c.placement == "device" for c in table.columns)]


def chosen(restore: str, directory: str, shards: int) -> tuple[str, str]:
    """The checkpoint that ``--restore`` means, and what to say about it; "" for none.

    ``latest`` is the newest complete one; what saves that did not come to their end have left is passed over. One that
    is damaged is never passed over: an older one holds less, and only who starts the server can want that.

    Raises
    ------
    CheckpointError
        If it is none.
    """
    if restore == LATEST:
        there, left = shelf.listed(Path(directory)), shelf.incomplete(Path(directory))
        skipped = "".join(f"; skipped {path.name}, which was never completed" for path in left)
        if not there:
            return "", f"nothing to restore: {directory} holds no complete checkpoint{skipped}"
        path = there[-1].path
    else:
        path, skipped = Path(restore), ""
    try:
        whole = manifest.load(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_others(path, restore, directory)}") from None
    if whole.shards != shards:
        skipped += f"; saved by {whole.shards} shards, dealt out to {shards}"
    return str(path.resolve()), f"restoring {path}: {size_text(whole.nbytes)}{skipped}"


def _others(path: Path, restore: str, directory: str) -> str:
    if restore != LATEST:
        return ""
    older = [one.path for one in shelf.listed(Path(directory)) if one.path != path]
    return f"; older checkpoints are there: --restore {older[-1]}" if older else ""


def restore(
    path: Path, place: Place, weights: Weights, directory: str, to_host: bool = False, tables: Tables | None = None
) -> dict[int, Arena]:
    """Make the segments of a shard as they were saved, and publish what was published.

    Parameters
    ----------
    to_host : columns that were on a device come to the host.
    tables : of a shard that keeps some: what is restored is what was on a device and is lost by that, and no weights.

    Returns
    -------
    dict of int to Arena
        Filled blocks of columns on the device, by the numbers of their tables.

    Raises
    ------
    CheckpointError, InsufficientMemory, DeviceError
    """
    from gear.server.lost import made_good, noted  # not at once: the command line looks at checkpoints without kernels
    from gear.server.takeup import kept_in
    from gear.storage import portions, restoring

    whole = manifest.load(path)
    newest = shelf.listed(Path(directory))[-1:] if directory else []
    same_line = bool(newest) and newest[0].path.resolve() == path.resolve()
    kept = {} if tables is None else kept_in(place.directory)
    beside = None if tables is None else (frozenset(kept), frozenset(kept.values()) | tables.lost.numbers)
    wish = portions.Wish(to_host, beside)
    found = portions.pieces(path, whole, place.shard, place.shards, same_line, wish)
    left = place.memory - sum((place.directory / f"table-{index}").stat().st_size for index in kept.values())
    try:
        arenas = restoring.restore(path, found, place.directory, left, place.gpu, place.device_memory)
        publishes = place.shard == 0 and tables is None
        for saved in [one for part in whole.parts for one in part.weights] if publishes else ():
            entries = tuple(Entry(a.name, a.dtype, a.shape) for a in saved.arrays)
            weights.put_back(saved.name, saved.version, entries, restoring.weights(path, saved))
    except BaseException:
        for piece in found:
            (place.directory / f"table-{piece.layout.index}").unlink(missing_ok=True)
        raise
    logger.info("restored %d tables of %s", len(found), path)
    if tables is not None:
        for piece in found:
            made_good(place.directory, piece.table.name, piece.table.trajectories, piece.table.steps)
        tables.lost = noted(place.directory)
    return arenas

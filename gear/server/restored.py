"""A shard that begins with what it has saved in a checkpoint, and which checkpoint a server begins with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from gear.arrays import Entry
from gear.errors import CheckpointError, ServerConflict
from gear.storage import manifest, shelf
from gear.storage.memory import size_text

if TYPE_CHECKING:
    from gear.server.config import Options
    from gear.server.runtime import Claim
    from gear.server.tables import Place
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
    if claim.kept:
        logger.warning("nothing is restored: the memory of an earlier server is kept, which holds more")
        return ""
    path, said = chosen(options.restore, options.checkpoint, shards)
    logger.warning("%s", said)
    return path


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


def restore(path: Path, place: Place, weights: Weights, directory: str) -> None:
    """Make the segments of a shard as they were saved, and publish what was published.

    Raises
    ------
    CheckpointError, InsufficientMemory
    """
    from gear.storage import restoring  # not at once: the command line looks at checkpoints without kernels

    whole = manifest.load(path)
    newest = shelf.listed(Path(directory))[-1:] if directory else []
    same_line = bool(newest) and newest[0].path.resolve() == path.resolve()
    found = restoring.pieces(path, whole, place.shard, place.shards, same_line)
    try:
        restoring.restore(path, found, place.directory, place.memory)
        for saved in [one for part in whole.parts for one in part.weights] if place.shard == 0 else ():
            entries = tuple(Entry(a.name, a.dtype, a.shape) for a in saved.arrays)
            weights.put_back(saved.name, saved.version, entries, restoring.weights(path, saved))
    except BaseException:
        for piece in found:
            (place.directory / f"table-{piece.layout.index}").unlink(missing_ok=True)
        raise
    logger.info("restored %d tables of %s", len(found), path)

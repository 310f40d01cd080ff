"""A directory of checkpoints: which are there, how one comes to be there, and how old ones go.

A checkpoint is a directory ``checkpoint-000012``. It is made under another name, and gets this one when all of it is
on the disk: it is complete, or it is none. Whatever is removed is a file that a manifest names, or that lies where only
a save writes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from gear.errors import CheckpointError
from gear.storage.arrayfile import sync_folder
from gear.storage.manifest import FORMAT, MANIFEST, Manifest, Part, load, text_of

logger = logging.getLogger(__name__)

_PART = "part.json"
_NAME = re.compile(r"checkpoint-(\d{6,12})")
_PARTIAL = re.compile(r"\.partial-[0-9a-f]{16}")
_OURS = re.compile(r"part\.json|manifest\.json|[\w.@-]+\.npy")


class Listed(NamedTuple):
    """A complete checkpoint in a directory."""

    number: int
    path: Path


def listed(directory: Path) -> list[Listed]:
    """The complete checkpoints in a directory, the oldest first."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and (path / MANIFEST).is_file():
                found.append(Listed(int(match[1]), path))
    return sorted(found)


def incomplete(directory: Path) -> list[Path]:
    """What saves that did not come to their end have left in a directory, and checkpoints without a manifest."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            bare = _NAME.fullmatch(path.name) and not (path / MANIFEST).is_file()
            if path.is_dir() and (bare or _PARTIAL.fullmatch(path.name)):
                found.append(path)
    return sorted(found)


def partial(directory: Path, token: str) -> Path:
    """Where the save of that token writes."""
    return directory / f".partial-{token}"


def part_folder(root: Path, shard: int) -> Path:
    """Where a shard's files are within a checkpoint."""
    return root / f"shard-{shard}"


def write_part(root: Path, part: Part) -> None:
    """Note what a shard has saved, for `seal`."""
    folder = part_folder(root, part.shard)
    _write(folder / _PART, json.dumps(msgspec.to_builtins(part)))
    for path in [folder, *(p for p in folder.iterdir() if p.is_dir())]:
        sync_folder(path)


def seal(directory: Path, token: str, shards: int, version: str, name: str, created: float) -> tuple[Path, Manifest]:
    """Make a checkpoint of what the shards have saved: its path and manifest.

    Raises
    ------
    CheckpointError
        If a part or a file of it is missing.
    """
    root = partial(directory, token)
    parts = []
    for shard in range(shards):
        file = part_folder(root, shard) / _PART
        try:
            parts.append(msgspec.convert(json.loads(file.read_text()), Part))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"shard {shard} has saved nothing that could be sealed ({error}); save again"
            ) from None
    manifest = Manifest(FORMAT, version, name, created, shards, parts)
    for entry in manifest.files():
        file = root / entry.file
        if not file.is_file() or file.stat().st_size != entry.nbytes:
            raise CheckpointError(f"{file} is not there as it was written, so nothing was completed; save again")
    _write(root / MANIFEST, text_of(manifest))
    for shard in range(shards):
        (part_folder(root, shard) / _PART).unlink()
        sync_folder(part_folder(root, shard))
    sync_folder(root)
    there = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    number = 1 + max((int(match[1]) for match in there if match), default=0)
    while True:
        path = directory / f"checkpoint-{number:06}"
        try:
            root.rename(path)
            break
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            number += 1
    sync_folder(directory)
    return path, manifest


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Remove a checkpoint: the files that its manifest names, and directories that are empty then. Others stay.

    Raises
    ------
    CheckpointError
        If its manifest cannot be read: nothing is removed then.
    """
    manifest = load(path)
    (path / MANIFEST).unlink()  # first: it is none any more
    for entry in manifest.files():
        if ".." not in Path(entry.file).parts and not Path(entry.file).is_absolute():
            (path / entry.file).unlink(missing_ok=True)
    _remove_folders(path)


def abandon(root: Path, shard: int | None = None) -> None:
    """Remove what a save that failed has written so far, or one shard's part of that."""
    if not _PARTIAL.fullmatch(root.name):
        return
    folder = root if shard is None else part_folder(root, shard)
    for path in list(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink() and _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)
    _remove_folders(folder)
    with contextlib.suppress(OSError):
        root.rmdir()


def _remove_folders(path: Path) -> None:
    folders = [path, *(p for p in path.rglob("*") if p.is_dir() and not p.is_symlink())] if path.is_dir() else []
    for folder in sorted(folders, key=lambda p: len(p.parts), reverse=True):
        try:
            folder.rmdir()
        except OSError:
            logger.warning("%s stays: something lies in it that no save has written", folder)


def keep(directory: Path, most: int) -> list[Path]:
    """Remove the oldest complete checkpoints beyond the `most` newest; those that were removed."""
    removed = []
    for one in listed(directory)[:-most] if most > 0 else ():
        try:
            remove(one.path)
            removed.append(one.path)
        except (CheckpointError, OSError) as error:
            logger.warning("%s is kept: %s", one.path, error)
    return removed

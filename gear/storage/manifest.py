"""What a checkpoint is made of: ``manifest.json`` names every file of it, with checksums, its own included.

The format is described in ``docs/checkpoints.md``; where checkpoints lie is the business of `shelf`.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gear.arrays import LONGEST_NAME
from gear.errors import CheckpointError
from gear.storage import arrayfile
from gear.storage.arrayfile import ArrayFile

FORMAT = 1
"""Version of the format, raised with every incompatible change."""

MANIFEST = "manifest.json"
Count = Annotated[int, Meta(ge=0, le=2**48)]
_NO_SUM = '"checksum": "00000000"'
_SUM = re.compile(r'"checksum": "[0-9a-f]{8}"')


class Geometry(msgspec.Struct, frozen=True):
    """Where a column's rows lie in a block (`per` step), or in the row of a trajectory."""

    name: str
    per: Literal["step", "trajectory"]
    dtype: str
    shape: Annotated[tuple[Count, ...], Meta(max_length=64)]
    offset: Count
    stride: Count
    width: Count


class SavedTable(msgspec.Struct, frozen=True):
    """One shard's part of a table, number `part` of `parts`.

    Attributes
    ----------
    declaration : the whole table as `schema.to_bytes` makes it, in hexadecimal; `toml`: the same for people.
    line : see `lineage`; layout: checksum of where everything lies.
    arrays : by the names of the regions of the segment.
    rows : files of blocks, [n, block_bytes]; `values`: of what a trajectory has once, [n, bytes].
    left_out : trajectories that were evicted before they could be written.
    """

    name: str
    declaration: str
    toml: str
    index: Annotated[int, Meta(ge=0, le=255)]
    shard: Annotated[int, Meta(ge=0, le=255)]
    part: Annotated[int, Meta(ge=0, le=255)]
    parts: Annotated[int, Meta(ge=1, le=256)]
    shown: bool
    line: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    layout: int
    block_steps: Annotated[int, Meta(ge=1, le=2**31)]
    block_bytes: Annotated[int, Meta(ge=1, le=2**48)]
    columns: list[Geometry]
    arrays: dict[str, ArrayFile]
    rows: list[ArrayFile]
    values: list[ArrayFile]
    trajectories: int
    steps: int
    left_out: int

    def files(self) -> Iterator[ArrayFile]:
        """All files of the table."""
        yield from self.arrays.values()
        yield from self.rows
        yield from self.values


class SavedArray(msgspec.Struct, frozen=True):
    """One array of what was published: its bytes are `nbytes` at `offset` of the file."""

    name: Annotated[str, Meta(max_length=LONGEST_NAME)]
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], Meta(max_length=64)]
    offset: Count


class SavedWeights(msgspec.Struct, frozen=True):
    """What was published under a name."""

    name: Annotated[str, Meta(max_length=128)]
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    arrays: list[SavedArray]
    file: ArrayFile


class Part(msgspec.Struct, frozen=True):
    """What one shard has saved; `written`: bytes that were not in an earlier checkpoint."""

    shard: Annotated[int, Meta(ge=0, le=255)]
    tables: list[SavedTable]
    weights: list[SavedWeights]
    written: int
    seconds: float

    def files(self) -> Iterator[ArrayFile]:
        """All files of the part."""
        for table in self.tables:
            yield from table.files()
        for one in self.weights:
            yield one.file


class Manifest(msgspec.Struct, frozen=True):
    """What `manifest.json` says."""

    format: int
    gear: str
    name: str
    created: Annotated[float, Meta(ge=0, le=1e11)]
    shards: Annotated[int, Meta(ge=1, le=256)]
    parts: list[Part]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.nbytes for entry in self.files())

    @property
    def written(self) -> int:
        """Bytes that were not in an earlier checkpoint."""
        return sum(part.written for part in self.parts)

    def files(self) -> Iterator[ArrayFile]:
        """All files but the manifest."""
        for part in self.parts:
            yield from part.files()


def load(path: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises
    ------
    CheckpointError
        If there is none, it is damaged, or of a format that this release does not read.
    """
    file = path / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is no checkpoint: it has no {MANIFEST}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    match = _SUM.search(text)
    if match is None or match[0][13:21] != f"{zlib.crc32(_SUM.sub(_NO_SUM, text, count=1).encode()):08x}":
        raise CheckpointError(f"{file} is damaged: its checksum is wrong")
    try:
        raw = json.loads(text)
        number = raw.pop("format")
        raw.pop("checksum")
        if number != FORMAT:
            raise CheckpointError(
                f"{file} has format {number}, this release reads {FORMAT}; use the release of gear that made it "
                f"({raw.get('gear')})"
            )
        manifest = msgspec.convert({"format": number, **raw}, Manifest)
        there = sorted(part.shard for part in manifest.parts)
        if there != list(range(manifest.shards)):
            raise ValueError(f"expected parts of {manifest.shards} shards, got those of {there}")
        return manifest
    except (ValueError, KeyError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file} is damaged: {error}") from None


def verify(path: Path, progress: Callable[[int], None] = lambda nbytes: None) -> Manifest:
    """Read every file of a checkpoint; its manifest. `progress` is told of bytes as they are done.

    Raises
    ------
    CheckpointError
        Naming the first file that is missing or damaged.
    """
    manifest = load(path)
    for entry in manifest.files():
        progress(arrayfile.verify(path, entry))
    return manifest


def text_of(manifest: Manifest) -> str:
    """The manifest with its own checksum: that of the text in which the checksum is eight zeros."""
    raw = {"checksum": "00000000", **msgspec.to_builtins(manifest)}
    text = json.dumps(raw, indent=1)
    return text.replace(_NO_SUM, f'"checksum": "{zlib.crc32(text.encode()):08x}"', 1)

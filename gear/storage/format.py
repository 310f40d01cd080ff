"""How a segment starts: the header and the directory of an empty table.

Written once by the shard that owns the table. The header names the format, the declaration and the size,
so that whoever finds the segment can tell what it is before touching the rest.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import gear
from gear.errors import GearError, SchemaError, ServerConflict
from gear.schema import MinSize, Prioritized, StalenessBudget, Table, from_bytes, to_bytes
from gear.storage import fields as f
from gear.storage.item_sets import bits_of
from gear.storage.layout import FORMAT, HEADER_BYTES, Layout
from gear.storage.regions import ABSENT

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

MAGIC = b"GEARSEG\0"


_HEAD = 256
_FIELDS = 16
(
    _FORMAT, _SPEC, _WHOLE, _INDEX, _SHARD, _NBYTES, _PART, _PARTS, _SPREAD, _GEOMETRY, _CHECK, _SHOWN,
) = range(12)  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """What a segment belongs to: the declaration of the whole table, and which part of how many it holds."""

    whole: bytes
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Header:
    """What the header of a kept segment says; `shown`: clients may find the table."""

    origin: Origin
    table: Table
    index: int
    shard: int
    spread: bool
    shown: bool


def start(segment: npt.NDArray[np.uint8], layout: Layout, origin: Origin | None = None) -> None:
    """Write the directory of an empty table into a zeroed segment.

    Raises
    ------
    SchemaError
        If the declaration does not fit into the header.
    """
    table = layout.table
    spec = to_bytes(table)
    whole = origin.whole if origin is not None else spec
    part, parts = (origin.part, origin.parts) if origin is not None else (0, 1)
    header = layout.view(segment, "header")
    if len(spec) + len(whole) + _HEAD > len(header):
        raise SchemaError(
            f"table {table.name!r}: its declaration takes {len(spec)} bytes, more than {(len(header) - _HEAD) // 2}"
        )
    fields = header[8 : 8 + 8 * _FIELDS].view(np.int64)
    fields[:_CHECK] = (
        FORMAT, len(spec), len(whole), layout.index, layout.shard, layout.nbytes, part, parts, int(layout.spread),
        _geometry(layout),
    )  # fmt: skip
    version = gear.__version__.encode()[:64]
    header[8 + 8 * _FIELDS :][: len(version)] = np.frombuffer(version, np.uint8)
    header[_HEAD : _HEAD + len(spec)] = np.frombuffer(spec, np.uint8)
    header[_HEAD + len(spec) :][: len(whole)] = np.frombuffer(whole, np.uint8)
    _fill(segment, layout)
    fields[_CHECK] = _digest(header)
    header[:8] = np.frombuffer(MAGIC, np.uint8)  # last: without it a segment was never in use


def _geometry(layout: Layout) -> int:
    """Where everything lies, as one number."""
    return zlib.crc32(layout.params.tobytes())


def _digest(header: npt.NDArray[np.uint8]) -> int:
    """Of the header without what comes last or changes."""
    return zlib.crc32(header[8 + 8 * _FIELDS :].tobytes(), zlib.crc32(header[8 : 8 + 8 * _CHECK].tobytes()))


def show(segment: npt.NDArray[np.uint8]) -> None:
    """Note that clients may find the table."""
    segment[8 : 8 + 8 * _FIELDS].view(np.int64)[_SHOWN] = 1


def in_use(path: Path) -> bool:
    """Whether the segment was finished: one that its shard died over holds nothing."""
    with open(path, "rb") as file:
        return file.read(8) == MAGIC


def read(path: Path) -> Header:
    """What a kept segment is, checked as far as that goes without its directory.

    Raises
    ------
    ServerConflict
        If this release cannot take it up: what is different, and what to do.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        raw = np.frombuffer(file.read(HEADER_BYTES), np.uint8).copy()
    remedy = "start the release that made it, or remove it with --discard"
    if len(raw) < HEADER_BYTES or raw[:8].tobytes() != MAGIC:
        raise ServerConflict(f"{path} is no segment of a table; {remedy}")
    fields = raw[8 : 8 + 8 * _FIELDS].view(np.int64)
    if fields[_FORMAT] != FORMAT:
        raise ServerConflict(f"{path} has segment format {fields[_FORMAT]}, expected {FORMAT}; {remedy}")
    version = raw[8 + 8 * _FIELDS :][:64].tobytes().rstrip(b"\0").decode(errors="replace")
    if version != gear.__version__:
        raise ServerConflict(f"{path} was made by gear {version}, this is gear {gear.__version__}; {remedy}")
    if fields[_CHECK] != _digest(raw) or size != fields[_NBYTES]:
        raise ServerConflict(
            f"{path} is damaged: its header does not add up, or its size ({size} bytes, expected {fields[_NBYTES]}) is "
            "another; remove it with --discard"
        )
    mine, whole = int(fields[_SPEC]), int(fields[_WHOLE])
    try:
        table = from_bytes(raw[_HEAD : _HEAD + mine].tobytes())
        layout = Layout(table, int(fields[_INDEX]), int(fields[_SHARD]), spread=bool(fields[_SPREAD]))
    except GearError as error:
        raise ServerConflict(f"{path}: its declaration cannot be read here ({error}); {remedy}") from None
    if _geometry(layout) != fields[_GEOMETRY] or layout.nbytes != size:
        raise ServerConflict(f"{path}: table {table.name!r} is laid out otherwise than here; {remedy}")
    origin = Origin(raw[_HEAD + mine :][:whole].tobytes(), int(fields[_PART]), int(fields[_PARTS]))
    return Header(origin, table, layout.index, layout.shard, layout.spread, bool(fields[_SHOWN]))


def _fill(segment: npt.NDArray[np.uint8], layout: Layout) -> None:
    table = layout.table
    layout.view(segment, "blocks")[:, 1:] = -1
    layout.view(segment, "slots")[:, f.WRITER] = -1
    layout.view(segment, "free_blocks")[:] = np.arange(layout.blocks)
    layout.view(segment, "free_slots")[:] = np.arange(layout.slots)
    counters = layout.view(segment, "counters")
    counters[f.FREE_BLOCKS], counters[f.FREE_SLOTS] = layout.blocks, layout.slots
    counters[f.OLDEST] = counters[f.NEWEST] = -1
    if layout.spread and isinstance(table.limiter, MinSize):
        counters[f.INSERT_CREDIT] = f.UNLIMITED
    layout.view(segment, "floats")[f.MAX_PRIORITY] = 1.0
    layout.view(segment, "lines").reshape(-1, f.LINE_FIELDS)[:, [f.LINE_HEAD, f.LINE_TAIL]] = -1
    layout.view(segment, "links")[:] = ABSENT
    mates = layout.view(segment, "mates")
    mates[:] = np.arange(len(mates))
    layout.view(segment, "versions")[:] = -1
    for _, levels, mins in _trees(layout):
        if len(layout.view(segment, levels)):
            layout.view(segment, mins)[:] = np.inf
    declare(segment, layout)


def _trees(layout: Layout) -> list[tuple[str, str, str]]:
    """Of each sum tree: whose levels it has, and the regions of where they start and of its least values."""
    trees = [("", "starts", "mins"), ("remover_", "remover_starts", "remover_mins")]
    return trees + [("", one.region("starts"), one.region("mins")) for one in layout.sets[1:]]


def declare(segment: npt.NDArray[np.uint8], layout: Layout) -> None:
    """Write what follows from the declaration alone: kernels go by it, so a recovery believes nobody about it."""
    table = layout.table
    floats = layout.view(segment, "floats")
    for at, rule in ((f.ALPHA, table.sampler), (f.REMOVER_ALPHA, table.remover)):
        if isinstance(rule, Prioritized):
            floats[at : at + 2] = rule.alpha, rule.eps
    if not isinstance(table.limiter, (MinSize, StalenessBudget)):
        floats[f.RATIO] = table.limiter.samples_per_insert
        floats[f.LOW : f.HIGH + 1] = table.limiter.bounds
    for consumer, names in enumerate(table.consumer_needs):
        layout.view(segment, "lines")[consumer * f.LINE_FIELDS + f.LINE_NEEDS] = bits_of(table, names)
    for prefix, levels, _ in _trees(layout):
        starts = layout.view(segment, levels)
        if len(starts):
            starts[:] = layout.tree_levels[prefix]

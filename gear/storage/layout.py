"""Where every byte of a table lies: the geometry of its one memory segment.

A layout is a pure function of the declared table, computed alike by the shard that owns the segment and
by every client that maps it. It owns no memory and must never depend on anything but the `Table`.

A segment holds the directory (header, counters, clients, blocks, slots, free rings), the arrays of
sampler and remover, the arena (blocks of rows) and, behind it, the per-trajectory columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.errors import SchemaError
from gear.grouping import KEY_BYTES
from gear.schema import (
    DTYPES,
    Bytes,
    Column,
    Epochs,
    Fifo,
    Fresh,
    Groups,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    Stack,
    StalenessBudget,
    Step,
    Steps,
    Table,
    Trajectories,
    Uniform,
    Whole,
    Window,
)
from gear.storage import fields as f
from gear.storage.entry import COMMIT_ENTRY as COMMIT_ENTRY
from gear.storage.item_sets import ItemSet, item_sets
from gear.storage.regions import (
    Region,
    consumer_arrays,
    remover_arrays,
    sampler_arrays,
    slot_arrays,
    structure_arrays,
    tree_starts,
    up,
)

if TYPE_CHECKING:
    import numpy.typing as npt

FORMAT = 6
"""Version of the segment format, raised with every incompatible change."""

HEADER_BYTES = 4096 + 128 * 1024
"""Of the header of a segment."""

ALIGN = 64
HUGE_PAGE = 2 << 20

_KINDS: dict[type | None, int] = {
    Uniform: f.UNIFORM, Prioritized: f.PRIORITIZED, Fifo: f.FIFO, Lifo: f.LIFO, MaxHeap: f.MAX_HEAP,
    MinHeap: f.MIN_HEAP, Epochs: f.EPOCHS, Fresh: f.FRESH, Groups: f.FIFO,
}  # fmt: skip

GROUP_KEY = Column("group", (KEY_BYTES,), "uint8", per="trajectory")


_WIDTHS = {"blocks": f.BLOCK_FIELDS, "slots": f.SLOT_FIELDS, "clients": f.CLIENT_FIELDS, "late": f.LATE_FIELDS}
"""Fields per record of the regions that hold records."""


class Grant(NamedTuple):
    """Leased blocks and slots, int32 each. A lease is exclusive until committed or given back."""

    blocks: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Placement:
    """Where a column's rows lie.

    Row r of a block: ``block * block_bytes + offset + r * stride`` in the arena for a per-step column;
    ``offset + slot * stride`` in the trajectory region else. `width` is the bytes of a row. Of a column on a device
    the block lies in the arena there, whose blocks have a size of their own.
    """

    column: Column
    offset: int
    stride: int
    width: int


class Layout:
    """Sizes, offsets and kernel parameters of one table's segment.

    Parameters
    ----------
    table : Table
    index, shard : int
        The table's and the shard's number, 0..255; part of every id.
    reserve : float
        Share of blocks kept on top of the capacity for leases, quarantine and pinned evicted blocks.
    spread : bool
        Whether the table is a part of one whose limiter counts the items of several shards, see `gear.parts`.
    staged : bool
        Columns on a device lie in the segment's own blocks, behind the others: so rows travel.

    Attributes
    ----------
    device_block_bytes : of a block in the arena on the device, 0 where no column lies there.

    Raises
    ------
    SchemaError
        If the table has more rows than an id can address.
    """

    def __init__(
        self,
        table: Table,
        index: int = 0,
        shard: int = 0,
        reserve: float = 0.125,
        spread: bool = False,
        staged: bool = False,
    ) -> None:
        self.table, self.index, self.shard, self.spread = table, index, shard, spread
        steps = self.block_steps = table.block_steps
        self.interleaved = isinstance(table.item, Step)
        self._place_columns(staged)
        bound = max(table.mean_length / steps + 0.5, math.ceil((table.mean_length + 1) / steps))
        capacity = table.capacity
        if isinstance(capacity, Bytes):
            self.data_blocks = capacity.n // self.full_block_bytes
            if self.data_blocks * steps < 2:  # one step and its final row
                raise SchemaError(
                    f"table {table.name!r}: a capacity of {capacity.n} bytes does not hold two rows in whole blocks "
                    f"(block_steps {steps}, {self.block_bytes} bytes each); raise it or lower block_steps"
                )
            trajectories = max(1, math.ceil(self.data_blocks / bound))
        else:
            trajectories = (
                capacity.n if isinstance(capacity, Trajectories) else math.ceil(capacity.n / table.mean_length)
            )
            longest = math.ceil((table.max_length + 1) / steps)
            self.data_blocks = max(math.ceil(trajectories * bound), longest)
        per_trajectory = math.ceil((table.mean_length + 1) / steps)
        self.reserve_blocks = max(math.ceil(self.data_blocks * reserve), 2 * per_trajectory, 4)
        # Trajectories may be shorter than declared: four times as many have room, in small tables a thousand.
        self.data_slots = min(self.data_blocks, max(4 * trajectories, 1024))
        if isinstance(capacity, Trajectories):
            self.data_slots = trajectories
        self.reserve_slots = self.reserve_blocks
        self.blocks = self.data_blocks + self.reserve_blocks
        self.slots = self.data_slots + self.reserve_slots
        self.max_length = table.max_length
        if isinstance(capacity, Bytes):
            self.max_length = min(self.max_length, self.data_blocks * steps - 1)  # a final row has room too
        self.row_bits = max(1, (self.blocks * steps - 1).bit_length())
        if self.row_bits > 31:
            raise SchemaError(
                f"table {table.name!r} has {self.blocks * steps} rows on one shard; an id addresses 2**31: "
                "use a smaller capacity or more shards"
            )
        self.generations = min(2**31 - 1, 2 ** (f.ID_LOW_BITS - self.row_bits) - 1)
        stride = table.item.stride if isinstance(table.item, Window) else 1
        self.items_per_block = -(-steps // stride)
        whole = isinstance(table.item, Whole)
        self.items = self.slots if whole else self.blocks * self.items_per_block
        self.by_trajectory = not whole and table.sampler == Uniform("trajectories")
        self.units = self.slots if whole or self.by_trajectory else self.blocks
        self.sets = item_sets(table)
        self.late = any(c.late for c in table.columns)
        self._place_regions()

    def _place_columns(self, staged: bool) -> None:
        per_step = [c for c in self.table.columns if c.per == "step"]
        on_device = [c for c in per_step if c.placement == "device"]
        self._placements: dict[str, Placement] = {}
        self.block_bytes = self._place([c for c in per_step if c.placement == "host"], 0)
        self.device_block_bytes = 0
        if on_device and staged:
            self.block_bytes += self._place(on_device, self.block_bytes)
        elif on_device:
            self.device_block_bytes = self._place(on_device, 0)

    def _place(self, columns: list[Column], base: int) -> int:
        """Lay columns into a block from byte `base` on; the bytes that they take.

        Rows side by side for `Step` items (one row, few cache lines), else one strip per column.
        """
        at = 0
        if not columns:
            return 0
        if self.interleaved:
            row = up(sum(c.row_bytes for c in columns), max(DTYPES[c.dtype] for c in columns))
            for column in sorted(columns, key=lambda c: -DTYPES[c.dtype]):
                self._placements[column.name] = Placement(column, base + at, row, column.row_bytes)
                at += column.row_bytes
            at = row * self.block_steps
        else:
            for column in sorted(columns, key=lambda c: -DTYPES[c.dtype]):
                strip = column.row_bytes * self.block_steps
                at = up(at, ALIGN if strip >= 512 else DTYPES[column.dtype])
                self._placements[column.name] = Placement(column, base + at, column.row_bytes, column.row_bytes)
                at += strip
        return up(at, ALIGN if at >= 512 else 8)

    def renumber(self, index: int) -> None:
        """Give the table another number, before anybody knows the one it has."""
        self.index = index
        self.__dict__.pop("params", None)

    @property
    def full_block_bytes(self) -> int:
        """Bytes of a block with its columns on a device behind the others: so blocks travel, and are saved."""
        return self.block_bytes + self.device_block_bytes

    def offset_of(self, place: Placement) -> int:
        """Where a per-step column begins in such a full block."""
        return place.offset + (
            self.block_bytes if self.device_block_bytes and place.column.placement == "device" else 0
        )

    @property
    def device_bytes(self) -> int:
        """Bytes of the arena on the device, 0 where no column lies there."""
        return self.blocks * self.device_block_bytes

    def _place_regions(self) -> None:
        table = self.table
        regions: dict[str, Region] = {}
        at = 0

        def add(name: str, dtype: str, count: int, align: int = ALIGN) -> None:
            nonlocal at
            at = up(at, align)
            regions[name] = Region(name, dtype, count, at)
            at += regions[name].nbytes

        add("header", "uint8", HEADER_BYTES)
        add("counters", "int64", f.COUNTERS)
        add("floats", "float64", f.FLOATS)
        add("clients", "int64", f.MAX_CLIENTS * f.CLIENT_FIELDS)
        add("journal", "int64", f.JOURNAL_FIELDS)
        add("blocks", "int32", self.blocks * f.BLOCK_FIELDS)
        add("slots", "int64", self.slots * f.SLOT_FIELDS)
        add("free_blocks", "int32", self.blocks)
        add("free_slots", "int32", self.slots)
        for array in (
            *sampler_arrays(table, self.items, self.units, self.slots),
            *remover_arrays(table, self.slots),
            *slot_arrays(table, self.slots),
            *consumer_arrays(table, self.items, self.slots),
        ):
            add(*array)
        for one in self.sets[1:]:
            add(one.region("counters"), "int64", f.COUNTERS)
            for name, dtype, count in structure_arrays(table, self.items, self.units, self.slots, beside=True):
                add(one.region(name), dtype, count)
        sampled = tree_starts(self.items) if isinstance(table.sampler, Prioritized) else [0]
        removed = tree_starts(self.slots) if isinstance(table.remover, Prioritized) else [0]
        self.tree_levels = {"": sampled[:-1], "remover_": removed[:-1]}
        self.directory_bytes = at
        add("arena", "uint8", self.blocks * self.block_bytes, HUGE_PAGE if at > HUGE_PAGE else 4096)
        offset = 0
        for column in table.columns:
            if column.per == "trajectory":
                stride = up(column.row_bytes, DTYPES[column.dtype])
                self._placements[column.name] = Placement(column, offset, stride, column.row_bytes)
                offset = up(offset + stride * self.slots, ALIGN)
        self.keys: Placement | None = None
        if table.group_size:  # the key of each trajectory's group, a column that nobody declares
            self.keys = Placement(GROUP_KEY, offset, KEY_BYTES, KEY_BYTES)
            offset = up(offset + KEY_BYTES * self.slots, ALIGN)
        add("trajectories", "uint8", offset)
        self.regions, self.nbytes = regions, up(at, 4096)

    @property
    def per_trajectory(self) -> list[Placement]:
        """Where what comes with the insert lies that a trajectory has once: columns, and the key of its group."""
        declared = self.written("trajectory")
        return declared if self.keys is None else [*declared, self.keys]

    @property
    def once(self) -> list[Placement]:
        """Where all lies that a trajectory has once: columns, late ones included, and the key of its group."""
        mine = [p for p in self.placements.values() if p.column.per == "trajectory"]
        return mine if self.keys is None else [*mine, self.keys]

    def strips(self, segment: np.ndarray) -> list[np.ndarray]:
        """Of each of `once` its rows by slot: uint8[slots, width], views of `segment`."""
        base, stride = self.regions["trajectories"].offset, np.lib.stride_tricks.as_strided
        return [stride(segment[base + p.offset :], (self.slots, p.width), (p.stride, 1)) for p in self.once]

    @staticmethod
    def fields_of(name: str) -> int:
        """Fields of a record of region `name`; 1 where it holds no records."""
        return _WIDTHS.get(name, 1)

    @property
    def placements(self) -> dict[str, Placement]:
        """Each column's place, in the order in which the table declares them."""
        return {c.name: self._placements[c.name] for c in self.table.columns}

    def written(self, per: str) -> list[Placement]:
        """Places of the columns `per` step or trajectory that come with the insert."""
        return [p for p in self.placements.values() if p.column.per == per and not p.column.late]

    def blocks_for(self, rows: int) -> int:
        """Blocks that `rows` rows take (count the final row, if any)."""
        return -(-rows // self.block_steps)

    @cached_property
    def params(self) -> np.ndarray:
        """The layout as kernels read it: for each set of items a head, int64, indexed by `PARAMS` and `REGIONS`."""
        return np.concatenate([self._head(one) for one in self.sets])

    def _head(self, one: ItemSet) -> np.ndarray:
        table, item = self.table, self.table.item
        window = item if isinstance(item, Window) else None
        limiter = table.limiter
        budget = limiter if isinstance(limiter, StalenessBudget) else None
        values = {
            "table": self.index,
            "shard": self.shard,
            "row_bits": self.row_bits,
            "block_steps": self.block_steps,
            "block_bytes": self.block_bytes,
            "blocks": self.blocks,
            "slots": self.slots,
            "reserve_blocks": self.reserve_blocks,
            "reserve_slots": self.reserve_slots,
            "generations": self.generations,
            "item": f.WINDOW if window else f.STEP if isinstance(item, Step) else f.WHOLE,
            "length": window.length if window else 1,
            "stride": window.stride if window else 1,
            "edge": {"inside": f.INSIDE, "tail": f.TAIL, "head": f.HEAD}[window.edge] if window else f.TAIL,
            "step_n": item.n if isinstance(item, Step) else 0,
            "items_per_block": self.items_per_block,
            "sampler": _KINDS[type(table.sampler)],
            "remover": _KINDS[type(table.remover)],
            "capacity_kind": {Steps: f.STEPS, Trajectories: f.TRAJECTORIES, Bytes: f.BYTES}[type(table.capacity)],
            "capacity": self.data_blocks if isinstance(table.capacity, Bytes) else table.capacity.n,
            "max_length": self.max_length,
            "min_size": limiter.n if isinstance(limiter, MinSize) else limiter.min_size,
            "ratio": int(not isinstance(limiter, (MinSize, StalenessBudget))),
            "max_times": table.max_times_sampled,
            "seed": table.seed ^ (one.number << 40),
            "over": int(self.by_trajectory),
            "distinct": int(table.distinct),
            "most": limiter.size if isinstance(limiter, (Queue, Stack)) else 0,
            "spread": int(self.spread),
            "sets": len(self.sets),
            "needs": one.needs,
            "with_open": int(one.with_open),
            "by_slot": int(table.by_slot(one.number > 0)),
            "late": int(self.late),
            "versioned": int(table.versioned),
            "max_staleness": -1 if table.max_staleness is None else table.max_staleness,
            "budget": budget.batch if budget else 0,
            "eta": budget.eta if budget else 0,
            "items": self.items,
            "consumers": table.lines,
            "leaving": int(table.lines > 0 and table.leaves),
            "grouped": table.group_size,
        }
        assert tuple(values) == f.PARAMS
        head = list(values.values())
        for name in f.REGIONS:
            region = self.regions.get(one.region(name)) or self.regions[name]
            head += [region.offset, region.nbytes]
        return np.array(head, np.int64)

    def view(self, segment: np.ndarray, name: str) -> np.ndarray:
        """Region `name` of `segment` (uint8[nbytes]) as an array: blocks and slots are 2-D."""
        region = self.regions[name]
        array = segment[region.offset : region.offset + region.nbytes].view(region.dtype)
        fields = _WIDTHS.get(name)
        return array.reshape(-1, fields) if fields else array

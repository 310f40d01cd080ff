"""What a table is: its columns and the rules by which it is sized, drawn from and held back.

Everything here compares by value, is validated when constructed and travels as msgpack
(`to_bytes` / `from_bytes`). Defaults that depend on other fields are filled in at construction, so two
tables that behave alike compare equal. Nothing here knows memory, sockets or kernels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import force_setattr

from gear.columns import DTYPES, Column, column_differences, dtype_name, flatten
from gear.declared_sets import Requirements, check_open, check_versions, is_versioned, requirements_of
from gear.errors import DataError, SchemaError
from gear.grouping import Filter, Groups, MeanBetween, NonzeroVariance
from gear.limiters import Limiter, MinSize, Queue, SampleToInsertRatio, Stack, StalenessBudget
from gear.rules import (
    MAX_ALPHA,
    MAX_INT32,
    MAX_WHOLE,
    Bytes,
    Capacity,
    Epochs,
    Fifo,
    Fresh,
    Item,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    Remover,
    Spec,
    Step,
    Steps,
    Trajectories,
    Uniform,
    Whole,
    Window,
    real,
    require,
    whole_number,
)
from gear.rules import Sampler as _Sampler
from gear.served import check_consumers, check_line, check_needs, check_served_once

__all__ = [
    "DTYPES",
    "MAX_ALPHA",
    "MAX_COLUMNS",
    "Bytes",
    "Capacity",
    "Column",
    "Epochs",
    "Fifo",
    "Filter",
    "Fresh",
    "Groups",
    "Item",
    "Lifo",
    "Limiter",
    "MaxHeap",
    "MeanBetween",
    "MinHeap",
    "MinSize",
    "NonzeroVariance",
    "Prioritized",
    "Queue",
    "Remover",
    "SampleToInsertRatio",
    "Sampler",
    "Stack",
    "StalenessBudget",
    "Step",
    "Steps",
    "Table",
    "Trajectories",
    "Uniform",
    "Whole",
    "Window",
    "dtype_name",
    "flatten",
    "from_bytes",
    "to_bytes",
]  # fmt: skip

Sampler = _Sampler | Groups

MAX_COLUMNS = 256
MAX_SHARDS = 256
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_KINDS: dict[str, tuple[type[Spec], ...]] = {
    "capacity": (Steps, Trajectories, Bytes),
    "item": (Whole, Step, Window),
    "sampler": (Uniform, Prioritized, Fifo, Lifo, MaxHeap, MinHeap, Epochs, Fresh, Groups),
    "remover": (Uniform, Prioritized, Fifo, Lifo, MaxHeap, MinHeap),
    "limiter": (MinSize, SampleToInsertRatio, Queue, Stack, StalenessBudget),
}


class Table(Spec, frozen=True):
    """A table of trajectories: what is stored, how much, and how it is drawn and removed.

    Parameters
    ----------
    name : str
    columns : sequence of Column
    capacity : Steps, Trajectories or Bytes
    item : Whole, Step or Window
    sampler : Uniform, Prioritized, Fifo, Lifo, MaxHeap, MinHeap, Epochs, Fresh or Groups, optional
        Default `Uniform()`; `Fifo()` where there are consumers; what a `Queue` or `Stack` implies.
    remover : Uniform, Prioritized, Fifo, Lifo, MaxHeap or MinHeap, optional
        Takes whole trajectories, by their largest item priority where priorities count. Default `Fifo()`;
        `Lifo()` for a `Stack`.
    limiter : MinSize, SampleToInsertRatio, Queue, Stack or StalenessBudget
    mean_length : int, optional
        Expected steps per trajectory; sizes memory for `Steps` and `Trajectories`. Default 4 x the
        window, else 256; never more than `max_length` or a capacity in `Steps`.
    max_length : int, optional
        Longest stored piece in steps; writers split there. Default: the capacity.
    block_steps : int, optional
        Rows per block. Default: by item, mean length and row size.
    max_times_sampled : int, optional
        An item leaves the table's draws after that many deliveries; a batch is short where that leaves fewer
        items than it asks for. Default 0, without limit; 1 for a `Queue` or `Stack`.
    distinct : bool
        A batch holds no item twice; a sample waits until as many items can be drawn as it asks for. Items come
        as if drawn one after the other without replacement, and the probability reported of each is that of
        being drawn first.
    publish : {"end", "rows"}, optional
        A trajectory becomes visible at its end, or row by row. Default "rows" for `Step` items.
    seed : int
        Seed of the table's draws.
    open_ttl : float
        Seconds that an open trajectory of the table (`Client.open`) may go without an append before it is dropped.
    shards : int
        On how many shards of a server the table lies at most, its capacity divided among them. Default 0, on all of
        them; 1 for samplers with an order (`Fifo`, `Lifo`, `MaxHeap`, `MinHeap`, `Fresh`), for a `Queue` and a `Stack`.
        With more of these, order holds on each shard only. Tables with late columns or versions lie on one.
    requirements : sequence of sequences of str
        Sets of late columns that a draw may require (``require=``), at most 8. Each costs a sampler's structure of its
        own, so that such draws reject and scan nothing.
    include_open : bool
        Whether draws may ask for open trajectories too; costs another structure.
    max_staleness : int, optional
        A trajectory whose policy version is more than this behind the table's (`Client.set_version`) leaves.
    consumers : sequence of str, or dict
        Up to 8 names. Each consumer is served every item, oldest first, and acknowledges it (`Client.ack`); an item
        leaves a queue when all have. Needs the sampler `Fifo` or `Groups` and the limiter `MinSize` or `Queue`. A dict
        says which late columns each needs, ``{"reward": (), "trainer": ("reward",)}``: an item waits for a
        consumer when it has them, in that order.
    """

    name: str
    columns: Sequence[Column]  # a tuple once constructed
    capacity: Capacity
    item: Item = Step()
    sampler: Sampler | None = None  # never None once constructed, nor is remover
    remover: Remover | None = None
    limiter: Limiter = MinSize(1)
    mean_length: int = 0
    max_length: int = 0
    block_steps: int = 0
    max_times_sampled: int = 0
    distinct: bool = False
    publish: Literal["", "end", "rows"] = ""
    seed: int = 0
    open_ttl: float = 3600.0
    shards: int = 0
    requirements: Requirements = ()
    include_open: bool = False
    max_staleness: int | None = None
    consumers: Sequence[str] = ()
    consumer_needs: Requirements = ()  # what the dict of consumers says, in their order

    def __post_init__(self) -> None:
        require(
            isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None,
            f"Table: name must be 1 to 128 letters, digits or '_.-', got {self.name!r}",
        )
        owner = f"Table {self.name!r}"
        self._check_columns(owner)
        check_consumers(self, owner)
        self._fill_order(owner)
        for field, kinds in _KINDS.items():
            value = getattr(self, field)
            names = ", ".join(k.__name__ for k in kinds)
            require(isinstance(value, kinds), f"{owner}: {field} must be one of {names}, got {value!r}")
        require(
            not isinstance(self.remover, Uniform) or self.remover == Uniform(),
            f"{owner}: remover {self.remover!r}: over says how items are drawn, a remover takes trajectories; "
            "use Uniform()",
        )
        require(isinstance(self.distinct, bool), f"{owner}: distinct must be True or False, got {self.distinct!r}")
        require(
            self.publish in ("", None, "end", "rows"),
            f"{owner}: publish must be 'end' or 'rows', got {self.publish!r}",
        )
        for field in ("mean_length", "max_length", "block_steps", "max_times_sampled", "shards"):
            value = getattr(self, field)
            most = MAX_WHOLE if field.endswith("length") else MAX_SHARDS if field == "shards" else MAX_INT32
            force_setattr(self, field, 0 if value is None else whole_number(owner, field, value, 0, most))
        force_setattr(self, "seed", whole_number(owner, "seed", self.seed, 0))
        force_setattr(self, "open_ttl", real(owner, "open_ttl", self.open_ttl, 1e-3))
        self._fill_defaults(owner)
        if not self.shards and isinstance(self.sampler, (Fifo, Lifo, MaxHeap, MinHeap)):
            force_setattr(self, "shards", 1)
        self._check_sets(owner)
        if isinstance(self.limiter, (Queue, Stack)):
            check_line(self, owner, self.limiter)
        if self.lines:
            check_served_once(self, owner)

    def _check_sets(self, owner: str) -> None:
        """Late columns, open trajectories and versions go together with the rest."""
        force_setattr(self, "requirements", requirements_of(owner, self.columns, self.requirements))
        check_needs(self, owner)
        if self.max_staleness is not None:
            most = MAX_INT32
            force_setattr(self, "max_staleness", whole_number(owner, "max_staleness", self.max_staleness, 0, most))
        if any(c.late for c in self.columns) or self.include_open or self.versioned:
            require(
                self.shards in (0, 1),
                f"{owner}: shards must be 1 where there are late columns, versions or include_open, got {self.shards}",
            )
            force_setattr(self, "shards", 1)
        assert self.sampler is not None
        check_versions(owner, self.publish, self.sampler, self.limiter, self.max_staleness)
        require(isinstance(self.include_open, bool), f"{owner}: include_open must be True or False")
        if self.include_open:
            check_open(owner, self.sampler, self.limiter, self.max_times_sampled, self.max_staleness)

    def _fill_order(self, owner: str) -> None:
        """Sampler and remover that were left out; a queue or a stack refuses any but its own."""
        line = self.limiter if isinstance(self.limiter, (Queue, Stack)) else None
        for field, default in (("sampler", Fifo() if self.consumers else Uniform()), ("remover", Fifo())):
            value = getattr(self, field)
            if value is None:
                force_setattr(self, field, line.order if line else default)
                continue
            require(
                line is None or value == line.order or (isinstance(value, Groups) and isinstance(line, Queue)),
                f"{owner}: limiter {line!r} needs {field}={line and line.order!r}, got {value!r}; leave {field} out, "
                "or use another limiter",
            )

    def _check_columns(self, owner: str) -> None:
        columns = self.columns
        require(
            isinstance(columns, (tuple, list)) and all(isinstance(c, Column) for c in columns),
            f"{owner}: columns must be a sequence of Column, got {columns!r}",
        )
        force_setattr(self, "columns", tuple(columns))
        require(len(columns) > 0, f"{owner}: columns is empty; declare at least one")
        require(
            len(columns) <= MAX_COLUMNS,
            f"{owner}: columns has {len(columns)} entries, at most {MAX_COLUMNS} are supported",
        )
        names = [c.name for c in columns]
        twice = sorted({n for n in names if names.count(n) > 1})
        require(not twice, f"{owner}: columns are declared twice: {', '.join(twice)}")
        under = sorted(n for n in names for m in names if n.startswith(m + "/"))
        require(not under, f"{owner}: columns {under} lie under another column; a name is a leaf or a group")
        require(
            any(c.per == "step" for c in columns),
            f"{owner}: columns has none with per='step'; a trajectory needs at least one",
        )

    def _fill_defaults(self, owner: str) -> None:
        item, capacity = self.item, self.capacity
        if not self.publish:
            force_setattr(self, "publish", "rows" if isinstance(item, Step) else "end")
        require(
            not (isinstance(item, Whole) and self.publish == "rows"),
            f"{owner}: publish='rows' needs Step or Window items; a Whole item exists only at its end",
        )
        mean = self.mean_length or (4 * item.length if isinstance(item, Window) else 256)
        if isinstance(capacity, Steps):
            mean = min(mean, capacity.n)
        if self.max_length:
            mean = min(mean, self.max_length)
        force_setattr(self, "mean_length", mean)
        if not self.block_steps:
            force_setattr(self, "block_steps", self._default_block_steps())
        if isinstance(capacity, Steps):
            limit = capacity.n
        elif isinstance(capacity, Trajectories):
            limit = min(capacity.n * mean, MAX_WHOLE)
        else:
            limit = capacity.n // self.step_bytes
        require(limit > 0, f"{owner}: capacity {capacity} is smaller than one step of {self.step_bytes} bytes")
        require(
            self.max_length <= limit,
            f"{owner}: max_length {self.max_length} is more than the capacity of {limit} steps",
        )
        force_setattr(self, "max_length", self.max_length or limit)

    def _default_block_steps(self) -> int:
        """A power of two: 16 for `Step`, 32 to 256 else; at most 0.15 x the mean length and 256 KiB."""
        most = 16 if isinstance(self.item, Step) else 256
        most = min(most, int(0.15 * self.mean_length), (256 << 10) // self.step_bytes)
        return 1 << max(0, most.bit_length() - 1) if most > 0 else 1

    @property
    def step_bytes(self) -> int:
        """Payload bytes of one step."""
        return sum(c.row_bytes for c in self.columns if c.per == "step")

    @property
    def versioned(self) -> bool:
        """Whether trajectories have a policy version."""
        return is_versioned(self.sampler, self.limiter, self.max_staleness)

    def by_slot(self, beside: bool) -> bool:
        """Whether the sampler draws from a heap of trajectories, in the set of all items or in those `beside` it."""
        return isinstance(self.sampler, Fresh) or (beside and isinstance(self.sampler, (Fifo, Lifo)) and self._sets)

    @property
    def _sets(self) -> bool:
        return self.include_open or len(self.requirements) > 0

    @property
    def group_size(self) -> int:
        """Members of a group, 0 where trajectories are drawn one by one."""
        return self.sampler.size if isinstance(self.sampler, Groups) else 0

    @property
    def lines(self) -> int:
        """How many consumers are served, one without a name where groups are drawn by nobody in particular."""
        return len(self.consumers) or int(isinstance(self.sampler, Groups))

    @property
    def leaves(self) -> bool:
        """Whether an item that is done with leaves the table."""
        return isinstance(self.limiter, Queue) or (isinstance(self.sampler, Groups) and not self.consumers)

    def consumer(self, name: str) -> int:
        """Number of the consumer, -1 where the table has none and none is named.

        Raises
        ------
        DataError
            If the name is missing or none of those declared.
        """
        if name in self.consumers:
            return self.consumers.index(name)
        if self.consumers:
            known = ", ".join(self.consumers)
            raise DataError(f"consumer of table {self.name!r}: expected one of {known}, got {name or None!r}")
        if name:
            raise DataError(
                f"table {self.name!r} declares no consumers, got consumer={name!r}; declare consumers=({name!r},)"
            )
        return self.lines - 1

    def needs_of(self, consumer: int) -> tuple[str, ...]:
        """The late columns that an item has before it waits for a consumer."""
        return self.consumer_needs[consumer] if 0 <= consumer < len(self.consumer_needs) else ()

    def column(self, name: str) -> Column:
        """The column of that name.

        Raises
        ------
        SchemaError
            If there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(c.name for c in self.columns)
        raise SchemaError(f"table {self.name!r} has no column {name!r}; it has {known}")

    def differences(self, other: Table) -> list[str]:
        """One line for each field, and for each column, in which `other` differs: ``field: mine against theirs``."""
        lines = []
        for field in self.__struct_fields__:
            mine, theirs = getattr(self, field), getattr(other, field)
            if field == "columns" and mine != theirs:
                lines += column_differences(mine, theirs)
            elif mine != theirs:
                lines.append(f"{field}: {mine!r} against {theirs!r}")
        return lines


def to_bytes(table: Table) -> bytes:
    """The table as msgpack."""
    return msgspec.msgpack.encode(table)


def from_bytes(data: bytes) -> Table:
    """The table from msgpack.

    Raises
    ------
    SchemaError
        If the bytes are no valid table.
    """
    try:
        return msgspec.msgpack.decode(data, type=Table)
    except msgspec.DecodeError as error:
        raise SchemaError(f"not a table: {error}") from None

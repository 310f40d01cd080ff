"""The tables of a shard: created off the control loop, found by name or number, within the memory allowed.

Reserving the pages of a large table takes seconds; a thread does it while the loop serves everybody else.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gear import schema
from gear.errors import DeviceError, GearError, InsufficientMemory, ProtocolError, SchemaError, TableMismatch
from gear.parts import holders, is_spread, part
from gear.plan import Plan
from gear.server.budget import MemoryBudget
from gear.server.clients import Client
from gear.server.lost import Losses
from gear.storage.arrival import Places
from gear.storage.format import Origin, show
from gear.storage.layout import Layout
from gear.storage.memory import size_text
from gear.storage.queue import RequestQueue
from gear.storage.table import StoredTable
from gear.transport.base import table_not_found
from gear.transport.messages import Shape

logger = logging.getLogger(__name__)

MOST_TABLES = 256


@dataclass(frozen=True)
class Place:
    """Where a shard is: its directory, its number among the server's, and the bytes that its tables may take.

    `era`: how often it was started before. `gpu`: the UUID of its device, "" without one; `device_memory`: bytes that
    its tables may take there.
    """

    directory: Path
    shard: int
    shards: int
    memory: int
    era: int = 0
    gpu: str = ""
    device_memory: int = 0

    @property
    def on_shard(self) -> str:
        """The shard for people, where there are several."""
        return f" on shard {self.shard}" if self.shards > 1 else ""


@dataclass(eq=False)
class Hosted:
    """A table, what waits for it, and who uses it (by the client's number in the table).

    Attributes
    ----------
    declared, spec : the whole table.
    stored : this shard's part of it, number `part` of `parts`.
    hidden : nobody finds it yet.
    plain : whether its items are drawn, not claimed in turn.
    """

    stored: StoredTable
    index: int
    declared: schema.Table
    spec: bytes
    part: int = 0
    parts: int = 1
    hidden: bool = False
    clients: dict[int, Client] = field(default_factory=dict)
    reclaim_at: float = 0.0
    plans: dict[tuple[Shape, int], Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = RequestQueue(self.stored)
        self.plain = not self.stored.table.lines
        self.places = Places(self.stored.layout, self.stored.segment, self.stored.arena)

    def show(self, hidden: bool) -> None:
        """Let clients find it, unless it is to stay hidden."""
        if self.hidden and not hidden:
            show(self.stored.segment)
            self.hidden = False

    @property
    def name(self) -> str:
        """The table's name."""
        return self.stored.table.name


Made = Callable[["Hosted | GearError"], None]


@dataclass(eq=False)
class _Birth:
    """A table being created, and who waits for it. `part`: what this shard holds of it."""

    table: schema.Table
    part: schema.Table
    number: int
    parts: int
    index: int
    nbytes: int
    device_bytes: int
    waiting: list[tuple[Made, bool]]


class Tables:
    """All tables of a shard.

    Parameters
    ----------
    place : Place
    budget : MemoryBudget
        What they may take.
    wake : () -> None
        Called from another thread when `finish` has something to do.
    """

    def __init__(self, place: Place, budget: MemoryBudget, wake: Callable[[], None]) -> None:
        self._place, self._budget, self._wake = place, budget, wake
        budget.taken_by(lambda: self.nbytes)
        self._by_index: dict[int, Hosted] = {}
        self.lost = Losses()
        """What ended with earlier processes of the shard."""
        self._by_name: dict[str, Hosted] = {}
        self._births: dict[str, _Birth] = {}
        self._finished: deque[tuple[_Birth, StoredTable | GearError]] = deque()
        self.adopt: Callable[[Hosted], None] = lambda hosted: None
        """Called with a table that was created."""
        self.forget: Callable[[Hosted], None] = lambda hosted: None
        """Called with a table that is dropped."""

    def __iter__(self) -> Iterator[Hosted]:
        return iter(self._by_index.values())

    def __len__(self) -> int:
        return len(self._by_index)

    def __getitem__(self, index: int) -> Hosted:
        return self._by_index[index]

    def get(self, index: int) -> Hosted | None:
        """The table of that number."""
        return self._by_index.get(index)

    def named(self, name: str) -> Hosted | None:
        """The table of that name, hidden or not."""
        return self._by_name.get(name)

    @property
    def nbytes(self) -> int:
        """Bytes of all segments, those being made included."""
        return sum(h.stored.layout.nbytes for h in self) + sum(b.nbytes for b in self._births.values())

    @property
    def device_bytes(self) -> int:
        """Bytes of all arenas on the device, those being made included."""
        return sum(h.stored.layout.device_bytes for h in self) + sum(b.device_bytes for b in self._births.values())

    def find(self, name: str | None) -> Hosted:
        """The table of that name, or the only one.

        Raises
        ------
        TableNotFound
        """
        shown = [hosted for hosted in self if not hosted.hidden]
        if name is None and len(shown) == 1:
            return shown[0]
        hosted = self._by_name.get(name) if name is not None else None
        if hosted is None or hosted.hidden:
            raise table_not_found(name, [hosted.name for hosted in shown])
        return hosted

    def create(self, spec: bytes, hidden: bool, made: Made) -> None:
        """Create a table, or find an equal one; `made` gets it, or the error, once and possibly later.

        One that is `hidden`, of a client that did not come to its end, gives way to another table of that name.

        Raises
        ------
        SchemaError, TableMismatch, InsufficientMemory, DeviceError
        """
        table = schema.from_bytes(spec)
        there = self._by_name.get(table.name)
        birth = self._births.get(table.name)
        known = there.declared if there else birth.table if birth else None
        if there is not None and there.hidden and known != table:
            self._remove(there)
            there = known = None
        if known is not None and known != table:
            raise TableMismatch(
                f"table {table.name!r} exists and differs (as it is there against what was asked for): "
                f"{'; '.join(known.differences(table))}; use another name or "
                "the same declaration"
            )
        if there is not None:
            there.show(hidden)
            made(there)
        elif birth is not None:
            birth.waiting.append((made, hidden))
        else:
            self._conceive(table, hidden, made)

    def drop_hidden(self, spec: bytes) -> None:
        """Drop the part of a table that nobody has found yet."""
        there = self._by_name.get(schema.from_bytes(spec).name)
        if there is not None and there.hidden and there.spec == spec:
            self._remove(there)

    def _remove(self, hosted: Hosted) -> None:
        self.forget(hosted)
        del self._by_name[hosted.name], self._by_index[hosted.index]
        hosted.stored.close()

    def _conceive(self, table: schema.Table, hidden: bool, made: Made) -> None:
        on_device = [c.name for c in table.columns if c.placement == "device"]
        if on_device and not self._place.gpu:
            raise DeviceError(
                f"columns {', '.join(on_device)} are placed on a device, but this server runs on the CPU; use "
                "placement='host', or start it with --devices 0"
            )
        taken = set(self._by_index) | self.lost.numbers | {b.index for b in self._births.values()}
        index = next((n for n in range(MOST_TABLES) if n not in taken), None)
        if index is None:
            raise SchemaError(f"{MOST_TABLES} tables exist, the most there can be; reuse one")
        shards = holders(table, self._place.shards)
        if self._place.shard not in shards:
            raise ProtocolError(f"table {table.name!r} lies on shards {shards}, not on {self._place.shard}")
        number, parts = shards.index(self._place.shard), len(shards)
        mine = part(table, number, parts)
        layout = Layout(mine, index, self._place.shard)
        nbytes = layout.nbytes
        self._check_device(table.name, layout.device_bytes)
        left = self._budget.left
        if nbytes > left:
            raise InsufficientMemory(
                f"table {table.name!r} needs {size_text(nbytes)} ({nbytes} bytes){self._place.on_shard}, but of the "
                f"{size_text(self._place.memory)} allowed by --memory {size_text(max(left, 0))} ({max(left, 0)} bytes) "
                "are left; lower the capacity or raise --memory"
            )
        birth = _Birth(table, mine, number, parts, index, nbytes, layout.device_bytes, [(made, hidden)])
        self._births[table.name] = birth
        try:
            threading.Thread(target=self._give_birth, args=(birth,), name=f"create {table.name}", daemon=True).start()
        except BaseException:  # there may be no more threads: whoever asks again must not wait for this one
            del self._births[table.name]
            raise

    def _check_device(self, name: str, nbytes: int) -> None:
        place = self._place
        left = place.device_memory - self.device_bytes
        if nbytes > left:
            raise InsufficientMemory(
                f"table {name!r} needs {size_text(nbytes)} ({nbytes} bytes) of GPU memory{place.on_shard}, but of the "
                f"{size_text(place.device_memory)} allowed by --device-memory {size_text(max(left, 0))} "
                f"({max(left, 0)} bytes) are left; lower the capacity, raise --device-memory, or place columns on the "
                "host"
            )

    def _give_birth(self, birth: _Birth) -> None:
        result: StoredTable | GearError
        try:
            spread = is_spread(birth.table, birth.parts)
            path = self._place.directory / f"table-{birth.index}"
            origin = Origin(schema.to_bytes(birth.table), birth.number, birth.parts)
            era, gpu = self._place.era, self._place.gpu
            result = StoredTable(birth.part, birth.index, self._place.shard, path, spread, origin, era=era, gpu=gpu)
        except GearError as error:
            result = error
        except Exception as error:
            logger.exception("creating table %s failed", birth.table.name)
            result = GearError(f"internal error of the server: {error!r}; see its log")
        self._finished.append((birth, result))
        self._wake()

    def add(self, hosted: Hosted) -> None:
        """A table is there."""
        self._by_index[hosted.index] = self._by_name[hosted.name] = hosted
        self.adopt(hosted)

    def finish(self) -> None:
        """Take in tables whose creation has ended."""
        while self._finished:
            birth, result = self._finished.popleft()
            del self._births[birth.table.name]
            outcome = result if isinstance(result, GearError) else self._take_in(birth, result)
            for made, _ in birth.waiting:
                try:
                    made(outcome)
                except Exception:  # the others that wait are to hear of it
                    logger.exception("somebody could not be told of table %s", birth.table.name)

    def _take_in(self, birth: _Birth, stored: StoredTable) -> Hosted | GearError:
        """A table that was made, for everybody; if it cannot be had after all nothing of it is left."""
        hosted = None
        try:
            hidden = all(asked for _, asked in birth.waiting)
            spec = schema.to_bytes(birth.table)
            hosted = Hosted(stored, birth.index, birth.table, spec, birth.number, birth.parts, True)
            self.add(hosted)
            hosted.show(hidden)
        except Exception as error:
            logger.exception("table %s could not be taken in", birth.table.name)
            if hosted is not None and hosted.index in self._by_index:
                self._remove(hosted)
            else:
                stored.close()
            return GearError(f"internal error of the server: {error!r}; see its log")
        logger.info("created table %s: %s", birth.table.name, size_text(birth.nbytes))
        return hosted

"""`gear checkpoint restore`: the trajectories of a checkpoint are inserted into the tables of a running server.

It is what any client could do, with NumPy over the files. So it does not matter by which release, on how many shards or
with which samplers and limiters they were saved. A table that is there stays as it is declared; one that is not is
created. Trajectories get new ids and go in by the order in which they were stored; draws, uses, acknowledgements and
what a limiter counted begin anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gear import schema
from gear.grouping import decode_key
from gear.plan import numpy_dtype
from gear.schema import Prioritized, Whole, Window
from gear.storage import arrayfile, fitting, manifest
from gear.storage import fields as f
from gear.storage.item_sets import bits_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.client import Client
    from gear.storage.manifest import Geometry, SavedTable

MANY = 64
"""Trajectories that go in together."""


@dataclass
class Stored:
    """One trajectory as it was saved, whole: `late` are the columns that were there already."""

    columns: dict[str, np.ndarray]
    late: dict[str, np.ndarray]
    final: dict[str, np.ndarray]
    terminated: bool
    priorities: npt.NDArray[np.float64] | None
    version: int | None
    group: Any


class Reader:
    """The trajectories of one shard's part of a table.

    Parameters
    ----------
    root : Path
        Of the checkpoint.
    saved : SavedTable
    """

    def __init__(self, root: Path, saved: SavedTable) -> None:
        self.saved = saved
        self._root = root
        with fitting.reading(root, saved.name):
            self.table = schema.from_bytes(bytes.fromhex(saved.declaration))
        self.arrays = {name: arrayfile.read(root, entry) for name, entry in saved.arrays.items()}
        self._rows = [np.load(root / entry.file, mmap_mode="r") for entry in saved.rows]
        self._values = [np.load(root / entry.file, mmap_mode="r") for entry in saved.values]
        with fitting.reading(root, saved.name):
            self._slots, self._blocks = self.arrays["slots"], self.arrays["blocks"]
            self._check()
        self._declared = {c.name for c in self.table.columns}
        self._late_names = {c.name for c in self.table.columns if c.late}

    def _check(self) -> None:
        """What is read with NumPy alone lies where it is said to lie; whatever else is wrong shows when it is used."""
        saved, name = self.saved, self.saved.name
        slots, blocks = self._slots, self._blocks
        if (slots.dtype.name, slots.ndim, blocks.dtype.name, blocks.ndim) != ("int64", 2, "int32", 2):
            raise fitting.unfit(self._root, name, "slots are int64[n, fields], blocks int32[n, fields]")
        step = [column for column in saved.columns if column.per == "step"]
        ends = [column.offset + (saved.block_steps - 1) * column.stride + column.width for column in step]
        once = [column.offset + column.width for column in saved.columns if column.per != "step"]
        if max(ends, default=0) > saved.block_bytes:
            raise fitting.unfit(self._root, name, "a column ends behind its block")
        fitting.check_rows(self._root, name, saved.rows, saved.block_bytes)
        fitting.check_rows(
            self._root, name, saved.values, max([*once, *(entry.shape[-1] for entry in saved.values)], default=0)
        )
        for entries, kind in ((saved.rows, "block"), (saved.values, "value")):
            if f"{kind}_file" in self.arrays:
                file, row = self.arrays[f"{kind}_file"], self.arrays[f"{kind}_row"]
                fitting.check_places(self._root, name, entries, file, row)

    def __iter__(self) -> Iterator[tuple[int, Stored]]:
        """(order, trajectory) of those that are closed, or were a writer's; pieces that belong together are one.

        Raises
        ------
        CheckpointError
            If the parts of the checkpoint do not fit together.
        """
        with fitting.reading(self._root, self.saved.name):
            yield from self._all()

    def _all(self) -> Iterator[tuple[int, Stored]]:
        slots = self._slots
        there = (slots[:, f.STATE] == f.CLOSED) | ((slots[:, f.STATE] == f.OPEN) & (slots[:, f.WRITER] != f.TABLE))
        there &= slots[:, f.LENGTH] > 0
        numbers = np.flatnonzero(there)
        for slot in numbers[np.argsort(slots[numbers, f.ORDER])].tolist():
            before = int(slots[slot, f.PREDECESSOR])
            if 0 <= before < len(there) and there[before]:
                continue
            pieces = [slot]
            while (after := int(slots[pieces[-1], f.SUCCESSOR])) >= 0 and there[after] and after not in pieces:
                pieces.append(after)
            yield int(slots[slot, f.ORDER]), self._stored(pieces)

    def _stored(self, pieces: list[int]) -> Stored:
        last, saved = pieces[-1], self.saved
        lengths = [int(self._slots[slot, f.LENGTH]) for slot in pieces]
        late_there = [self._late(slot) for slot in pieces]
        columns: dict[str, np.ndarray] = {}
        late: dict[str, np.ndarray] = {}
        final: dict[str, np.ndarray] = {}
        ended = bool(self._slots[last, f.FLAGS] & f.HAS_FINAL)
        chains = [self._chain(slot) for slot in pieces]
        group = None
        for column in saved.columns:
            if column.per == "step":
                parts = [self._steps(column, chain)[:n] for chain, n in zip(chains, lengths, strict=True)]
                value = np.concatenate(parts)
                if ended and column.name not in self._late_names:
                    final[column.name] = self._steps(column, chains[-1])[lengths[-1]]
            else:
                value = self._once(column, last)
            if column.name not in self._declared:  # the key of its group
                group = decode_key(value.tobytes())
            elif column.name in self._late_names:
                if all(column.name in there for there in late_there):
                    late[column.name] = value
            else:
                columns[column.name] = value
        versions = self.arrays.get("versions")
        return Stored(
            columns, late, final, bool(self._slots[last, f.FLAGS] & f.TERMINATED),
            self._priorities(pieces[0], chains[0]) if len(pieces) == 1 else None,
            None if versions is None else int(versions[last]), group,
        )  # fmt: skip

    def _late(self, slot: int) -> set[str]:
        if "late" not in self.arrays:
            return set()
        bits = int(self.arrays["late"][slot, f.LATE_BITS])
        return {name for name in self._late_names if bits & bits_of(self.table, [name])}

    def _chain(self, slot: int) -> list[int]:
        chain: list[int] = []
        block = int(self._slots[slot, f.FIRST])
        while block >= 0 and self.arrays["block_file"][block] >= 0:
            if len(chain) >= len(self._blocks):
                raise fitting.unfit(self._root, self.saved.name, f"the chain of trajectory {slot} has no end")
            chain.append(block)
            block = int(self._blocks[block, f.NEXT])
        return chain

    def _steps(self, column: Geometry, chain: list[int]) -> np.ndarray:
        dtype = np.dtype(numpy_dtype(column.dtype))
        steps, rows = self.saved.block_steps, []
        for block in chain:
            data = np.ascontiguousarray(self._rows[self.arrays["block_file"][block]][self.arrays["block_row"][block]])
            # Unlike `as_strided` it is refused where the bytes are not there.
            strided = np.ndarray((steps, column.width), np.uint8, data.data, column.offset, (column.stride, 1))
            rows.append(np.ascontiguousarray(strided).view(dtype).reshape(steps, *column.shape))
        return np.concatenate(rows)

    def _once(self, column: Geometry, slot: int) -> np.ndarray:
        data = self._values[self.arrays["value_file"][slot]][self.arrays["value_row"][slot]]
        raw = np.array(data[column.offset : column.offset + column.width])
        return raw.view(np.dtype(numpy_dtype(column.dtype))).reshape(column.shape)

    def _priorities(self, slot: int, chain: list[int]) -> npt.NDArray[np.float64] | None:
        """Raw priorities of the items; of leaves those that make them."""
        sampler, item = self.table.sampler, self.table.item
        if "raw" in self.arrays:
            values, leaves = self.arrays["raw"], False
        elif "tree" in self.arrays:
            values, leaves = self.arrays["tree"], True
        else:
            return None
        if isinstance(item, Whole):
            found = values[slot : slot + 1]
        else:
            stride = item.stride if isinstance(item, Window) else 1
            each = -(-self.saved.block_steps // stride)
            starts = np.arange(int(self._slots[slot, f.ITEMS])) * stride
            blocks = np.array(chain)[starts // self.saved.block_steps]
            found = values[blocks * each + starts % self.saved.block_steps // stride]
        if leaves and isinstance(sampler, Prioritized):
            found = np.maximum(found ** (1.0 / sampler.alpha) - sampler.eps, 0.0) * (found > 0)
        return np.asarray(found, np.float64)


def reinsert(root: Path, client: Client) -> dict[str, int]:
    """Insert every trajectory of a checkpoint; how many by table.

    Raises
    ------
    GearError
        If a file is damaged, or a table refuses a trajectory: what was inserted by then stays.
    """
    whole = manifest.verify(root)
    parts: dict[str, list[Reader]] = {}
    for part in whole.parts:
        for saved in part.tables:
            parts.setdefault(saved.name, []).append(Reader(root, saved))
    counts = {}
    for name, readers in parts.items():
        if name not in client.info()["tables"]:
            client.create_table(readers[0].table)
        counts[name] = 0
        batch: list[Stored] = []
        for one in _merged(readers):
            if batch and (len(batch) == MANY or _kind(one) != _kind(batch[0])):
                counts[name] += _insert(client, name, batch)
                batch = []
            batch.append(one)
        if batch:
            counts[name] += _insert(client, name, batch)
    return counts


def _merged(readers: list[Reader]) -> Iterator[Stored]:
    """The trajectories of all parts, about in the order of their insertion."""
    for _, one in heapq.merge(*readers, key=lambda entry: entry[0]):
        yield one


def _kind(one: Stored) -> tuple[object, ...]:
    """What must be alike for trajectories to be inserted by one call."""
    return tuple(sorted(one.late)), tuple(sorted(one.final)), one.group is None


def _insert(client: Client, name: str, batch: list[Stored]) -> int:
    first = batch[0]
    final = {c: np.stack([one.final[c] for one in batch]) for c in first.final} or None
    given = all(one.priorities is not None for one in batch)
    ids = client.insert_many(
        [one.columns for one in batch],
        name,
        priorities=[one.priorities for one in batch] if given else None,
        terminated=np.array([one.terminated for one in batch]),
        final=final,
        versions=None if first.version is None else [max(0, one.version or 0) for one in batch],
        groups=None if first.group is None else [one.group for one in batch],
    )
    if first.late:
        client.fill(ids, {c: [one.late[c] for one in batch] for c in first.late})
    return len(batch)

"""Restoring a table onto another number of shards: its trajectories are dealt out anew, and what depends on places with
them.

Every shard works out the same division by itself, from what all shards have saved, and reads what falls to it.
Kept: rows, lengths, versions, late columns, priorities, uses, what the limiter counted (at the table's home), the
largest draw number. New: ids, places, order within samplers, epochs, the counts of metrics. Open trajectories of
writers are closed as truncated, those of the table are left out: their ids name a place that is another's now.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gear.errors import CheckpointError
from gear.schema import Fresh, Lifo, MinSize, Prioritized
from gear.selection.prioritized import leaf
from gear.storage import arrayfile, fitting
from gear.storage import fields as f
from gear.storage.item_sets import ItemSet
from gear.storage.items import indices, item_count
from gear.storage.putting_back import places
from gear.storage.rebuild import restamp
from gear.storage.rowfiles import scatter

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.devices.arena import Arena
    from gear.storage.layout import Layout
    from gear.storage.manifest import SavedTable


@dataclass(eq=False)
class Source:
    """What one shard has saved of a table, and the layout that it had there."""

    table: SavedTable
    layout: Layout
    arrays: dict[str, np.ndarray]

    @property
    def slots(self) -> npt.NDArray[np.int64]:
        """Slot records."""
        return self.arrays["slots"]


@dataclass(eq=False)
class Plan:
    """What falls to one part: `source`, `slot`: int64[N], where each was."""

    source: npt.NDArray[np.int64]
    slot: npt.NDArray[np.int64]


def load(root: Path, table: SavedTable, layout: Layout) -> Source:
    """The directory of a shard's part, checked.

    Raises
    ------
    CheckpointError
    """
    fitting.check_table(root, table, layout)
    arrays = {name: arrayfile.read(root, entry) for name, entry in table.arrays.items()}
    fitting.check_places(root, table.name, table.rows, arrays["block_file"], arrays["block_row"])
    if "value_file" in arrays:
        fitting.check_places(root, table.name, table.values, arrays["value_file"], arrays["value_row"])
    fitting.check_directory(root, table, layout, arrays)
    return Source(table, layout, arrays)


def deal(sources: list[Source], layouts: list[Layout]) -> tuple[list[Plan], int]:
    """Divide trajectories over parts: each, the newest first, goes where most is free; pieces stay together.

    Returns what falls to each part, and how many have no place.
    """
    entries = []  # order, source, slots of all its pieces
    for number, source in enumerate(sources):
        slots = source.slots
        closing = (slots[:, f.STATE] == f.OPEN) & (slots[:, f.WRITER] != f.TABLE) & (slots[:, f.LENGTH] > 0)
        there = (slots[:, f.STATE] == f.CLOSED) | closing
        for slot in np.flatnonzero(there & ~_follows(slots, there)).tolist():
            pieces = [slot]
            while (after := int(slots[pieces[-1], f.SUCCESSOR])) >= 0 and there[after] and after not in pieces:
                pieces.append(after)
            entries.append((int(slots[pieces[-1], f.ORDER]), number, pieces))
    entries.sort(key=lambda entry: (-entry[0], entry[1]))
    blocks = np.array([layout.data_blocks for layout in layouts], np.int64)
    room, whole = np.array([layout.data_slots for layout in layouts], np.int64), np.maximum(blocks, 1)
    longest = min(layout.max_length for layout in layouts)
    chosen: list[list[tuple[int, int, int]]] = [[] for _ in layouts]
    left_out = 0
    for order, number, pieces in entries:
        slots = sources[number].slots
        lengths = slots[pieces, f.LENGTH] + ((slots[pieces, f.FLAGS] & f.HAS_FINAL) != 0)
        need = int((-(-lengths // layouts[0].block_steps)).sum())
        part = int(np.argmax(blocks / whole))
        if blocks[part] < need or room[part] < len(pieces) or int(slots[pieces, f.LENGTH].max()) > longest:
            left_out += len(pieces)
            continue
        blocks[part] -= need
        room[part] -= len(pieces)
        chosen[part] += [(order, number, slot) for slot in reversed(pieces)]
    plans = []
    for mine in chosen:
        mine.reverse()  # the oldest first again
        table = np.array([(number, slot) for _, number, slot in mine], np.int64).reshape(-1, 2)
        plans.append(Plan(table[:, 0], table[:, 1]))
    return plans, left_out


def _follows(slots: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """bool[slots], the pieces behind another one that is there."""
    before = slots[:, f.PREDECESSOR]
    known = (before >= 0) & (before < len(slots))
    known &= there[np.where(known, before, 0)]
    return known


def plant(
    root: Path,
    sources: list[Source],
    plans: list[Plan],
    part: int,
    layout: Layout,
    segment: npt.NDArray[np.uint8],
    arena: Arena | None = None,
) -> None:
    """Fill the memory of an empty table with the part that falls to it.

    Raises
    ------
    CheckpointError
    """
    plan = plans[part]
    slots, blocks = layout.view(segment, "slots"), layout.view(segment, "blocks")
    first = 0
    for number, source in enumerate(sources):
        then = source.layout
        moved = then.device_block_bytes and not layout.device_block_bytes  # to the host, column by column
        same = moved or then.full_block_bytes == layout.full_block_bytes
        if not same or (then.block_steps, then.items_per_block) != (layout.block_steps, layout.items_per_block):
            raise CheckpointError(
                f"table {layout.table.name!r} has blocks of another size here than where it was saved"
            )
        mine = np.flatnonzero(plan.source == number)  # numbers of the new slots
        where = np.full(source.layout.slots, -1, np.int64)
        where[plan.slot[mine]] = mine
        chain = _chains(source, plan.slot[mine])
        to = np.full(source.layout.blocks, -1, np.int64)
        to[chain] = first + np.arange(len(chain))
        first += len(chain)
        _directory(source, layout, slots, blocks, where, to, mine, plan.slot[mine])
        _items(source, layout, segment, where, to)
        _rows(root, source, layout, segment, arena, where, to)
    _finish(sources, layout, segment, plans, part, len(plan.slot))


def _chains(source: Source, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The blocks of slots, chain by chain."""
    blocks, chains = source.arrays["blocks"], []
    for slot in slots.tolist():
        block = int(source.slots[slot, f.FIRST])
        while block >= 0:
            chains.append(block)
            block = int(blocks[block, f.NEXT])
    return np.array(chains, np.int64)


def _directory(
    source: Source,
    layout: Layout,
    slots: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int32],
    where: npt.NDArray[np.int64],
    to: npt.NDArray[np.int64],
    new: npt.NDArray[np.int64],
    old: npt.NDArray[np.int64],
) -> None:
    """Records of slots and blocks; where, to: new numbers of all slots and blocks, -1 for those of others."""
    theirs, records = source.arrays["blocks"], source.slots[old]
    came = np.flatnonzero(to >= 0)
    blocks[to[came], f.GENERATION] = 1
    blocks[to[came], f.SLOT] = where[theirs[came, f.SLOT]]
    blocks[to[came], f.ORDINAL] = theirs[came, f.ORDINAL]
    for link in (f.NEXT, f.PREVIOUS):
        other = theirs[came, link]
        blocks[to[came], link] = np.where(other >= 0, to[np.maximum(other, 0)], -1)
    blocks[to[came], f.OWNER] = -1
    for field in (f.LENGTH, f.FLAGS, f.ITEMS, f.BASE):
        slots[new, field] = records[:, field]
    slots[new, f.FIRST], slots[new, f.LAST] = to[records[:, f.FIRST]], to[records[:, f.LAST]]
    slots[new, f.STATE], slots[new, f.WRITER], slots[new, f.ORDER] = f.CLOSED, -1, 1 + new
    for way in (f.PREDECESSOR, f.SUCCESSOR):
        other = records[:, way]
        known = (other >= 0) & (other < len(where))
        slots[new, way] = np.where(known, where[np.where(known, other, 0)], -1)
    for k in np.flatnonzero(records[:, f.STATE] == f.OPEN).tolist():
        slots[new[k], f.ITEMS] = max(
            int(records[k, f.ITEMS]), int(item_count(layout.params, records[k, f.LENGTH], True))
        )


def _items(
    source: Source,
    layout: Layout,
    segment: npt.NDArray[np.uint8],
    where: npt.NDArray[np.int64],
    to: npt.NDArray[np.int64],
) -> None:
    """What is kept for each item and for each slot."""
    whole = layout.params[f.P_ITEM] == f.WHOLE
    numbers, each = (where, 1) if whole else (to, layout.items_per_block)
    came = np.flatnonzero(numbers >= 0)
    for name, width in (("tree", 1), ("raw", 1), ("stamps", 1), ("times", 2)):
        if name in source.arrays:
            n = len(numbers) * each * width
            theirs = source.arrays[name][:n].reshape(len(numbers), -1)
            mine = layout.view(segment, name)[: (layout.slots if whole else layout.blocks) * each * width]
            mine.reshape(-1, each * width)[numbers[came]] = theirs[came]
    came = np.flatnonzero(where >= 0)
    for name in ("late", "versions"):
        if name in source.arrays:
            layout.view(segment, name)[where[came]] = source.arrays[name][came]


def _rows(
    root: Path,
    source: Source,
    layout: Layout,
    segment: npt.NDArray[np.uint8],
    arena: Arena | None,
    where: npt.NDArray[np.int64],
    to: npt.NDArray[np.int64],
) -> None:
    arrays, mine = source.arrays, places(source.layout, layout, segment, arena)
    scatter(root, source.table.rows, arrays["block_file"], arrays["block_row"], mine, to)
    if "value_file" in arrays:
        files = source.table.values
        scatter(root, files, arrays["value_file"], arrays["value_row"], layout.strips(segment), where)


def _finish(
    sources: list[Source], layout: Layout, segment: npt.NDArray[np.uint8], plans: list[Plan], part: int, n: int
) -> None:
    """Counters, as of all shards at the table's home, the first part; checksums; keys of ordered samplers."""
    counters, floats, slots = (layout.view(segment, name) for name in ("counters", "floats", "slots"))
    theirs = [source.arrays["counters"] for source in sources]
    counters[f.INSERTED], counters[f.INSERTED_STEPS] = n, slots[:n, f.LENGTH].sum()
    for field in (f.DRAWS, f.REMOVER_DRAWS, f.VERSION, f.STAMP):
        counters[field] = max(int(one[field]) for one in theirs)
    counters[f.STAMP] = max(int(counters[f.STAMP]), n)
    floats[f.MAX_PRIORITY] = max(float(source.arrays["floats"][f.MAX_PRIORITY]) for source in sources)
    _weigh_last_items(sources, plans[part], layout, segment)
    counters[f.INSERTED_ITEMS] = slots[:n, f.ITEMS].sum()
    if part == 0:
        elsewhere = sum(
            int(sources[s].slots[plan.slot[plan.source == s], f.ITEMS].sum())
            for k, plan in enumerate(plans) if k for s in range(len(sources))
        )  # fmt: skip
        counters[f.INSERTED_ITEMS] = max(int(counters[f.INSERTED_ITEMS]), _sum(theirs, f.INSERTED_ITEMS) - elsewhere)
        counters[f.RETURNED_ITEMS] = _sum(theirs, f.RETURNED_ITEMS)
        sampled = _sum(theirs, f.SAMPLED_ITEMS)
        counters[f.SAMPLED_ITEMS] = sampled
        if layout.spread and not isinstance(layout.table.limiter, MinSize):
            counters[f.CREDITED] = max(sampled, _sum(theirs, f.CREDITED))
    for one in layout.sets[1:]:
        _set_draws(sources, layout, segment, one)
    keys = layout.view(segment, "slot_keys")
    if len(keys):
        layout.view(segment, "slot_stamps")[:n] = slots[:n, f.ORDER]
        if isinstance(layout.table.sampler, Lifo):
            keys[:n] = slots[:n, f.ORDER]
        elif isinstance(layout.table.sampler, Fresh):
            keys[:n] = layout.view(segment, "versions")[:n]
    stamps = layout.view(segment, "remover_stamps")
    if len(stamps):
        stamps[:n] = slots[:n, f.ORDER]
    restamp(segment, layout.params)


def _weigh_last_items(sources: list[Source], plan: Plan, layout: Layout, segment: npt.NDArray[np.uint8]) -> None:
    """Items that came with the end of what was open are like those that are inserted without a priority."""
    slots, times = layout.view(segment, "slots"), layout.view(segment, "times").reshape(-1, 2)
    raw, tree, sampler = layout.view(segment, "raw"), layout.view(segment, "tree"), layout.table.sampler
    largest = float(layout.view(segment, "floats")[f.MAX_PRIORITY])
    for number, source in enumerate(sources):
        mine = np.flatnonzero(plan.source == number)
        begin, end = source.slots[plan.slot[mine], f.ITEMS], slots[mine, f.ITEMS]
        for k in np.flatnonzero(begin < end).tolist():
            items = indices(segment, layout.params, mine[k], begin[k], end[k])
            if len(times):
                times[items] = 0
            if len(raw):
                raw[items] = largest
            if isinstance(sampler, Prioritized):
                tree[items] = leaf(largest, sampler.alpha, sampler.eps)


def _set_draws(sources: list[Source], layout: Layout, segment: npt.NDArray[np.uint8], one: ItemSet) -> None:
    name = one.region("counters")
    layout.view(segment, name)[f.DRAWS] = max(int(source.arrays[name][f.DRAWS]) for source in sources)


def _sum(counters: list[np.ndarray], field: int) -> int:
    return sum(int(one[field]) for one in counters)

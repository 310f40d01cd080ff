"""A table's directory counted one by one: every block, slot and item against the counters and what is known.

`Recount` takes a drive of `test_recount`, which remembers in plain Python who leases and who reads what.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import gear
from gear.storage import fields as f
from gear.storage.item_sets import bits_of

from .actors import column, read
from .test_table import positions

if TYPE_CHECKING:
    from .test_recount import Drive


class Recount:
    """The directory as it is: blocks, slots and items, counted one by one."""

    def __init__(self, drive: Drive) -> None:
        self.drive, self.stored, self.layout, self.table = drive, drive.stored, drive.layout, drive.table
        self.view = partial(self.layout.view, self.stored.segment)
        self.counters, self.info, self.limit = self.stored.counters, self.stored.info(), self.table.max_times_sampled
        self.blocks, self.slots, self.times = map(self.view, ("blocks", "slots", "times"))
        self.state = [np.flatnonzero(self.slots[:, f.STATE] == s).tolist() for s in range(f.EVICTED + 1)]
        self.kept, self.evicted = self.state[f.OPEN] + self.state[f.CLOSED], self.state[f.EVICTED]
        self.chains = {s: self.walk(self.blocks, f.NEXT, self.slots[s, f.FIRST]) for s in self.kept + self.evicted}
        self.owned = [s for s in self.state[f.OPEN] if self.slots[s, f.WRITER] == f.TABLE]
        self.items = {s: [] if s in self.owned else self.items_of(s) for s in self.kept}
        every = sum(self.items.values(), [])
        self.live = {i for i in every if not self.limit or self.times[2 * i] < self.limit}
        self.acks, self.full = self.view("acks"), (1 << self.table.lines) - 1
        if self.table.lines and self.table.leaves:
            self.live = {i for i in every if self.acks[i] != self.full}
        self.readable = [d for d in drive.draws if d.holders or not d.settled]

    def check(self) -> None:
        for name in (
            "places", "leases", "pins", "uses", "totals", "late", "opened", "stale", "remover", "credit", "consumers",
        ):  # fmt: skip
            getattr(self, name)()
        for one in self.layout.sets:
            self.sampler(one)

    def walk(self, records: np.ndarray, following: int, at: int) -> list[int]:
        path: list[int] = []
        while at >= 0 and len(path) <= len(records):
            path.append(int(at))
            at = records[at, following]
        return path

    def items_of(self, slot: int) -> list[int]:
        """Indices of the slot's items in per-item arrays, from the definition of an item."""
        at = positions(self.table.item, int(self.slots[slot, f.LENGTH]), self.slots[slot, f.STATE] == f.CLOSED)
        if isinstance(self.table.item, gear.Whole):
            return [slot for _ in at]
        chain, steps, stride = self.chains[slot], self.layout.block_steps, int(self.layout.params[f.P_STRIDE])
        return [chain[t // steps] * self.layout.items_per_block + t % steps // stride for t in at]

    def places(self) -> None:
        free = np.roll(self.view("free_blocks"), -self.counters[f.FREE_HEAD])[: self.counters[f.FREE_BLOCKS]].tolist()
        taken = [*np.flatnonzero(self.blocks[:, f.OWNER] != -1).tolist(), *sum(self.chains.values(), [])]
        assert len({*free, *taken}) == len(free + taken), "a block is in two places"
        assert len(free + taken) + self.info["retired_blocks"] == self.layout.blocks, "blocks were lost"
        slots = np.roll(self.view("free_slots"), -self.counters[f.SLOT_HEAD])[: self.counters[f.FREE_SLOTS]].tolist()
        assert sorted(slots) == self.state[f.FREE], "the ring of free slots does not hold the free slots"
        for slot, chain in self.chains.items():
            records = self.blocks[chain][:, [f.SLOT, f.ORDINAL]].tolist()
            assert records == [[slot, n] for n in range(len(chain))], f"the chain of slot {slot} is broken"
        order = self.walk(self.slots, f.NEWER, self.counters[f.OLDEST])
        assert order == sorted(self.kept, key=lambda s: self.slots[s, f.ORDER]), "stored trajectories are out of order"

    def leases(self) -> None:
        for client in self.drive.clients:
            slots = sum(int(self.slots[slot, f.WRITER]) == client.client for slot in self.state[f.LEASED])
            found = [int((self.blocks[:, f.OWNER] == client.client).sum()), slots]
            record = self.view("clients")[client.client, f.LEASED_BLOCKS : f.LEASED_SLOTS + 1].tolist()
            assert found == record == client.leased(), "leases were miscounted or lost"

    def pins(self) -> None:
        assert set(self.stored.pins._pins) == {d.selection.pin for d in self.readable}, "a pin outlives its readers"
        pinned = Counter(slot for draw in self.readable for slot in draw.slots)
        pinned.update(slot for slot in self.chains if self.slots[slot, f.WRITER] >= 0 or slot in self.owned)
        found = {slot: int(n) for slot, n in enumerate(self.slots[:, f.PINS]) if n}
        assert found == dict(pinned), "slots are not pinned by just their readers and writers"
        rows = [(read(self.stored, *item), before) for draw in self.readable for item, before in draw.rows.items()]
        assert all(map(np.array_equal, now, before) for now, before in rows), "rows changed under their reader"

    def uses(self) -> None:
        for slot, items in self.items.items() if self.limit else ():
            out, back = self.times[0::2][items], self.times[1::2][items]
            assert (back <= out).all(), "an item was delivered more often than drawn"
            assert (out <= self.limit).all(), "an item was drawn too often"
            gone = int((back >= self.limit).sum())
            assert self.slots[slot, f.GONE] == gone, "used-up items are miscounted"
            assert gone < len(items) or slot in self.state[f.OPEN], "a used-up trajectory stays stored"

        if self.table.lines and self.table.leaves:
            for slot, items in self.items.items():
                gone = int((self.acks[items] == self.full).sum()) if items else 0
                assert self.slots[slot, f.GONE] == gone, "items that everybody has acknowledged are miscounted"
                assert gone < len(items) or slot in self.state[f.OPEN], "a consumed trajectory stays stored"

    def totals(self) -> None:
        sizes, c = [len(self.items[s]) for s in self.kept], self.counters
        assert self.slots[self.kept, f.ITEMS].tolist() == sizes, "a trajectory has the wrong number of items"
        items = sum(sizes) - int(self.slots[self.kept, f.GONE].sum())
        blocks = [sum(len(self.chains[s]) for s in slots) for slots in (self.kept, self.evicted)]
        blocks.append(int((self.blocks[:, f.OWNER] != -1).sum()))
        assert c[[f.USED_BLOCKS, f.HELD_BLOCKS, f.LEASED_BLOCK_COUNT]].tolist() == blocks, "blocks are miscounted"
        slots = [len(self.kept), len(self.evicted), len(self.kept)]
        assert c[[f.USED_SLOTS, f.HELD_SLOTS, f.STORED]].tolist() == slots, "slots are miscounted"
        assert c[f.STORED_STEPS] == self.slots[self.kept, f.LENGTH].sum(), "steps are miscounted"
        assert c[f.INSERTED_ITEMS] - c[f.DELETED_ITEMS] == c[f.ITEM_COUNT] == items, "items are miscounted"
        assert c[f.INSERTED] - c[f.EVICTED_COUNT] - c[f.CONSUMED] == len(self.kept), "a trajectory left uncounted"
        if isinstance(self.table.limiter, (gear.Queue, gear.Stack)):
            gone = [s for d in self.drive.draws if not d.settled and not d.before_reset for s in d.slots]
            stale = sum(bool(self.slots[s, f.FLAGS] & f.STALE_NOW) for s in gone if self.slots[s, f.STATE] == f.EVICTED)
            if self.table.lines:
                stale = 0  # what is claimed goes at once: only an acknowledgement counts as delivered
            left = c[f.DELETED_ITEMS] - c[f.RETURNED_ITEMS]
            assert left == c[f.SAMPLED_ITEMS] + stale, "an item left a queue undelivered"
        used = {gear.Steps: "steps", gear.Trajectories: "trajectories", gear.Bytes: "used_bytes"}
        assert self.info[used[type(self.table.capacity)]] <= self.table.capacity.n, "the capacity is exceeded"
        assert self.info["used_blocks"] <= self.layout.data_blocks, "the reserve holds data"

    def late(self) -> None:
        """The bits and rows of late columns are those that were filled."""
        names = [c.name for c in self.table.columns if c.late]
        for slot in self.state[f.CLOSED] if names else ():
            there = self.drive.filled.get((slot, int(self.slots[slot, f.ORDER])), {})
            bits, changes = self.view("late")[slot].tolist()
            assert {n for k, n in enumerate(names) if bits >> k & 1} == set(there), "other late columns are there"
            assert changes % 2 == 0, "a trajectory stays marked as being written"
            if "a" in there:
                rows = np.concatenate([column(self.stored, "a")[block] for block in self.chains[slot]])
                assert (rows[: self.slots[slot, f.LENGTH]] == there["a"]).all(), "rows are not those that were filled"
            if "b" in there:
                place = self.layout.placements["b"]
                at = self.layout.regions["trajectories"].offset + place.offset + slot * place.stride
                assert (self.stored.segment[at : at + 8].view(np.int32) == there["b"]).all(), "the value is another"

    def opened(self) -> None:
        """Open trajectories of the table are those that were opened, as long as they were appended to."""
        known = {self.drive.slot_of(name): length for name, (_, length) in self.drive.opened.items()}
        known.pop(None, None)
        assert {s: int(self.slots[s, f.LENGTH]) for s in self.owned} == known, "open trajectories differ"
        counted = [len(self.owned), sum(known.values()), sum(len(self.chains[s]) for s in self.owned)]
        assert self.counters[[f.OPENED, f.OPENED_STEPS, f.OPENED_BLOCKS]].tolist() == counted, "they are miscounted"
        most = self.table.capacity.n // 2
        used = {gear.Steps: counted[1], gear.Trajectories: counted[0], gear.Bytes: counted[2] * self.layout.block_bytes}
        assert used[type(self.table.capacity)] <= most, "open trajectories take more than half"

    def stale(self) -> None:
        if self.table.max_staleness is not None:
            oldest = self.stored.version - self.table.max_staleness
            assert (self.view("versions")[self.state[f.CLOSED]] >= oldest).all(), "a trajectory that is too old stays"

    def items_in(self, one) -> list[int]:
        """The items of a set that can be drawn, used up or not."""
        slots = [s for s in self.kept if s not in self.owned]
        if one.needs:
            slots = [s for s in self.state[f.CLOSED] if self.view("late")[s, 0] & one.needs == one.needs]
        items = [i for s in slots for i in self.items[s]]
        if one.with_open:
            whole = isinstance(self.table.item, gear.Whole)
            for slot in self.owned:
                items += [slot] * bool(self.slots[slot, f.LENGTH]) if whole else self.items_of(slot)
        return items

    def sampler(self, one) -> None:
        """The sampler can draw the items of the set that are not used up, and no others."""
        sampler, live = self.table.sampler, self.view(one.region("live"))
        counters = self.view(one.region("counters"))
        drawable = mine = {i for i in self.items_in(one) if not self.limit or self.times[2 * i] < self.limit}
        if self.table.lines and self.table.leaves:
            drawable = mine = self.live
        if isinstance(sampler, gear.Uniform):
            live = live[: counters[f.LIVE_UNITS]].tolist()
            units = Counter(self.unit_of(i) for i in mine)
            assert {entry & 0xFFFFFFFF: entry >> 32 for entry in live} == units, "the live units hold other items"
        if isinstance(sampler, (gear.MaxHeap, gear.MinHeap, gear.Epochs)):
            live = live[: counters[f.LIVE_ITEMS]].tolist()
            assert sorted(live) == sorted(mine), "the list holds other items"
            place = self.view(one.region("position"))[live].tolist()
            assert place == list(range(len(live))), "an item is not where it should be"
        if isinstance(sampler, (gear.MaxHeap, gear.MinHeap)):
            self.heap(live, self.view("raw"), self.view("stamps"), isinstance(sampler, gear.MaxHeap))
        if isinstance(sampler, gear.Epochs):
            assert 0 <= counters[f.EPOCH_DRAWN] <= len(live), "more items were drawn than there are"
        if isinstance(sampler, (gear.Fifo, gear.Lifo, gear.Fresh)) and self.limit:
            self.cursors()
        if self.table.by_slot(one.number > 0):
            live = live[: counters[f.LIVE_UNITS]].tolist()
            slots = {int(self.blocks[self.block_of(i), f.SLOT]) for i in mine}
            assert len(live) == len(set(live)), "a slot is listed twice"
            assert slots <= set(live) <= set(self.kept), "the slots of the items are not listed"
            self.heap(live, self.view("slot_keys"), self.view("slot_stamps"), largest=True)
        if isinstance(sampler, gear.Prioritized):
            tree, raw = self.view(one.region("tree")), self.view("raw")
            leaves = tree[: self.layout.items]
            found = set(np.flatnonzero(leaves).tolist())
            first = self.view("tree")
            drawable = mine if sampler.eps else {i for i in mine if (raw[i] if len(raw) else first[i]) > 0}
            assert found == drawable, "the leaves with mass are not the live items"
            assert (leaves[list(found)] == first[list(found)]).all(), "an item weighs more in one set than in another"
            assert np.isclose(tree[-f.FAN :].sum(), leaves.sum()), "the tree does not add up"
        if not isinstance(sampler, gear.Prioritized) or self.table.distinct:
            assert counters[f.LIVE_ITEMS] == len(drawable), "live items are miscounted"

    def block_of(self, item: int) -> int:
        """A block of the item's trajectory."""
        whole = isinstance(self.table.item, gear.Whole)
        return int(self.slots[item, f.FIRST]) if whole else item // self.layout.items_per_block

    def unit_of(self, item: int) -> int:
        if isinstance(self.table.item, gear.Whole):
            return item
        block = item // self.layout.items_per_block
        return int(self.blocks[block, f.SLOT]) if self.table.sampler == gear.Uniform("trajectories") else block

    def cursors(self) -> None:
        """What a cursor has passed over is used up, and its block is one of the slot's."""
        for slot, items in self.items.items():
            at, block = self.slots[slot, [f.CURSOR, f.CURSOR_BLOCK]].tolist()
            passed = items[at:] if isinstance(self.table.sampler, gear.Lifo) else items[:at]
            assert not self.live.intersection(passed), "a cursor passed over an item that can be drawn"
            assert block in self.chains[slot], "a cursor stands in a block of another trajectory"

    @staticmethod
    def heap(entries: list[int], keys: np.ndarray, stamps: np.ndarray, largest: bool) -> None:
        order = [(-keys[e] if largest else keys[e], stamps[e]) for e in entries]
        assert all(order[(k - 1) // 2] < order[k] for k in range(1, len(order))), "the heap is out of order"

    def remover(self) -> None:
        if isinstance(self.table.remover, gear.Uniform):
            found = self.view("remover_live")[: self.counters[f.REMOVER_LIVE]] & 0xFFFFFFFF
            assert sorted(found.tolist()) == self.state[f.CLOSED], "the remover does not choose among closed slots"
        if isinstance(self.table.remover, (gear.MaxHeap, gear.MinHeap)):
            found = self.view("remover_live")[: self.counters[f.REMOVER_LIVE]].tolist()
            keys, raw = self.view("remover_keys"), self.view("raw")
            assert sorted(found) == self.state[f.CLOSED], "the remover does not choose among closed slots"
            assert all(keys[s] == max(raw[self.items[s]], default=0) for s in found), "a slot has another priority"
            self.heap(found, keys, self.view("remover_stamps"), isinstance(self.table.remover, gear.MaxHeap))
        if isinstance(self.table.remover, gear.Prioritized):
            found = np.flatnonzero(self.view("remover_tree")[: self.layout.slots])
            assert set(found.tolist()) <= set(self.state[f.CLOSED]), "the remover weighs a slot that is not closed"

    def credit(self) -> None:
        """Reserved is what was drawn since the last reset and not settled, and what waiting selects have gathered."""
        if self.table.lines:
            assert self.counters[f.RESERVED_ITEMS] == 0, "a consumer's draw took credit"
            return
        draws = [d for d in self.drive.draws if not d.before_reset]
        gathered = sum(r.credit for r in self.drive.queue._selects)
        reserved = sum(len(d.slots) for d in draws if not d.settled) + gathered
        sampled = sum(len(d.slots) for d in draws if d.settled and d.delivered)
        assert self.counters[f.SAMPLED_ITEMS] == sampled, "delivered samples are miscounted"
        assert self.counters[f.RESERVED_ITEMS] == reserved, "reserved credit is miscounted"

    def item_of(self, number: int) -> int:
        """Index of the stored item with that id, -1 if there is none."""
        row = number & ((1 << self.layout.row_bits) - 1)
        block, steps = row // self.layout.block_steps, self.layout.block_steps
        slot = int(self.blocks[block, f.SLOT])
        generation = number >> self.layout.row_bits & ((1 << (f.ID_SHARD_SHIFT - self.layout.row_bits)) - 1)
        if slot not in self.kept or self.blocks[block, f.GENERATION] != generation:
            return -1
        whole = isinstance(self.table.item, gear.Whole)
        return (
            slot if whole else block * self.layout.items_per_block + row % steps // int(self.layout.params[f.P_STRIDE])
        )

    def consumers(self, silent: int = -1) -> None:
        """Each item waits for a consumer, is claimed by who was served it, or is acknowledged: one of the three."""
        every = [item for items in self.items.values() for item in items]
        for consumer in range(self.table.lines):
            line = self.view("lines").reshape(-1, f.LINE_FIELDS)[consumer].tolist()
            links = self.view("links").reshape(self.table.lines, -1, 2)[consumer]
            waiting = self.walk(links, 0, line[f.LINE_HEAD])
            assert waiting[::-1] == self.walk(links, 1, line[f.LINE_TAIL]), "a line is not linked both ways"
            order = self.view("units").reshape(1 + self.table.lines, -1)[1 + consumer]
            units = order[waiting].tolist()
            assert units == sorted(units), "a line is out of order"
            assert [line[f.LINE_UNITS], line[f.LINE_WAITING]] == [len(set(units)), len(waiting)], "a line is miscounted"
            acknowledged = {item for item in every if self.acks[item] >> consumer & 1}
            claimed = set(np.flatnonzero(self.view("claims").reshape(self.table.lines, -1)[consumer]).tolist())
            gathering = [] if self.stored.groups is None else self.gathering()
            lacking = self.lacking(consumer, order, {*gathering, *acknowledged})
            states = sorted([*waiting, *claimed, *acknowledged, *gathering, *lacking])
            assert states == sorted(every), "an item is in no state or in two"
            held = ((self.item_of(n), d.selector) for (c, n), d in self.drive.claimed.items() if c == consumer)
            assert claimed == {item for item, who in held if item >= 0 and who != silent}, (
                "claims are not their holders'"
            )
            known = {self.item_of(n) for c, n in self.drive.acknowledged if c == consumer} - {-1}
            assert acknowledged == known, "acknowledgements were lost or made up"
            outcomes = line[f.LINE_ACKNOWLEDGED] + line[f.LINE_DROPPED] + len(waiting) + len(claimed)
            outcomes += len(gathering) + len(lacking)
            assert outcomes == self.counters[f.INSERTED_ITEMS], "consumed + dropped + left is not what was inserted"

    def lacking(self, consumer: int, order: np.ndarray, elsewhere: set[int]) -> list[int]:
        """Items that a consumer waits for: some late column that it needs is not there, of it or of its group."""
        needs = bits_of(self.table, self.table.needs_of(consumer))
        lacking = []
        for slot, items in self.items.items() if needs else ():
            ring = self.walk_ring(self.view("mates"), slot) if self.table.group_size else [slot]
            whole = all(
                int(late[f.LATE_BITS]) & needs == needs for late in self.view("late").reshape(-1, f.LATE_FIELDS)[ring]
            )
            for item in items:
                if item not in elsewhere:
                    assert (order[item] != 0) == whole, (
                        "an item waits for a consumer that needs more of it, or the reverse"
                    )
                    lacking += [item] * (not whole)
        return lacking

    def gathering(self) -> list[int]:
        """Slots of groups that wait for members; each ring of mates is (what is left of) one group."""
        book, mates, size = self.stored.groups, self.view("mates"), self.table.group_size
        for slot in self.kept:
            ring = self.walk_ring(mates, slot)
            assert len(ring) <= size, "a group has too many members"
            assert set(ring) <= set(self.kept), "a group was torn apart"
            assert len({bytes(self.drive.keys[s]) for s in ring}) == 1, "two keys are mixed in one group"
            assert len({int(self.view("units")[s]) for s in ring}) == 1, "a group is in the lines in part"
        alive = [g for g in book._gathering.values() if book._there(g)]
        assert all(0 < len(g.slots) < size for g in alive), "a complete group is still waited for"
        assert all(sorted(self.walk_ring(mates, g.slots[0])) == sorted(g.slots) for g in alive), "a member is missing"
        return sorted(slot for group in alive for slot in group.slots)

    @staticmethod
    def walk_ring(mates: np.ndarray, slot: int) -> list[int]:
        ring, at = [slot], int(mates[slot])
        while at != slot:
            ring.append(at)
            at = int(mates[at])
        return ring

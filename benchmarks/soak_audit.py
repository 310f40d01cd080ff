"""What the soak asks of the tables themselves: whose blocks are whose, and all that is stored, each once.

Leases are read from the directory in shared memory, which a client maps and never writes. What is stored is
drawn until every item was seen, so that the samplers are audited along with the storage.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import gear
from benchmarks.soak_account import Accounts, states
from benchmarks.soak_rows import LONGEST, TABLES, check, length_of, number_of, places_of
from gear.storage import fields
from gear.transport.several import Several

Place = tuple[str, int]
"""A table, and a shard that it lies on."""

Leases = dict[tuple[Place, int], frozenset[tuple[int, int]]]
"""By place and number of the client there: the (block, generation) it has leased."""

DRAWS = 2000
BATCH = 1024


def leases(client: gear.Client) -> Leases:
    """All leases now. A block that went to somebody else meanwhile has another generation, even if it came back."""
    found: Leases = {}
    for table in TABLES:
        for _, opened in client._session.parts(client._session.open_table(table.name, 10.0)):
            records = np.array(opened.layout.view(opened.segment, "blocks"))  # a copy: the shard writes on
            for owner in np.unique(records[:, fields.OWNER]):
                if owner >= 0:
                    blocks = np.flatnonzero(records[:, fields.OWNER] == owner)
                    named = zip(blocks.tolist(), records[blocks, fields.GENERATION].tolist(), strict=True)
                    found[(table.name, opened.layout.shard), int(owner)] = frozenset(named)
    return found


def quarantined(client: gear.Client) -> dict[Place, int]:
    """Blocks in quarantine."""
    session = client._session
    shards = session.living.items() if isinstance(session, Several) else [(0, session)]
    figures = {shard: one.info(10.0)["tables"] for shard, one in shards}
    return {(name, shard): t["quarantined_blocks"] for shard, tables in figures.items() for name, t in tables.items()}


def kept(before: Leases, after: Leases, held: dict[Place, int]) -> bool:
    """Whether one client had in each table just the blocks in quarantine there, and has the same ones still.

    It has one number per table and shard. Clients that go on working exchange theirs all the time.
    """
    return all(
        any(
            there == place and len(blocks) == count and after.get((there, owner)) == blocks
            for (there, owner), blocks in before.items()
        )
        for place, count in held.items()
        if count
    )


class Stored:
    """All that a table stores, read back by drawing: id, number and first step of each item."""

    def __init__(self, client: gear.Client, table: str, items: int, seed: int) -> None:
        self.table, self.items, self.seed = table, items, seed
        self.ids = np.empty(0, np.int64)
        self.numbers, self.steps = np.empty(0, np.int64), np.empty(0, np.int64)
        for _ in range(DRAWS):
            if len(self.ids) >= items:
                break
            self._draw(client)

    def _draw(self, client: gear.Client) -> None:
        batch = client.sample(BATCH, self.table, timeout=10.0)
        check(batch, self.table, self.seed)
        size = len(batch.ids)
        ids, first = np.unique(np.concatenate([self.ids, batch.ids]), return_index=True)
        numbers = np.asarray(batch["number"]).reshape(size, -1, 4)[:, 0, 0]
        steps = np.asarray(batch["step"]).reshape(size, -1)[:, 0].astype(np.int64)
        self.numbers = np.concatenate([self.numbers, numbers])[first]
        self.steps = np.concatenate([self.steps, steps])[first]
        self.ids = ids
        if self.table == "windows" and len(ids) < self.items:  # what was seen is not drawn any more
            client.update_priorities(batch.ids, np.zeros(size), timeout=10.0)

    def faults(self, trajectories: int, accounts: Accounts, shards: int = 1, early: int = 0) -> dict[str, object]:
        """What is wrong with it, by property; an empty value is none.

        early : how many trajectories have left because blocks ran out, which may be others than the oldest.
        """
        numbers, counts = np.unique(self.numbers, return_counts=True)
        places = np.unique(self.numbers * (LONGEST + 1) + self.steps)
        lengths = length_of(numbers, self.seed) if self.table in ("windows", "rows") else np.ones_like(numbers)
        acknowledged, unknown = states(numbers, self.table, accounts)
        torn = counts != lengths
        if self.table == "rows":  # what a writer that was killed had made visible stays, from its first step on
            torn &= ~unknown | (counts != self._ends(numbers))
        strange = ~acknowledged & ~unknown
        missing = self._missing(accounts, shards)
        unseen = (len(self.ids), self.items) if len(self.ids) != self.items else ()
        return {
            "all items were read back": unseen,
            "no row is stored twice": len(self.ids) - len(places),
            "every trajectory is there from its first step to its last": numbers[torn][:5].tolist(),
            "as many trajectories as the table counts": () if len(numbers) == trajectories else len(numbers),
            "all that is stored was acknowledged": numbers[strange][:5].tolist(),
            "nothing acknowledged is missing": missing[:5] if len(missing) > early else [],
        }

    def _ends(self, numbers: np.ndarray) -> np.ndarray:
        """int64[N], the step behind the last one that is stored of each trajectory."""
        ends = np.zeros(len(numbers), np.int64)
        np.maximum.at(ends, np.searchsorted(numbers, self.numbers), self.steps + 1)
        return ends

    def _missing(self, accounts: Accounts, shards: int) -> list[int]:
        """Numbers that were acknowledged, are not stored, and cannot have been evicted.

        The oldest trajectory leaves first, and a writer's come one after the other to each shard: what is missing is
        older than all of its writer's on some shard. From the table that is never full nothing leaves.
        """
        found: list[int] = []
        writers, _, places = places_of(self.numbers)
        shard = self.ids >> fields.ID_SHARD_SHIFT & 0xFF
        for writer, account in accounts.items():
            known = account.acknowledged(self.table)
            mine = (writers == writer) & (places < len(known))
            oldest = [int(places[mine & (shard == s)].min(initial=len(known))) for s in range(shards)]
            known[places[mine]] = False
            since = 0 if self.table == "kept" else max(oldest)
            found += [
                number_of(writer, self.table, place) for place in (np.flatnonzero(known[since:]) + since).tolist()
            ]
        return found


def queue_faults(
    table: str,
    consumer: str,
    figures: dict[str, Any],
    tallies: list[tuple[Counter[int], set[int]]],
    accounts: Accounts,
) -> dict[str, object]:
    """What is wrong with an emptied queue, as a consumer's processes tell (`Consumed.tally`); empty values are none."""
    certain: Counter[int] = sum((tally for tally, _ in tallies), Counter())
    seen = sorted(set(certain).union(*(open_ for _, open_ in tallies)))
    acknowledged, unknown = states(np.array(seen, np.int64), table, accounts)
    inserted, line = figures["inserted_trajectories"], figures["consumers"][consumer]
    written = sum(int(one.acknowledged(table).sum()) for one in accounts.values())
    return {
        "acknowledged twice": [number for number, times in certain.items() if times > 1][:5],
        "skipped": written - int(acknowledged.sum()),
        "written by nobody": len(seen) - int((acknowledged | unknown).sum()),
        "seen beyond what was inserted": len(seen) - inserted,
        "counted beyond what was inserted": line["acknowledged"] - inserted,
        "dropped": line["dropped"],
    }

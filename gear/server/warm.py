"""Have every kernel of a shard compiled, or loaded from the cache, before the shard says that it serves."""

from __future__ import annotations

import time

import numpy as np

from gear.kernels import host
from gear.kernels.compile import compile_lock
from gear.schema import Column, Prioritized, Step, Steps, Table
from gear.storage import listing
from gear.storage.fields import BEGIN, END
from gear.storage.layout import COMMIT_ENTRY
from gear.storage.queue import RequestQueue
from gear.storage.table import StoredTable


def warm() -> None:
    """Run every operation once on a tiny table of private memory; kernels do not differ from table to table."""
    with compile_lock():
        host.load()
        table = Table(
            "warm",
            (Column("x"),),
            Steps(8),
            item=Step(0),
            sampler=Prioritized(),
            remover=Prioritized(),
            max_times_sampled=1000,
            block_steps=1,
        )
        stored = StoredTable(table)
        queue = RequestQueue(stored)
        client = stored.attach(bytes(16))
        results: list[object] = []
        grant = stored.lease(client, 2, 2)
        given = np.array([1.0])
        for slot, block, flags in zip(grant.slots, grant.blocks, (BEGIN | END, BEGIN), strict=True):
            entry = np.zeros(1, COMMIT_ENTRY)
            entry[0] = (len(results) + 1, slot, 1, 1, flags, 1, 0)
            queue.commit(client, entry, np.array([block], np.int32), given.copy(), results.append)
        deadline = time.monotonic() + 60
        queue.select(client, 1, 1, 60.0, deadline, results.append)
        queue.select(client, 1, 1, 0.0, deadline, results.append)
        selection = results[2]
        stored.update(selection.ids, given)  # type: ignore[attr-defined]
        stored.pins.release(client, selection.pin, True)  # type: ignore[attr-defined]
        stored.pins.expire(time.time() + 1)
        queue.allocate(client, 1, 1, deadline, results.append)
        bool(stored.drawable)
        stored.mass()
        listing.scan(stored, b"", 1)
        spare = stored.lease(client, 1, 0)
        stored.give_back(client, spare.blocks, spare.slots)
        stored.reclaim()
        stored.fence(client)
        stored.reset()
        if any(isinstance(result, Exception) for result in results):
            raise RuntimeError(f"the kernels do not work here: {results}")

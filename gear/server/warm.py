"""Have every kernel of a shard compiled, or loaded from the cache, before the shard says that it serves."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from gear.kernels import host, host_views
from gear.kernels.compile import compile_lock
from gear.kernels.parts import works
from gear.schema import Column, Groups, Prioritized, Step, Steps, Table, Whole
from gear.storage import draw, listing
from gear.storage.dropping import drop
from gear.storage.fields import BEGIN, END
from gear.storage.layout import COMMIT_ENTRY
from gear.storage.programs import COMMIT, DRAW
from gear.storage.queue import RequestQueue
from gear.storage.recovery import recover
from gear.storage.table import StoredTable

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

TABLE = Table(
    "warm",
    (Column("x"), Column("y", late=True), Column("z", per="trajectory", late=True)),
    Steps(8),
    item=Step(0),
    sampler=Prioritized(),
    remover=Prioritized(),
    max_times_sampled=1000,
    block_steps=1,
    requirements=(("y",),),
)


def warm() -> None:
    """Run every operation once on a tiny table of private memory; kernels do not differ from table to table."""
    with compile_lock(), _second_compiler():
        COMMIT.load()
        host_views.run_all()
    with compile_lock():
        host.run_all()
        stored = StoredTable(TABLE)
        queue = RequestQueue(stored)
        client = stored.attach(bytes(16))
        results: list[object] = []
        grant = stored.lease(client, 2, 2)
        given = np.array([1.0])
        for slot, block, flags in zip(grant.slots, grant.blocks, (BEGIN | END, BEGIN), strict=True):
            entry = np.zeros(1, COMMIT_ENTRY)
            entry[0] = (len(results) + 1, slot, 1, 1, flags, 1, 0, 0)
            queue.commit(client, entry, np.array([block], np.int32), given.copy(), results.append)
        queue.allocate(client, 1, 1, time.monotonic() + 60, results.append)
        spare = stored.lease(client, 1, 0)
        stored.give_back(client, spare.blocks, spare.slots)
        deadline = time.monotonic() + 60
        queue.select(client, 1, 1, 60.0, deadline, results.append)
        queue.select(client, 1, 1, 0.0, deadline, results.append)
        selection = results[3]
        stored.update(selection.ids, given)  # type: ignore[attr-defined]
        stored.pins.release(client, selection.pin, True)  # type: ignore[attr-defined]
        picked = stored.pick(client, selection.ids.copy(), 1, 60.0, (1, 1))  # type: ignore[attr-defined]
        stored.pins.release(client, picked.pin, True)
        stored.pins.expire(time.time() + 1)
        bool(stored.drawable())
        _take_drawn(stored)
        stored.mass()
        listing.scan(stored, b"", 1)
        late = {"y": bytes(4), "z": bytes(4)}
        stored.fill(selection.ids, np.ones(1, np.int64), late)  # type: ignore[attr-defined]
        stored.set_version(1)
        _grow(stored, client)
        stored.reclaim()
        recover(stored)
        stored.fence(client)
        stored.reset()
        results += _served()
        if any(isinstance(result, Exception) for result in results):
            raise RuntimeError(f"the kernels do not work here: {results}")


def _take_drawn(stored: StoredTable) -> None:
    """Of nothing: what a GPU has drawn is taken by the host."""
    nothing = np.empty(0, np.int64)
    draw.take(stored.segment, stored.params, 0, 0, 0, nothing, nothing.copy(), np.empty(0, np.int32))


def _served() -> list[object]:
    """What only tables with consumers or groups do."""
    table = Table("warm", (Column("x"),), Steps(8), item=Whole(), sampler=Groups(1), consumers=("one",), block_steps=1)
    stored = StoredTable(table)
    claims = stored.claims
    assert claims is not None
    queue, client = RequestQueue(stored), stored.attach(bytes(16))
    results: list[object] = []
    grant, entry = stored.lease(client, 1, 1), np.zeros(1, COMMIT_ENTRY)
    entry[0] = (1, grant.slots[0], 1, 1, BEGIN | END, 0, 0, 0)
    queue.commit(client, entry, grant.blocks, np.empty(0), results.append)
    claims.restart(np.array([grant.slots[0]], np.int64))
    queue.select(client, 1, 1, 60.0, time.monotonic() + 60, results.append, consumer=0)
    stored.suspend(client)
    stored.resume(client)
    recover(stored)
    queue.select(client, 1, 1, 60.0, time.monotonic() + 60, results.append, consumer=0)
    stored.acknowledge(client, 0, results[-1].ids)  # type: ignore[attr-defined]
    return results


def _grow(stored: StoredTable, client: int) -> None:
    """Run every operation of open trajectories."""
    growing = stored.growing
    name = growing.open(client, b"", -1)
    assert isinstance(name, int)
    growing.append(client, name, 0, 1, {"x": bytes(4)})
    growing.seal(client, name, True, {"x": bytes(4)}, b"", np.empty(0))
    other = growing.open(client, b"", -1)
    assert isinstance(other, int)
    drop(stored, np.array([name, other]))
    growing.open(client, b"", -1)
    growing.expire(time.time() + 2 * stored.table.open_ttl)


@contextlib.contextmanager
def _second_compiler() -> Iterator[None]:
    """At a first start, another process compiles what draws while this one compiles what commits and the views."""
    cached = COMMIT.is_cached() and DRAW.is_cached()
    if not cached:
        logger.info("compiling the kernels, once for this version and machine: a minute or more")
    if cached or not works() or (os.cpu_count() or 1) < 2:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
        process.wait()  # if it failed, this process compiles the rest and says what is wrong
    finally:
        process.kill()
        process.wait()


def _compile_draws() -> None:
    """Without the lock, which the process that waits for this one holds."""
    DRAW.load()
    host.run_all()


if __name__ == "__main__":
    _compile_draws()

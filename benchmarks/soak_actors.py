"""The processes of `benchmarks.soak`: writers that keep an exact account, readers that check every row.

A trajectory carries its number in every row, its step, a payload made from both and a checksum of all: a row
that is torn, mixed or somebody else's shows.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterator

import numpy as np

import gear

COLUMNS = [
    gear.Column("number", (), "int64"),
    gear.Column("step", (), "int32"),
    gear.Column("payload", (16,), "uint32"),
    gear.Column("checksum", (), "uint64"),
]
TABLES = [
    gear.Table("whole", COLUMNS, gear.Trajectories(300), item=gear.Whole(), mean_length=60, max_length=120),
    gear.Table(
        "windows",
        COLUMNS,
        gear.Steps(20_000),
        item=gear.Window(16, edge="tail"),
        sampler=gear.Prioritized(0.6),
        mean_length=60,
        max_length=120,
    ),
    gear.Table("rows", COLUMNS, gear.Steps(20_000), item=gear.Step(1), mean_length=60, max_length=120),
]
_FACTORS = np.arange(1, 17, dtype=np.uint64) * np.uint64(0x9E3779B1)


def derived(number: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Payload uint32[N, 16] and checksum uint64[N] of rows."""
    mixed = number.astype(np.uint64) * np.uint64(1_000_003) + step.astype(np.uint64)
    payload = ((mixed[:, None] * _FACTORS) >> np.uint64(7)).astype(np.uint32)
    return payload, payload.astype(np.uint64).sum(1) * np.uint64(31) + mixed


def trajectory(number: int, length: int) -> dict[str, np.ndarray]:
    """Trajectory `number` of `length` steps."""
    numbers, steps = np.full(length, number, np.int64), np.arange(length, dtype=np.int32)
    payload, checksum = derived(numbers, steps)
    return {"number": numbers, "step": steps, "payload": payload, "checksum": checksum}


def check(batch: gear.Batch, item: str) -> None:
    """Every row of the batch is whole, and an item's rows are consecutive rows of one trajectory."""
    size = len(batch.ids)
    number, step, checksum = (np.asarray(batch[n]).reshape(size, -1) for n in ("number", "step", "checksum"))
    payload = np.asarray(batch["payload"]).reshape(size, -1, 16)
    lengths, mask = np.asarray(batch.lengths), np.asarray(batch.mask).reshape(size, -1)
    assert (mask.sum(1) == lengths).all(), f"{item}: mask and lengths differ"
    assert (lengths > 0).all(), f"{item}: an item is empty"
    expected, sums = derived(number.reshape(-1), step.reshape(-1))
    assert (payload[mask] == expected.reshape(size, -1, 16)[mask]).all(), f"{item}: torn payload"
    assert (checksum[mask] == sums.reshape(size, -1)[mask]).all(), f"{item}: wrong checksum"
    assert ((number == number[:, :1]) | ~mask).all(), f"{item}: mixed trajectories"
    assert ((step == step[:, :1] + np.arange(step.shape[1])) | ~mask).all(), f"{item}: steps do not follow"
    assert not payload[~mask].any(), f"{item}: padding is not zero"
    if item == "whole":
        assert (step[:, 0] == 0).all(), f"{item}: a beginning is missing"


def told_to_end() -> bool:
    """Whether the parent has closed our standard input."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def numbers(index: int) -> Iterator[int]:
    """Numbers no other writer uses."""
    number = index * 10**9
    while True:
        number += 1
        yield number


def write(client: gear.Client, role: str, index: int, rng: np.random.Generator) -> dict[str, int]:
    """Insert until told to end; how many trajectories of each table were acknowledged."""
    account = dict.fromkeys((t.name for t in TABLES), 0)
    source = numbers(index)
    tables = list(account)
    writers = {name: client.writer(name) for name in tables} if role == "writer" else {}
    while not told_to_end():
        name = tables[int(rng.integers(len(tables)))]
        made = [trajectory(next(source), int(rng.integers(1, 121))) for _ in range(20)]
        if role == "insert":
            for one in made:
                client.insert(one, name, terminated=bool(rng.integers(2)), timeout=30.0)
        elif role == "pipelined":
            for one in made:
                client.insert(one, name, wait=False, timeout=30.0)
            client.flush(30.0)
        elif role == "many":
            client.insert_many(made, name, timeout=30.0)
        else:
            writer = writers[name]
            for one in made:
                cut = int(rng.integers(0, len(one["step"]) + 1))
                if cut:
                    writer.extend({k: v[:cut] for k, v in one.items()})
                for t in range(cut, len(one["step"])):
                    writer.append({k: v[t] for k, v in one.items()})
                writer.end(terminated=True, timeout=30.0)
            client.flush(30.0)
        account[name] += len(made)
    for writer in writers.values():
        writer.close()
    return account


def read(client: gear.Client, role: str, rng: np.random.Generator) -> dict[str, int]:
    """Sample until told to end, checking every row; how many items were read and how many pins were lost."""
    account = {"items": 0, "lost": 0}
    held: list[tuple[float, gear.Selection]] = []
    names = [t.name for t in TABLES]
    loaders = {name: client.loader(32, name, timeout=30.0) for name in names} if role == "sample" else {}
    while not told_to_end():
        name = names[int(rng.integers(len(names)))]
        if role == "sample":
            draws = int(rng.integers(1, 8))
            for _ in range(draws):
                batch = client.sample(64, name, timeout=30.0) if rng.integers(2) else next(loaders[name])
                check(batch, name)
                account["items"] += len(batch.ids)
        else:
            selection = client.select(32, name, timeout=30.0)
            try:
                check(client.collect(selection), name)
                held.append((time.monotonic() + float(rng.uniform(0, 0.5)), selection))
            except gear.PinLost:
                account["lost"] += 1
            for due in [h for h in held if h[0] < time.monotonic() or len(held) > 5]:
                held.remove(due)
                try:  # rows that were held meanwhile are the same
                    again = client.collect(due[1])
                    check(again, due[1].table)
                    account["items"] += len(again.ids)
                    client.release(due[1], delivered=bool(rng.integers(2)))
                except gear.PinLost:
                    account["lost"] += 1
            if name == "windows":
                client.update_priorities(selection.ids, rng.uniform(0.1, 2.0, len(selection)))
    for _, selection in held:
        client.release(selection)
    for loader in loaders.values():
        loader.close()
    return account


def main() -> None:
    """Arguments: address, role, number of the actor, seed."""
    address, role, number, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rng = np.random.default_rng([seed, number])
    with gear.connect(address, timeout=30.0) as client:
        account = read(client, role, rng) if role in ("sample", "select") else write(client, role, number + 1, rng)
    print(json.dumps(account), flush=True)


if __name__ == "__main__":
    main()

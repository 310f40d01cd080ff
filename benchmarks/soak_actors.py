"""The processes of `benchmarks.soak`: writers that keep an exact account, readers that check every row.

A trajectory carries its number in every row, its step, a payload made from both and a checksum: a row that is torn,
mixed or somebody else's shows. Its number also tells its length, its writer and its table, so that a missing tail
and a row of another table show too.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

import numpy as np

import gear

COLUMNS = [
    gear.Column("number", (4,), "int64"),
    gear.Column("step", (), "int32"),
    gear.Column("checksum", (), "uint32"),
    gear.Column("payload", (16,), "float32"),
]
LONGEST = 120
TABLES = [
    gear.Table("whole", COLUMNS, gear.Trajectories(300), item=gear.Whole(), mean_length=40, max_length=LONGEST),
    gear.Table(
        "windows",
        COLUMNS,
        gear.Steps(20_000),
        item=gear.Window(16, edge="tail"),
        sampler=gear.Prioritized(0.6),
        mean_length=60,
        max_length=LONGEST,
    ),
    gear.Table(
        "rows", COLUMNS, gear.Steps(20_000), item=gear.Step(1), publish="rows", mean_length=60, max_length=LONGEST
    ),
]
NAMES = [table.name for table in TABLES]
PER_WRITER = 10**12
"""Numbers of one writer: its index times this, and a counter; the counter's remainder by 3 is the table's."""
HELD = 30
"""Selections held at a time: enough that some are lost to the table, few enough that others are read again."""
PAUSE = 2.0
"""Seconds between two rounds of an actor from which on it counts as having been stopped."""

_FACTORS = np.arange(1, 17, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_CRC = np.arange(256, dtype=np.uint32)
for _ in range(8):
    _CRC = np.where(_CRC & 1, (_CRC >> 1) ^ np.uint32(0xEDB88320), _CRC >> 1)


def crc(number: np.ndarray, step: np.ndarray) -> np.ndarray:
    """uint32[N], the CRC-32 of each row's number (int64[N]) and step (int32[N])."""
    packed = np.empty(len(number), np.dtype([("number", "<i8"), ("step", "<i4")]))
    packed["number"], packed["step"] = number, step
    value = np.full(len(number), 0xFFFFFFFF, np.uint32)
    for column in packed.view(np.uint8).reshape(-1, 12).T:
        value = _CRC[(value ^ column) & 0xFF] ^ (value >> 8)
    return ~value


def payload(number: np.ndarray, step: np.ndarray) -> np.ndarray:
    """float32[N, 16] that only rows of this number and step have; whole numbers below 2**24, thus exact."""
    mixed = number.astype(np.uint64) * np.uint64(1_000_003) + step.astype(np.uint64)
    return ((mixed[:, None] * _FACTORS) >> np.uint64(40)).astype(np.float32)


def length_of(number: np.ndarray, seed: int) -> np.ndarray:
    """int64[N] in 1..LONGEST, the length of each trajectory."""
    mixed = (number.astype(np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(LONGEST)).astype(np.int64) + 1


def trajectory(number: int, seed: int) -> dict[str, np.ndarray]:
    """Trajectory `number`."""
    length = int(length_of(np.array([number]), seed)[0])
    numbers, steps = np.full(length, number, np.int64), np.arange(length, dtype=np.int32)
    return {
        "number": np.repeat(numbers[:, None], 4, 1),
        "step": steps,
        "checksum": crc(numbers, steps),
        "payload": payload(numbers, steps),
    }


def acknowledged(number: int, table: str, accounts: dict[int, dict[str, Any]]) -> bool:
    """Whether the account of its writer (by index) has this trajectory of this table."""
    writer, counter = divmod(number, PER_WRITER)
    place, kind = divmod(counter, len(NAMES))
    return NAMES[kind] == table and place < accounts.get(writer, {}).get(table, 0)


def check(batch: gear.Batch, table: str, seed: int) -> None:
    """Every row of the batch is bit-exact, and an item's rows are consecutive rows of one trajectory of the table."""
    size = len(batch.ids)
    lengths, mask = np.asarray(batch.lengths), np.asarray(batch.mask).reshape(size, -1)
    assert (lengths > 0).all(), f"{table}: an item is empty"
    assert (mask == (np.arange(mask.shape[1]) < lengths[:, None])).all(), f"{table}: mask and lengths differ"
    numbers = np.asarray(batch["number"]).reshape(size, -1, 4)
    step = np.asarray(batch["step"]).reshape(size, -1)
    sums = np.asarray(batch["checksum"]).reshape(size, -1)
    values = np.asarray(batch["payload"]).reshape(size, -1, 16).view(np.uint32)
    number = numbers[:, :1, :1]
    same = ((numbers == number) | ~mask[..., None]).all((1, 2))
    assert same.all(), f"{table}: mixed trajectories in {wrong(batch, same, numbers, step, sums, values)}"
    assert ((step == step[:, :1] + np.arange(step.shape[1])) | ~mask).all(), f"{table}: steps do not follow"
    rows = numbers[..., 0][mask], step[mask]
    assert (values[mask] == payload(*rows).view(np.uint32)).all(), f"{table}: torn payload"
    assert (sums[mask] == crc(*rows)).all(), f"{table}: wrong checksum"
    for name, padding in (("payload", values), ("number", numbers), ("step", step), ("checksum", sums)):
        assert not padding[~mask].any(), f"{table}: padding of {name} is not zero"
    owner = number[:, 0, 0]
    assert (owner % PER_WRITER % len(NAMES) == NAMES.index(table)).all(), f"{table}: rows of another table"
    length = length_of(owner, seed)
    assert (step[:, 0] >= 0).all(), f"{table}: a step before the beginning"
    assert (step[:, 0] + lengths <= length).all(), f"{table}: rows beyond the end of a trajectory"
    if table == "whole":
        assert (step[:, 0] == 0).all(), f"{table}: a beginning is missing"
        assert (lengths == length).all(), f"{table}: an end is missing"


def wrong(batch: gear.Batch, good: np.ndarray, *columns: np.ndarray) -> str:
    """How many items are bad, and all of the first: what a person needs who looks for the reason."""
    bad = np.flatnonzero(~good)
    k = bad[0]
    rows = "; ".join(str(column[k][:4].tolist()) for column in columns)
    start, length = int(batch.selection.starts[k]), int(batch.lengths[k])
    return (
        f"{len(bad)} of {len(good)} items ({bad[:8].tolist()}); item {k}: pin {batch.selection.pin}, id "
        f"{int(batch.ids[k]):#x}, row {start}, length {length}: {rows}"
    )


class Rounds:
    """The rounds of an actor until its standard input closes; how many came after it was stopped."""

    def __init__(self) -> None:
        self.pauses: list[tuple[float, float]] = []  # seconds after the start, seconds it took
        self.after = self._rounds = 0
        self._start = self._last = time.monotonic()

    def go_on(self) -> bool:
        """Whether there is another round."""
        now = time.monotonic()
        self._rounds += 1
        if self._rounds == 2:
            print(flush=True)  # the first round is over
        self.after += bool(self.pauses)
        if now - self._last > PAUSE:
            self.pauses.append((round(self._last - self._start, 2), round(now - self._last, 2)))
            self.after = 0
        self._last = now
        return not select.select([sys.stdin], [], [], 0)[0]

    def account(self) -> dict[str, Any]:
        """As part of the actor's account."""
        return {"pauses": self.pauses, "after": self.after}


def write(client: gear.Client, role: str, index: int, seed: int, rng: np.random.Generator) -> dict[str, Any]:
    """Insert until told to end; how many trajectories of each table were acknowledged."""
    account = dict.fromkeys(NAMES, 0)
    writers = {name: client.writer(name) for name in NAMES} if role == "writer" else {}
    rounds = Rounds()
    while rounds.go_on():
        kind = int(rng.integers(len(NAMES)))
        name = NAMES[kind]
        first = account[name]
        counters = (place * len(NAMES) + kind for place in range(first, first + int(rng.integers(1, 33))))
        made = [trajectory(index * PER_WRITER + counter, seed) for counter in counters]
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
            for one in made:
                by_steps(writers[name], one, rng)
            client.flush(30.0)
        account[name] += len(made)
    for writer in writers.values():
        writer.close()
    return account | rounds.account()


def by_steps(writer: gear.Writer, one: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Write a trajectory in chunks and single steps, now and then making its first part visible."""
    length = len(one["step"])
    cut, at = int(rng.integers(0, length + 1)), 0
    if cut:
        writer.extend({k: v[:cut] for k, v in one.items()})
        at = cut
        if rng.integers(8) == 0:
            writer.flush(30.0)
    for t in range(at, length):
        writer.append({k: v[t] for k, v in one.items()})
    writer.end(terminated=bool(rng.integers(2)), timeout=30.0)


def sample(client: gear.Client, seed: int, rng: np.random.Generator) -> dict[str, Any]:
    """Sample and load until told to end, checking every row; how many items were read."""
    items = 0
    loaders = {name: client.loader(32, name, timeout=30.0) for name in NAMES}
    rounds = Rounds()
    while rounds.go_on():
        name = NAMES[int(rng.integers(len(NAMES)))]
        loaded = not rng.integers(2)
        batch = next(loaders[name]) if loaded else client.sample(64, name, timeout=30.0)
        try:
            check(batch, name, seed)
        except AssertionError as error:
            raise AssertionError(f"{'loader' if loaded else 'sample'}: {error}") from error
        items += len(batch.ids)
        if name == "windows":
            client.update_priorities(batch.ids, rng.uniform(0.1, 2.0, len(batch.ids)), timeout=30.0)
    for loader in loaders.values():
        loader.close()
    return {"items": items} | rounds.account()


def hold(client: gear.Client, seed: int, rng: np.random.Generator) -> dict[str, Any]:
    """Select, collect, hold, collect again: the same rows, until told to end; lost pins are counted."""
    account = {"items": 0, "again": 0, "undelivered": 0, "lost": 0}
    held: list[tuple[float, gear.Selection, np.ndarray]] = []

    def give_back(selection: gear.Selection, first: np.ndarray) -> None:
        try:
            again = client.collect(selection)
        except gear.PinLost:
            account["lost"] += 1
            return
        check(again, selection.table, seed)
        assert (np.asarray(again["number"]) == first).all(), f"{selection.table}: held rows were given to others"
        delivered = bool(rng.integers(3))
        client.release(selection, delivered=delivered)
        account["again"] += len(again.ids)
        account["undelivered"] += not delivered

    rounds = Rounds()
    while rounds.go_on():
        name = NAMES[int(rng.integers(len(NAMES)))]
        selection = client.select(32, name, timeout=30.0)
        try:
            batch = client.collect(selection)
        except gear.PinLost:
            account["lost"] += 1
            continue
        check(batch, name, seed)
        account["items"] += len(batch.ids)
        if name == "windows":
            client.update_priorities(selection.ids, rng.uniform(0.1, 2.0, len(selection)), timeout=30.0)
        held.append((time.monotonic() + float(rng.uniform(0, 1)), selection, np.array(batch["number"])))
        held.sort(key=lambda entry: entry[0])
        while held and (held[0][0] < time.monotonic() or len(held) > HELD):
            give_back(*held.pop(0)[1:])
        time.sleep(float(rng.uniform(0, 0.02)))
    for _, selection, first in held:
        give_back(selection, first)
    return account | rounds.account()


def main() -> None:
    """Arguments: address, role, index of the actor, seed, data path. A lost connection or any other error ends it."""
    address, role, index, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rng = np.random.default_rng([seed, index])
    with gear.connect(address, timeout=30.0, path=sys.argv[5]) as client:
        if role == "sample":
            account = sample(client, seed, rng)
        elif role == "select":
            account = hold(client, seed, rng)
        else:
            account = write(client, role, index, seed, rng)
    print(json.dumps(account), flush=True)


if __name__ == "__main__":
    main()

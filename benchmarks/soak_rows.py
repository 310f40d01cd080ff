"""What the actors of `benchmarks.soak` and `benchmarks.killer` write and check: tables, and numbered trajectories.

A trajectory carries its number in every row, its step, a payload made from both and a checksum: a row that is torn,
mixed or somebody else's shows. Its number also tells its length, its writer and its table, so that a missing tail
and a row of another table show too.
"""

from __future__ import annotations

import numpy as np
from msgspec import structs

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
KILLED = [
    *(structs.replace(table, mean_length=LONGEST if table.name == "whole" else 20) for table in TABLES),
    gear.Table(
        "kept", COLUMNS, gear.Trajectories(40_000), item=gear.Whole(), sampler=gear.Epochs(), mean_length=64,
        max_length=LONGEST,
    ),
    gear.Table(
        "queue", COLUMNS, gear.Trajectories(400), item=gear.Whole(), mean_length=60, max_length=LONGEST,
        limiter=gear.Queue(200), consumers=("trainer", "reference"),
    ),
]  # fmt: skip
"""Those of the killer. With blocks and slots for any lengths, so that none leave but the oldest; one that is never
full, which nothing may leave; a queue with two consumers."""
NAMES = [table.name for table in KILLED]
PER_WRITER = 10**12
"""Numbers of one writer: its index times this, and a counter; the counter's remainder by 5 is the table's."""

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


def number_of(writer: int, table: str, place: int) -> int:
    """The number of the trajectory at that place among those of one writer and table."""
    return writer * PER_WRITER + place * len(NAMES) + NAMES.index(table)


def places_of(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whose those trajectories are, int64[N] each: writer, table (its place in `NAMES`), place among them."""
    writer, counter = np.divmod(numbers, PER_WRITER)
    place, kind = np.divmod(counter, len(NAMES))
    return writer, kind, place


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
    if table not in ("windows", "rows"):
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

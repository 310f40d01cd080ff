"""W1: transitions in process. Samples, priorities, inserts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import gear
from benchmarks.bars import Bar
from benchmarks.data import COLUMNS, fill
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.workloads import LENGTH, STEPS, Columns, Expected, Ring, Take, Updates, piece

SIZES = (256, 4096)
UNIFORM = tuple(f"w1-uniform-{size}" for size in SIZES)
PRIORITIZED = tuple(f"w1-{what}-{size}" for what in ("prioritized", "update") for size in SIZES)
INSERTS = ("w1-insert-1000", "w1-insert-1")
TAKE = "NumPy take"
SETS = 4000


def samples(client: gear.Client, data: Columns, name: str, size: int, bars: list[Bar]) -> Measurement:
    """`size` of the rows that are stored."""
    rng = np.random.default_rng(1)
    expected, reused = Expected(data), client.sample(size)
    sets = [rng.integers(0, STEPS, size) for _ in range(SETS * 256 // size)]

    def check() -> None:
        for batch in (client.sample(size), client.sample(size, out=reused)):
            expected.check(batch)

    check()
    return Measurement(
        name, f"{size} of 1e6 transitions in process",
        [
            Candidate("gear, out=", lambda k: client.sample(size, out=reused), check=check),
            Candidate("gear, new arrays", lambda k: client.sample(size)),
        ],
        [Candidate(f"{TAKE}(out=, mode='clip')", Take(data, sets))],
        per_call=size, unit="samples", bars=bars,
    )  # fmt: skip


def uniform(data: Columns) -> Iterator[Measurement]:
    """Uniformly."""
    table = gear.Table("steps", COLUMNS, gear.Steps(STEPS), item=gear.Step(), mean_length=LENGTH)
    with gear.embedded([table]) as client:
        fill(client, "steps", data)
        for name, size in zip(UNIFORM, SIZES, strict=True):
            yield samples(client, data, name, size, [Bar(1.8, "peers"), Bar(1.0, TAKE)])


def prioritized(data: Columns) -> Iterator[Measurement]:
    """By priorities; then new priorities."""
    rng = np.random.default_rng(1)
    table = gear.Table(
        "steps", COLUMNS, gear.Steps(STEPS), item=gear.Step(), sampler=gear.Prioritized(0.6), mean_length=LENGTH
    )
    with gear.embedded([table]) as client:
        fill(client, "steps", data, rng.random(STEPS) + 0.01)
        for size in SIZES:
            yield samples(client, data, f"w1-prioritized-{size}", size, [Bar(4.0, "peers")])
        for size in SIZES:
            given = Updates(size, STEPS)
            ids = [client.sample(size).ids for _ in range(given.sets)]

            def update(k: int, ids: list = ids, given: Updates = given) -> gear.Update:
                return client.update_priorities(ids[k % given.sets], given.value(k))

            def check(update=update, size: int = size) -> None:
                if update(0) != gear.Update(size, 0):
                    raise WrongResult(f"an update of {size} stored items was not applied whole")

            yield Measurement(
                f"w1-update-{size}", f"{size} new priorities of 1e6 in process",
                [Candidate("gear", update, check=check)],
                per_call=size, unit="updates", bars=[Bar(2.0, "peers")],
            )  # fmt: skip


def inserts(data: Columns) -> Iterator[Measurement]:
    """1000 rows at a time, and one by one."""
    size = 200_000
    used = piece(data, 0, size)
    table = gear.Table("steps", COLUMNS, gear.Steps(size), item=gear.Step(), mean_length=LENGTH)
    with gear.embedded([table]) as client:
        pieces, expected = [piece(used, start, 1000) for start in range(0, size, 1000)], Expected(used)
        ring = Ring(pieces, size)

        def check() -> None:
            client.flush()
            for _ in range(4):
                expected.check(client.sample(256))

        yield Measurement(
            "w1-insert-1000", "1000 rows into a full table in process",
            [
                Candidate("gear", lambda k: client.insert(pieces[k % 200]), check=check),
                Candidate("gear, wait=False", lambda k: client.insert(pieces[k % 200], wait=False)),
            ],
            [Candidate("NumPy copies the same rows", ring.write)],
            per_call=1000, unit="steps", bars=[Bar(1.0, "peers")],
        )  # fmt: skip
        single = [{name: column[k] for name, column in used.items()} for k in range(1000)]
        out = {k: np.zeros((LENGTH, *v.shape[1:]), v.dtype) for k, v in used.items()}

        def assign(k: int) -> None:
            for at, step in enumerate(single):
                for name, value in step.items():
                    out[name][at] = value

        with client.writer() as writer:

            def append(k: int) -> None:
                for step in single:
                    writer.append(step)
                writer.end()

            yield Measurement(
                "w1-insert-1", "1000 rows one by one through a writer, end included, in process",
                [Candidate("gear", append, check=check)],
                [Candidate("NumPy assigns the same values", assign)],
                per_call=1000, unit="steps", bars=[Bar(1.0, "Stable-Baselines3"), Bar(1.0, "peers")],
            )  # fmt: skip

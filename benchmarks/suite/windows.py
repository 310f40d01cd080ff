"""W2: windows of 64 steps of 1000 trajectories of 1000, in process; the same over a server's paths for `network`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import gear
from benchmarks.bars import Bar
from benchmarks.data import COLUMNS, fill
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.workloads import LENGTH, STEPS, WINDOW, WINDOWS, Columns, Expected, Ring, Take, piece

NAMES = ("w2-uniform", "w2-prioritized", "w2-insert")
TAKE = "NumPy take"


def table(name: str, sampler: gear.Uniform | gear.Prioritized | None = None) -> gear.Table:
    return gear.Table(
        name, COLUMNS, gear.Steps(STEPS), item=gear.Window(WINDOW), sampler=sampler or gear.Uniform(),
        mean_length=LENGTH,
    )  # fmt: skip


def samples(
    data: Columns, client: gear.Client, name: str, stored: str, bars: list[Bar], processes: tuple[int, ...] = ()
) -> Measurement:
    """Batches of 64 windows of a table that holds `data`."""
    rng = np.random.default_rng(2)
    starts = [
        rng.integers(0, STEPS // LENGTH, WINDOWS) * LENGTH + rng.integers(0, LENGTH - WINDOW + 1, WINDOWS)
        for _ in range(500)
    ]
    sets = [(s[:, None] + np.arange(WINDOW)).reshape(-1) for s in starts]
    expected, reused = Expected(data), client.sample(WINDOWS, stored)

    def check() -> None:
        for batch in (client.sample(WINDOWS, stored), client.sample(WINDOWS, stored, out=reused)):
            expected.check(batch)
            if not np.asarray(batch.mask).all():
                raise WrongResult("a window inside a trajectory is not full")

    check()
    return Measurement(
        name, "64 windows of 64 steps of 1000 trajectories of 1000",
        [
            Candidate("gear, out=", lambda k: client.sample(WINDOWS, stored, out=reused), check=check,
                      processes=processes),
            Candidate("gear, new arrays", lambda k: client.sample(WINDOWS, stored), processes=processes),
        ],
        [Candidate(f"{TAKE}(out=, mode='clip')", Take(data, sets))],
        per_call=WINDOWS * WINDOW, unit="steps", bars=bars,
    )  # fmt: skip


def embedded(data: Columns) -> Iterator[Measurement]:
    """In process."""
    rng = np.random.default_rng(3)
    with gear.embedded([table("uniform"), table("prioritized", gear.Prioritized(0.6))]) as client:
        fill(client, "uniform", data)
        yield samples(data, client, "w2-uniform", "uniform", [Bar(2.2, "flashbax"), Bar(1.0, TAKE)])
        for start in range(0, STEPS, LENGTH):
            priorities = rng.random(LENGTH - WINDOW + 1) + 0.01
            client.insert(piece(data, start, LENGTH), "prioritized", priority=priorities)
        yield samples(data, client, "w2-prioritized", "prioritized", [Bar(2.2, "flashbax"), Bar(1.0, TAKE)])
        pieces, expected = [piece(data, start, LENGTH) for start in range(0, STEPS, LENGTH)], Expected(data)

        def check() -> None:
            client.flush()
            expected.check(client.sample(WINDOWS, "uniform"))

        yield Measurement(
            "w2-insert", "a trajectory of 1000 steps into a full table in process",
            [Candidate("gear", lambda k: client.insert(pieces[k % 1000], "uniform"), check=check)],
            [Candidate("NumPy copies the same rows", Ring(pieces, STEPS).write)],
            per_call=LENGTH, unit="steps",
        )  # fmt: skip

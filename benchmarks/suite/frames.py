"""W3: frames in process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

import gear
from benchmarks.bars import Bar
from benchmarks.data import FRAME_COLUMNS
from benchmarks.measure import Candidate, Measurement
from benchmarks.service import served
from benchmarks.workloads import FRAME, FRAMES, LENGTH, Columns, Frames, Ring, Take

NAMES = ("w3-uniform", "w3-insert", "w3-shm")
PLAIN = "memcpy of the same ranges"
SHARED = "bare shared memory"
NAMED = ("obs", "action", "reward")


def table() -> gear.Table:
    return gear.Table("frames", FRAME_COLUMNS, gear.Steps(FRAMES), item=gear.Step(), mean_length=500)


def frames(_: Columns) -> Iterator[Measurement]:
    """In process, then through a server and shared memory."""
    stored, rng = Frames(), np.random.default_rng(1)
    sets = [rng.integers(0, FRAMES, 256) for _ in range(200)]
    columns = {"obs": np.empty((FRAMES, *FRAME), np.uint8), "action": stored.actions, "reward": stored.rewards}
    columns["done"] = np.arange(FRAMES) % LENGTH == LENGTH - 1
    for number, part in enumerate(stored.pieces(500)):
        columns["obs"][500 * number : 500 * (number + 1)] = part["obs"]
    out = np.empty((256, *FRAME), np.uint8)
    numbers = [some.tolist() for some in sets]

    def copy(obs: np.ndarray, k: int) -> None:
        for at, number in enumerate(numbers[k % 200]):
            out[at] = obs[number]

    parts = [stored.piece(256 * k, 256) for k in range(8)]

    def samples(
        client: gear.Client, name: str, bars: list[Bar], limits: list[Candidate], processes: tuple[int, ...] = ()
    ) -> Measurement:
        reused = client.sample(256)

        def check() -> None:
            for batch in (client.sample(256), client.sample(256, out=reused)):
                stored.check({name: np.asarray(batch[name]) for name in NAMED}, 256)

        check()
        return Measurement(
            name, "256 of 50,000 frames uint8[84, 84, 4]",
            [
                Candidate("gear, out=", lambda k: client.sample(256, out=reused), check=check, processes=processes),
                Candidate("gear, new arrays", lambda k: client.sample(256), processes=processes),
            ],
            limits, per_call=256, unit="samples", bars=bars,
        )  # fmt: skip

    with gear.embedded([table()]) as client:
        for part in stored.pieces(500):
            client.insert(part, wait=False)
        client.flush()
        limits = [
            Candidate(PLAIN, lambda k: copy(columns["obs"], k)),
            Candidate("NumPy take(out=, mode='clip')", Take(columns, sets)),
        ]
        yield samples(client, "w3-uniform", [Bar(0.95, PLAIN), Bar(1.0, "peers")], limits)

        def check() -> None:
            batch = client.sample(256)
            stored.check({name: np.asarray(batch[name]) for name in NAMED}, 256)

        yield Measurement(
            "w3-insert", "256 frames into a full table in process",
            [Candidate("gear", lambda k: client.insert(parts[k % 8]), check=check)],
            [Candidate("NumPy copies the same rows", Ring(parts, 25_600).write)],
            per_call=256, unit="steps", bars=[Bar(1.0, "peers")],
        )  # fmt: skip
    path = f"/dev/shm/gear-bench-frames-{os.getpid()}"
    try:
        shared = np.memmap(path, np.uint8, "w+", shape=columns["obs"].shape)
    finally:
        os.unlink(path)
    shared[:] = columns.pop("obs")
    bare = Candidate(f"{SHARED}, the same ranges copied out", lambda k: copy(shared, k))
    with served() as (address, process), gear.connect(address, path="shm") as client:
        client.create_table(table())
        for part in stored.pieces(500):
            client.insert(part, wait=False)
        client.flush()
        yield samples(client, "w3-shm", [Bar(0.6, SHARED)], [bare], (process,))

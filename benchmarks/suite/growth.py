"""Cost against what is stored: samples from 1e5, 1e6 and 1e7 transitions, and memory per byte of payload."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

import gear
from benchmarks.bars import Growth
from benchmarks.data import COLUMNS, fill
from benchmarks.measure import Candidate, Finding, Found, Measurement
from benchmarks.responses_data import COUNT, batches
from benchmarks.suite import responses, windows
from benchmarks.workloads import LENGTH, STEPS, Columns, Expected, Take, piece, transitions

NAMES = ("growth-uniform", "growth-prioritized")
MEMORY = ("memory-w2-uniform", "memory-w2-prioritized", "memory-w4")
SIZES = (10_000_000, 1_000_000, 100_000)
BATCH, SETS = 256, 4000


def said(steps: int) -> str:
    return f"{steps:.0e}".replace("e+0", "e")


def growth(_: Columns) -> Iterator[Measurement]:
    """The same batch from tables of three sizes, and by NumPy from arrays of these sizes."""
    rng, data = np.random.default_rng(1), transitions(SIZES[0])
    takes = []
    for size in SIZES:
        part = {name: column[:size].copy() for name, column in data.items()} if size != SIZES[0] else data
        sets = [rng.integers(0, size, BATCH) for _ in range(SETS)]
        takes.append(Candidate(f"NumPy take from {said(size)}", Take(part, sets)))
    for name, sampler in zip(NAMES, (gear.Uniform(), gear.Prioritized(0.6)), strict=True):
        with contextlib.ExitStack() as stack:
            ours = []
            for size in SIZES:
                part = piece(data, 0, size)
                table = gear.Table(
                    "steps", COLUMNS, gear.Steps(size), item=gear.Step(), sampler=sampler, mean_length=LENGTH
                )
                client = stack.enter_context(gear.embedded([table]))
                priorities = None if isinstance(sampler, gear.Uniform) else rng.random(size) + 0.01
                fill(client, "steps", part, priorities)
                reused = client.sample(BATCH)

                def check(client: gear.Client = client, size: int = size) -> None:
                    batch = client.sample(BATCH)
                    if size < SIZES[0]:  # sorting 1e7 rewards would take seconds
                        Expected(piece(data, 0, size)).check(batch)

                ours.append(
                    Candidate(
                        f"gear, {said(size)} stored",
                        lambda k, client=client, reused=reused: client.sample(BATCH, out=reused), check=check,
                    )
                )  # fmt: skip
            ends = [(some[0].name, some[-1].name) for some in (ours, takes)]
            yield Measurement(
                name, "256 transitions of 1e7, 1e6 and 1e5 in process", ours, takes,
                per_call=BATCH, unit="samples", bars=[Growth(1.2, *ends)],
            )  # fmt: skip


def memory(data: Columns) -> Iterator[Finding]:
    """Blocks in use and directory, without the reserve, against the payload."""

    def of_windows(sampler: gear.Uniform | gear.Prioritized) -> Found:
        with gear.embedded([windows.table("windows", sampler)]) as client:
            fill(client, "windows", data)
            return taken(client, isinstance(sampler, gear.Prioritized))

    def of_responses() -> Found:
        with gear.embedded([responses.table(COUNT)]) as client:
            for batch in batches():
                client.insert_many({k: v for k, v in batch.items() if k != "offsets"}, offsets=batch["offsets"])
            return taken(client, False)

    unit = "bytes per byte of payload"
    yield Finding(MEMORY[0], f"{STEPS:,} steps in 1000 trajectories, windows of 64", unit,
                  lambda: of_windows(gear.Uniform()))  # fmt: skip
    yield Finding(MEMORY[1], "the same with priorities", unit, lambda: of_windows(gear.Prioritized(0.6)))
    yield Finding(MEMORY[2], f"{COUNT} responses", unit, of_responses)


def taken(client: gear.Client, prioritized: bool) -> Found:
    """From what the service counts."""
    (info,) = client.info()["tables"].values()
    whole, payload = info["used_bytes"] + info["directory_bytes"], info["payload_bytes"]
    most = 1.1 + (12 * info["items"] / payload if prioritized else 0)
    asked = "<= 1.1 bytes per byte of payload" + (" + 12 per item" if prioritized else "")
    values = {
        "all": whole / payload,
        "blocks": info["used_bytes"] / payload,
        "directory": info["directory_bytes"] / payload,
        "reserve beside": info["reserve_blocks"] * info["block_bytes"] / payload,
    }
    return values, [(asked, whole / payload, most)]

"""The `tcp` path against bare pyzmq that sends as many bytes: large batches, and the round trip of a small one."""

from __future__ import annotations

from collections.abc import Iterator

import gear
from benchmarks.data import COLUMNS, LENGTH, STEPS, Columns, Expected, fill
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.plain import sender

BULK = (192, 1024, 8192)
"""Windows of 64 steps per batch: 1.2 MB, 6.4 MB and 51 MB."""

PLAIN = "pyzmq sends as many bytes, no copy"


def bulk(data: Columns, client: gear.Client, table: str) -> Iterator[Measurement]:
    """Large batches against the same bytes from a process that does nothing but send them."""
    with sender() as fetch:
        for size in BULK:
            reused = client.sample(size, table)
            nbytes = len(reused.buffer)

            def verify(size: int = size) -> None:
                Expected(data).check(client.sample(64, table))
                if len(client.sample(size, table).ids) != size:
                    raise WrongResult(f"a batch of {size} windows has not that many")

            yield Measurement(
                f"bulk-tcp-{size}",
                f"{size} windows of 64 steps, {nbytes / 1e6:.1f} MB",
                [
                    Candidate("gear, new arrays", lambda k, size=size: client.sample(size, table)),
                    Candidate("gear, out=", lambda k, size=size, out=reused: client.sample(size, table, out=out)),
                    Candidate(PLAIN, lambda k, nbytes=nbytes: fetch(nbytes)),
                ],
                per_call=nbytes / 1e6,
                unit="MB",
                bar="<= 1.33 x the limit",
                calls=min(50, max(5, 20_000 // size)),
                verify=verify,
            )


def latency(data: Columns, client: gear.Client) -> Iterator[Measurement]:
    """A small batch against a round trip with the same bytes."""
    client.create_table(gear.Table("steps", COLUMNS, gear.Steps(STEPS), item=gear.Step(), mean_length=LENGTH))
    fill(client, "steps", data)
    expected, reused = Expected(data), client.sample(256, "steps")
    nbytes = len(reused.buffer)

    def verify() -> None:
        for batch in (client.sample(256, "steps"), client.sample(256, "steps", out=reused)):
            expected.check(batch)

    verify()
    with sender() as fetch:
        yield Measurement(
            "latency-tcp",
            f"256 of 1e6 transitions, {nbytes / 1e3:.0f} kB",
            [
                Candidate("gear, new arrays", lambda k: client.sample(256, "steps")),
                Candidate("gear, out=", lambda k: client.sample(256, "steps", out=reused)),
                Candidate(PLAIN, lambda k: fetch(nbytes)),
            ],
            per_call=256,
            unit="samples",
            bar="<= 2 x the limit",
            verify=verify,
        )

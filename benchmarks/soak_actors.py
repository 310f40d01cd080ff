"""The processes of `benchmarks.soak` and `benchmarks.killer`: writers that keep an exact account, readers that check
every row, consumers that acknowledge what they are served.
"""

from __future__ import annotations

import json
import select
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import gear
from benchmarks.soak_account import Consumed, Written
from benchmarks.soak_rows import check, number_of, trajectory

GAVE_UP = 3
"""Exit code of an actor that has lost its connection for good."""
PATIENCE = 60.0
"""Seconds that a call may take: a server may be killed and started again meanwhile, on a machine with more to do."""
KEPT = 4000
"""Trajectories of one writer in the table that is never full."""
HELD = 30
"""Selections held at a time: enough that some are lost to the table, few enough that others are read again."""
CLAIMED = 16
"""Items that a consumer claims at a time at most."""
PAUSE = 2.0
"""Seconds between two rounds of an actor from which on it counts as having been stopped."""


class Rounds:
    """The rounds of an actor until its standard input closes; how many came after each of its pauses."""

    def __init__(self) -> None:
        self._pauses: list[tuple[float, float, int]] = []  # seconds after the start, seconds it took, rounds before
        self._rounds = 0
        self._start = self._last = time.monotonic()

    def go_on(self) -> bool:
        """Whether there is another round."""
        now = time.monotonic()
        self._rounds += 1
        if self._rounds == (self._pauses[-1][2] + 1 if self._pauses else 2):
            print(flush=True)  # the first round is over, or the first after a pause
        if now - self._last > PAUSE:
            self._pauses.append((round(self._last - self._start, 2), round(now - self._last, 2), self._rounds))
        self._last = now
        return not select.select([sys.stdin], [], [], 0)[0]

    def account(self) -> dict[str, Any]:
        """As part of the actor's account: of each pause when it began, how long it was, and the rounds after it."""
        return {"pauses": [(began, took, self._rounds - before) for began, took, before in self._pauses]}


def write(
    client: gear.Client, role: str, index: int, seed: int, rng: np.random.Generator, tables: list[str], to: Written
) -> dict[str, Any]:
    """Insert until told to end; what was acknowledged stands in `to`."""
    writers = {name: client.writer(name) for name in tables} if role == "writer" else {}
    rounds = Rounds()
    while rounds.go_on():
        name = tables[int(rng.integers(len(tables)))]
        if name == "kept" and to.begun[name] >= KEPT:
            continue
        with to.batch(name, int(rng.integers(1, 33))) as places:
            made = [trajectory(number_of(index, name, place), seed) for place in places]
            if role == "insert":
                for one in made:
                    client.insert(one, name, terminated=bool(rng.integers(2)), timeout=PATIENCE)
            elif role == "pipelined":
                for one in made:
                    client.insert(one, name, wait=False, timeout=PATIENCE)
                client.flush(PATIENCE)
            elif role == "many":
                client.insert_many(made, name, timeout=PATIENCE)
            else:
                for one in made:
                    by_steps(writers[name], one, rng)
                client.flush(PATIENCE)
    for writer in writers.values():
        writer.close()
    return rounds.account()


def by_steps(writer: gear.Writer, one: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Write a trajectory in chunks and single steps, now and then making its first part visible."""
    length = len(one["step"])
    cut, at = int(rng.integers(0, length + 1)), 0
    if cut:
        writer.extend({k: v[:cut] for k, v in one.items()})
        at = cut
        if rng.integers(8) == 0:
            writer.flush(PATIENCE)
    for t in range(at, length):
        writer.append({k: v[t] for k, v in one.items()})
    writer.end(terminated=bool(rng.integers(2)), timeout=PATIENCE)


def sample(client: gear.Client, seed: int, rng: np.random.Generator, tables: list[str]) -> dict[str, Any]:
    """Sample and load until told to end, checking every row; how many items were read."""
    items = 0
    loaders = {name: client.loader(32, name, timeout=PATIENCE) for name in tables}
    rounds = Rounds()
    while rounds.go_on():
        name = tables[int(rng.integers(len(tables)))]
        loaded = not rng.integers(2)
        batch = next(loaders[name]) if loaded else client.sample(64, name, timeout=PATIENCE)
        try:
            check(batch, name, seed)
        except AssertionError as error:
            raise AssertionError(f"{'loader' if loaded else 'sample'}: {error}") from error
        items += len(batch.ids)
        if name == "windows":
            client.update_priorities(batch.ids, rng.uniform(0.1, 2.0, len(batch.ids)), timeout=PATIENCE)
    for loader in loaders.values():
        loader.close()
    return {"items": items} | rounds.account()


def hold(client: gear.Client, seed: int, rng: np.random.Generator, tables: list[str]) -> dict[str, Any]:
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
        name = tables[int(rng.integers(len(tables)))]
        selection = client.select(32, name, timeout=PATIENCE)
        try:
            batch = client.collect(selection)
        except gear.PinLost:
            account["lost"] += 1
            continue
        check(batch, name, seed)
        account["items"] += len(batch.ids)
        if name == "windows":
            client.update_priorities(selection.ids, rng.uniform(0.1, 2.0, len(selection)), timeout=PATIENCE)
        held.append((time.monotonic() + float(rng.uniform(0, 1)), selection, np.array(batch["number"])))
        held.sort(key=lambda entry: entry[0])
        while held and (held[0][0] < time.monotonic() or len(held) > HELD):
            give_back(*held.pop(0)[1:])
        time.sleep(float(rng.uniform(0, 0.02)))
    for _, selection, first in held:
        give_back(selection, first)
    return account | rounds.account()


def consume(
    client: gear.Client, consumer: str, seed: int, rng: np.random.Generator, tables: list[str], to: Consumed
) -> dict[str, Any]:
    """Claim, check and acknowledge until told to end; what was acknowledged stands in `to`."""
    account = {"applied": 0, "repeated": 0, "stale": 0, "again": 0}
    rounds, most = Rounds(), CLAIMED
    while rounds.go_on():
        name = tables[int(rng.integers(len(tables)))]
        try:
            batch = client.sample(int(rng.integers(1, most + 1)), name, consumer=consumer, timeout=1.0)
        except gear.DeadlineExceeded:
            most = 1  # the last ones are too few for larger batches
            continue
        most = CLAIMED
        check(batch, name, seed)
        numbers = dict(zip(batch.ids.tolist(), np.asarray(batch["number"])[:, 0, 0].tolist(), strict=True))
        to.ask(list(numbers.values()))
        done = client.ack(batch.ids, consumer=consumer, timeout=PATIENCE)
        again = [numbers[one] for one in done.served_again.tolist()]
        to.answer(done.applied, done.repeated, done.stale, again)
        for what, count in zip(account, (done.applied, done.repeated, done.stale, len(again)), strict=True):
            account[what] += count
    return account | rounds.account()


def run(
    address: str, role: str, index: int, seed: int, path: str, account: Path, tables: list[str],
    rng: np.random.Generator,
) -> dict[str, Any]:  # fmt: skip
    """Be that actor until told to end."""
    with gear.connect(address, timeout=PATIENCE, path=path) as client:
        if role == "sample":
            return sample(client, seed, rng, tables)
        if role == "select":
            return hold(client, seed, rng, tables)
        if role in ("trainer", "reference"):
            return consume(client, role, seed, rng, tables, Consumed(account))
        return write(client, role, index, seed, rng, tables, Written(account))


def main() -> None:
    """Arguments: address, role, index, number of its life, seed, data path, account, tables. Any error ends it."""
    address, role, index, life, seed, path, account, *tables = sys.argv[1:]
    rng = np.random.default_rng([int(seed), int(index), int(life)])
    try:
        done = run(address, role, int(index), int(seed), path, Path(account), tables, rng)
    except gear.ConnectionLost:
        traceback.print_exc()
        sys.exit(GAVE_UP)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()

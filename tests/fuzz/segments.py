"""Segments with flipped bits, taken up as after a crash: refused or recovered, and what is recovered goes on working.

`python -m tests.fuzz.segments --count 1000`: a process of its own, as what is looked for ends processes.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np

from gear.errors import DeadlineExceeded, GearError, ServerConflict
from gear.server.warm import warm
from gear.storage import format, listing
from gear.storage.layout import Layout
from gear.storage.queue import RequestQueue
from gear.storage.table import StoredTable
from tests.storage.actors import Actor
from tests.storage.test_recount import WEIGHTS, Drive

EACH = 25
"""Damaged copies of each table."""

PATIENCE = 60.0
"""Seconds after which a table that is taken up is taken to be in an endless loop."""

_BULK = ("arena", "trajectories")
_VALUES = (0, 1, -1, 2, 63, 1 << 31, -(1 << 31), (1 << 31) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63))
_ROUNDS = 5


def work(drive: Drive) -> None:
    """One operation of some client."""
    (operation,) = drive.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
    with contextlib.suppress(DeadlineExceeded):
        getattr(drive, operation)(drive.random.choice(drive.clients))
    drive.settle_claims()


def damage(chance: Random, segment: np.ndarray, layout: Layout) -> str:
    """Change something somewhere; where."""
    names = [name for name, region in layout.regions.items() if region.nbytes and name not in _BULK]
    name = chance.choice(names)
    region = segment[layout.regions[name].offset :][: layout.regions[name].nbytes]
    for _ in range(chance.choice((1, 1, 1, 2, 16))):
        if chance.random() < 0.5 or len(region) < 8:
            region[chance.randrange(len(region))] ^= np.uint8(1 << chance.randrange(8))
        else:
            width = chance.choice((4, 8))
            at = width * chance.randrange(len(region) // width)
            value = chance.choice(_VALUES) & ((1 << 8 * width) - 1)
            region[at : at + width] = np.frombuffer(value.to_bytes(width, "little"), np.uint8)
    return name


def use(stored: StoredTable, chance: Random) -> None:
    """Do with a table what clients do, as far as it lets them."""
    queue = RequestQueue(stored)
    assert stored.found is not None
    stored.pins.haunt(stored.found.haunted, set())
    row = stored.attach(b"f" * 16)
    for number in range(_ROUNDS):
        with contextlib.suppress(GearError):
            grant = stored.lease(row, 2, 1)
            if len(grant.blocks) and len(grant.slots):
                entry = Actor.entry(_Numbered(stored.committed(row)), int(grant.slots[0]), grant.blocks[:1], 1, 3)
                queue.commit(row, *entry, lambda result: None)
        consumer = chance.randrange(stored.table.lines) if stored.table.lines else -1
        queue.select(row, chance.choice((1, 8)), 1, 3600.0, 0.0, lambda result: None, consumer=consumer)
        queue.expire(1.0)
        with contextlib.suppress(GearError):
            page, _ = listing.scan(stored, b"", 64)
            ids = page.ids[:3]
            if stored.keeps_priorities:
                stored.update(ids, np.ones(len(ids)))
        queue.advance()
        stored.info()
        if number == _ROUNDS - 2:
            queue.reset()


class _Numbered:
    """As much of an actor as makes an entry."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence


def once(stored: StoredTable, chance: Random | None, path: Path) -> str:
    """Damage a copy of a table (unless there is no chance), take it up and use it; what became of it."""
    copy = stored.segment.copy()
    where = damage(chance, copy, stored.layout) if chance is not None else "nothing"
    path.write_bytes(copy.tobytes())
    try:
        header = format.read(path)
        again = StoredTable(header.table, header.index, header.shard, path, header.spread, kept=True, era=1)
    except ServerConflict:
        return f"{where}: refused"
    assert again.found is not None
    use(again, chance or Random(0))
    return f"{where}: {'recovered in part' if again.found.damaged else 'recovered'}"


def main() -> int:
    """Run; the last line that is shown before a crash says how to come to it again."""
    parser = argparse.ArgumentParser("tests.fuzz.segments", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    faulthandler.enable()
    warm()
    seed = options.seed if options.seed is not None else time.time_ns() % (1 << 32)
    outcomes: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gear-fuzz-") as folder:
        path = Path(folder, "table-0")
        for first in range(0, options.count, EACH):
            drive = Drive(seed + first)
            for _ in range(Random(seed + first).randint(5, 40)):
                work(drive)
            once(drive.stored, None, path)  # kernels that are needed first here are compiled on nobody's time
            for number in range(first, min(first + EACH, options.count)):
                chance = Random((seed + first) << 16 | number)
                faulthandler.dump_traceback_later(PATIENCE, exit=True)
                try:
                    outcomes[once(drive.stored, chance, path)] += 1
                except GearError as error:
                    outcomes[f"GearError: {error}"] += 1
                except Exception as error:
                    failed += 1
                    print(f"seed {seed + first} --count {number - first + 1}: {type(error).__name__}: {error}")
                    if failed <= 3:
                        import traceback

                        traceback.print_exc()
                faulthandler.cancel_dump_traceback_later()
            print(f"seed {seed + first}: {number + 1} done, {failed} failed", flush=True)
    for what, count in sorted(outcomes.items()):
        print(f"{count:6} {what}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

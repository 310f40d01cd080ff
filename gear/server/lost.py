"""Tables that ended with a shard because the memory of its device did: dropped whole, counted, never taken for others.

Device memory lives as long as the process that allocated it. What is left of such a table, directory and host columns,
is useless without: it is removed before anybody could read rows that are none. A file in the shard's directory stands
for its number, which clients of before may still use, and says what was lost.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gear.server.runtime import LOST, SEGMENTS
from gear.storage import fields as f
from gear.storage import format, memory
from gear.storage.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

    from gear.storage.table import StoredTable

logger = logging.getLogger(__name__)

RESERVED = 3600.0
"""Seconds for which a table's number is nobody else's: clients that use it without a connection give up long before."""


class Lost(msgspec.Struct, frozen=True):
    """A table that ended with a process of its shard."""

    name: str
    index: int
    trajectories: int
    steps: int


@dataclass
class Losses:
    """What a shard has lost so far, restarts and all; `numbers`: of tables lost lately, not to be given to others."""

    tables: int = 0
    trajectories: int = 0
    steps: int = 0
    numbers: frozenset[int] = frozenset()

    def info(self) -> dict[str, int]:
        """For `Client.info`."""
        return {"tables": self.tables, "trajectories": self.trajectories, "steps": self.steps}


def drop_lost(directory: Path) -> Losses:
    """Remove what was left of tables with columns on a device by the process before; all that was ever lost."""
    for path in list(directory.glob(SEGMENTS)):
        if not format.in_use(path):
            continue
        header = format.read(path)
        layout = Layout(header.table, header.index, header.shard, spread=header.spread)
        if layout.device_bytes:
            counters = layout.view(memory.attach(path, layout.nbytes), "counters")
            lost = Lost(header.table.name, header.index, int(counters[f.STORED]), int(counters[f.STORED_STEPS]))
            logger.warning(
                "table %s had columns on a GPU, gone with its shard: drops it, with %d trajectories, %d steps",
                lost.name, lost.trajectories, lost.steps,
            )  # fmt: skip
            there = path.stat()  # of one segment there is one note, also if this is killed before it is gone
            note(directory, lost, f"{there.st_ino:x}-{there.st_mtime_ns:x}")
            path.unlink()
    return noted(directory)


def noted(directory: Path) -> Losses:
    """All that was ever lost, and not made good by a checkpoint."""
    found = Losses()
    for path in directory.glob(f"{LOST}*"):
        lost = msgspec.json.decode(path.read_bytes(), type=Lost)
        found.tables += bool(lost.trajectories)
        found.trajectories += lost.trajectories
        found.steps += lost.steps
        if time.time() - path.stat().st_mtime < RESERVED:
            found.numbers |= {lost.index}
    return found


def ended(directory: Path, stored: StoredTable) -> None:
    """A table with columns on a device ends with its shard, in order."""
    counts = stored.counters
    note(directory, Lost(stored.table.name, stored.layout.index, int(counts[f.STORED]), int(counts[f.STORED_STEPS])))


def made_good(directory: Path, name: str, trajectories: int, steps: int) -> None:
    """So much of a table that was lost last has come back from a checkpoint."""
    notes = sorted(directory.glob(f"{LOST}*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in notes:
        lost = msgspec.json.decode(path.read_bytes(), type=Lost)
        if lost.name == name:
            left = max(0, lost.trajectories - trajectories), max(0, lost.steps - steps)
            _write(path, Lost(name, lost.index, *left))
            return


def note(directory: Path, lost: Lost, once: str = "") -> None:
    """Write down what was lost; under the same `once` it counts once."""
    _write(directory / f"{LOST}{lost.index}-{once or secrets.token_hex(8)}", lost)


def _write(path: Path, lost: Lost) -> None:
    """All of it or nothing: half a note would keep the shard from starting."""
    fresh = path.with_name(f"new-{path.name}")
    fresh.write_bytes(msgspec.json.encode(lost))
    fresh.chmod(0o600)
    os.replace(fresh, path)

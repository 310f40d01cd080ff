"""What a table holds, read from its segment: for tests of what was written, not of what is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import gear
from gear.storage import fields as f


@dataclass
class Stored:
    """One stored piece: its per-step columns [T, *shape], its final row if there is one, its values and flags."""

    steps: dict[str, np.ndarray]
    final: dict[str, np.ndarray] | None
    values: dict[str, np.ndarray]
    terminated: bool
    continued: bool
    continues: bool


def stored(client: gear.Client, name: str = "t") -> list[Stored]:
    """The closed trajectories of a table, in the order in which they were first published."""
    port = client._tables.port(name, None)
    layout, segment = port.layout, port.open.segment
    slots, blocks = layout.view(segment, "slots"), layout.view(segment, "blocks")
    per_step = [c.name for c in port.codec.step_columns]
    per_trajectory = [c.name for c in port.codec.trajectory_columns]
    found = []
    for slot in sorted(np.flatnonzero(slots[:, f.STATE] == f.CLOSED), key=lambda s: slots[s, f.ORDER]):
        flags, length = int(slots[slot, f.FLAGS]), int(slots[slot, f.LENGTH])
        chain = [int(slots[slot, f.FIRST])]
        while blocks[chain[-1], f.NEXT] >= 0:
            chain.append(int(blocks[chain[-1], f.NEXT]))
        rows = {
            n: np.concatenate([strip[b] for b in chain]) for n, strip in zip(per_step, port.rows.strips, strict=True)
        }
        found.append(
            Stored(
                {n: column[:length] for n, column in rows.items()},
                {n: column[length] for n, column in rows.items()} if flags & f.HAS_FINAL else None,
                {n: column[slot].copy() for n, column in zip(per_trajectory, port.rows.values, strict=True)},
                bool(flags & f.TERMINATED),
                bool(flags & f.CONTINUED),
                bool(flags & f.CONTINUES),
            )
        )
    return found

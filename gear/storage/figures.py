"""Figures of a table, read from its counters and its layout. Plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gear.storage import fields as f

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gear.storage.layout import Layout

_COUNTED = {
    "items": f.ITEM_COUNT, "trajectories": f.STORED, "steps": f.STORED_STEPS,
    "inserted_trajectories": f.INSERTED, "inserted_steps": f.INSERTED_STEPS,
    "inserted_items": f.INSERTED_ITEMS, "deleted_items": f.DELETED_ITEMS,
    "sampled_items": f.SAMPLED_ITEMS, "reserved_items": f.RESERVED_ITEMS, "draws": f.DRAWS, "epochs": f.EPOCH,
    "drawn_steps": f.DRAWN_STEPS,
    "evicted_trajectories": f.EVICTED_COUNT, "evicted_steps": f.EVICTED_STEPS,
    "evicted_early": f.EVICTED_EARLY, "consumed_trajectories": f.CONSUMED,
    "updated_priorities": f.UPDATED, "stale_updates": f.STALE,
    "used_blocks": f.USED_BLOCKS, "leased_blocks": f.LEASED_BLOCK_COUNT, "held_blocks": f.HELD_BLOCKS,
    "free_blocks": f.FREE_BLOCKS, "retired_blocks": f.RETIRED_BLOCKS,
}  # fmt: skip


def figures(c: npt.NDArray[np.int64], layout: Layout) -> dict[str, Any]:
    """Counts and bytes by name, from counters c: int64[COUNTERS]."""
    table = layout.table
    per_slot = sum(p.width for p in layout.placements.values() if p.column.per == "trajectory")
    counted = {name: int(c[at]) for name, at in _COUNTED.items()}
    return counted | {
        "capacity": {type(table.capacity).__name__.lower(): table.capacity.n},
        "block_steps": layout.block_steps,
        "block_bytes": layout.block_bytes,
        "data_blocks": layout.data_blocks,
        "reserve_blocks": layout.reserve_blocks,
        "segment_bytes": layout.nbytes,
        "directory_bytes": layout.directory_bytes,
        "payload_bytes": counted["steps"] * table.step_bytes + counted["trajectories"] * per_slot,
        "used_bytes": counted["used_blocks"] * layout.block_bytes,
        "inserted_bytes": counted["inserted_steps"] * table.step_bytes + counted["inserted_trajectories"] * per_slot,
        "sampled_bytes": counted["drawn_steps"] * table.step_bytes + counted["draws"] * per_slot,
    }

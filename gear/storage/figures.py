"""What a table says about itself: counts, bytes, leases, quarantine, evictions, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gear.storage import fields as f
from gear.storage.groups import NO_GROUPS

if TYPE_CHECKING:
    from gear.storage.table import StoredTable


def of(stored: StoredTable) -> dict[str, Any]:
    """Figures of a table."""
    c, layout, table, records = stored.counters, stored.layout, stored.table, stored.records
    quarantined = sum(int(records[row, f.LEASED_BLOCKS]) for row, k in stored.clients.items() if k.suspended)
    per_slot = sum(p.width for p in layout.placements.values() if p.column.per == "trajectory")
    figures = {
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
        "version": f.VERSION, "expired_trajectories": f.EXPIRED, "expired_steps": f.EXPIRED_STEPS,
        "returned_items": f.RETURNED_ITEMS, "filled_trajectories": f.FILLED, "stale_fills": f.STALE_FILLS,
        "open_trajectories": f.OPENED, "open_steps": f.OPENED_STEPS, "dropped_open_trajectories": f.OPEN_DROPPED,
    }  # fmt: skip
    result: dict[str, Any] = {name: int(c[at]) for name, at in figures.items()}
    result |= {
        "quarantined_blocks": quarantined,
        "pins": len(stored.pins),
        "clients": sum(not k.suspended for k in stored.clients.values()),
        "silent_clients": sum(
            k.suspended and (stored.pins.any_of(row) or bool(records[row, f.LEASED_BLOCKS]))
            for row, k in stored.clients.items()
        ),
        "capacity": {type(table.capacity).__name__.lower(): table.capacity.n},
        "block_steps": layout.block_steps,
        "block_bytes": layout.block_bytes,
        "data_blocks": layout.data_blocks,
        "reserve_blocks": layout.reserve_blocks,
        "segment_bytes": layout.nbytes,
        "directory_bytes": layout.directory_bytes,
        "payload_bytes": int(c[f.STORED_STEPS]) * table.step_bytes + int(c[f.STORED]) * per_slot,
        "used_bytes": int(c[f.USED_BLOCKS]) * layout.block_bytes,
        "inserted_bytes": int(c[f.INSERTED_STEPS]) * table.step_bytes + int(c[f.INSERTED]) * per_slot,
        "sampled_bytes": int(c[f.DRAWN_STEPS]) * table.step_bytes + int(c[f.DRAWS]) * per_slot,
    }
    result |= NO_GROUPS if stored.groups is None else stored.groups.info()
    if stored.claims is not None:
        result["consumers"] = stored.claims.info()
    return result

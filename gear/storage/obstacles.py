"""What a request waits for, in words, for the errors of timeouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gear.schema import Groups, Queue, Stack, Table
from gear.storage import fields as f

if TYPE_CHECKING:
    from gear.storage.table import StoredTable


def sample_obstacle(stored: StoredTable, size: int, consumer: int) -> str:
    """What a sample of `size` items waits for."""
    counters, table = stored.counters, stored.table
    items = int(counters[f.ITEM_COUNT])
    least = stored.params[f.P_MIN_SIZE]
    if items < least and not table.group_size:
        return f"table {table.name!r} holds {items} items and its limiter wants at least {least}; insert more"
    if consumer >= 0:
        return _line_obstacle(stored, size, consumer)
    if not stored.drawable:
        return f"table {table.name!r} holds {items} items, none of which can be drawn (zero priority or used up)"
    if table.distinct and counters[f.LIVE_ITEMS] < size:
        return (
            f"table {table.name!r}: {int(counters[f.LIVE_ITEMS])} items can be drawn and a batch of {size} "
            "distinct ones needs as many; insert more, ask for fewer, or declare distinct=False"
        )
    return f"the limiter {table.limiter} of table {table.name!r} waits for inserts ({_balance(stored)})"


def _line_obstacle(stored: StoredTable, size: int, consumer: int) -> str:
    """Why a consumer's line is too short."""
    table, claims = stored.table, stored.claims
    assert claims is not None
    line = list(claims.info().values())[consumer]
    who = f"consumer {table.consumers[consumer]!r} of table" if table.consumers else "table"
    what = "groups" if table.group_size else "items"
    told = f"{who} {table.name!r}: {claims.units(consumer)} {what} wait to be served, {size} were asked for"
    if table.consumers:
        told += f"; {line['claimed']} items are claimed and not acknowledged, {line['acknowledged']} acknowledged"
    if stored.groups is not None:
        told += _group_obstacle(stored.groups.info(), table)
    return f"{told}; insert more{', acknowledge' if line['claimed'] and table.consumers else ''} or ask for fewer"


def _group_obstacle(groups: dict[str, Any], table: Table) -> str:
    """What became of the groups that do not wait to be served."""
    assert isinstance(table.sampler, Groups)
    told = f"; {groups['gathering_groups']} groups are incomplete"
    if groups["filtered_groups"]:
        told += (
            f", {groups['filtered_groups']} of {groups['completed_groups']} were dropped by {table.sampler.filter!r}"
        )
    if groups["late_groups"]:
        told += f", {groups['late_groups']} were dropped as they were not complete in {table.sampler.deadline:g} s"
    return told


def insert_obstacle(stored: StoredTable, hungry: bool) -> str:
    """What an insert waits for; `hungry`: its rows wait for a place in memory."""
    if hungry and stored.admits:
        return memory_obstacle(stored)
    table = stored.table
    what = "samples, or for room that they make" if isinstance(table.limiter, (Queue, Stack)) else "samples"
    if table.consumers:
        what = f"acknowledgements of {', '.join(table.consumers)}"
    return f"the limiter {table.limiter} of table {table.name!r} waits for {what} ({_balance(stored)})"


def memory_obstacle(stored: StoredTable) -> str:
    """Who keeps blocks from being reused."""
    info = stored.info()
    names = ", ".join(stored.client_name(client) for client in stored.pins.blocking()) or "writers with leased blocks"
    return (
        f"table {stored.table.name!r} is out of blocks: {info['held_blocks']} evicted ones are still read and "
        f"{info['leased_blocks']} are leased; held by {names}"
    )


def _balance(stored: StoredTable) -> str:
    counters = stored.counters
    inserted = int(counters[f.INSERTED_ITEMS])
    if stored.table.lines:
        return f"{inserted} items inserted, {int(counters[f.DELETED_ITEMS])} of them have left"
    sampled = int(counters[f.SAMPLED_ITEMS] + counters[f.RESERVED_ITEMS])
    return f"{inserted} items inserted, {sampled} sampled or promised"

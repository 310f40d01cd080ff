"""What a request waits for, in words: for the error at its deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gear.schema import Groups, Queue, Stack, StalenessBudget, Table
from gear.storage import fields as f
from gear.storage.growing import Waits

if TYPE_CHECKING:
    from gear.storage.ledger import Ledger
    from gear.storage.table import StoredTable


def of_sample(stored: StoredTable, size: int, which: int, consumer: int = -1) -> str:
    """What a sample of `size` items from set number `which` waits for."""
    counters, table = stored.counters, stored.table
    items = int(counters[f.ITEM_COUNT])
    least = stored.params[f.P_MIN_SIZE]
    one = stored.layout.sets[which]
    if one.with_open:
        return f"table {table.name!r} holds fewer than {least} items, open trajectories included; insert or append more"
    if items < least and not table.group_size:
        return f"table {table.name!r} holds {items} items and its limiter wants at least {least}; insert more"
    if consumer >= 0:
        return _of_line(stored, size, consumer)
    if one.needs and not stored.drawable(which):
        names = ", ".join(table.requirements[which - 1])
        return f"table {table.name!r} holds {items} items, none of which can be drawn with {names}; fill them"
    if not stored.drawable():
        return f"table {table.name!r} holds {items} items, none of which can be drawn (zero priority or used up)"
    live = int(stored.layout.view(stored.segment, one.region("counters"))[f.LIVE_ITEMS])
    if table.distinct and live < size:
        return (
            f"table {table.name!r}: {live} items can be drawn and a batch of {size} "
            "distinct ones needs as many; insert more, ask for fewer, or declare distinct=False"
        )
    return f"the limiter {table.limiter} of table {table.name!r} waits for inserts ({_balance(stored)})"


def _of_line(stored: StoredTable, size: int, consumer: int) -> str:
    """Why a consumer's line is too short."""
    table, claims = stored.table, stored.claims
    assert claims is not None
    line = list(claims.info().values())[consumer]
    who = f"consumer {table.consumers[consumer]!r} of table" if table.consumers else "table"
    what = "groups" if table.group_size else "items"
    told = f"{who} {table.name!r}: {claims.units(consumer)} {what} wait to be served, {size} were asked for"
    if table.consumers:
        told += f"; {line['claimed']} items are claimed and not acknowledged, {line['acknowledged']} acknowledged"
    if names := table.needs_of(consumer):
        told += f"; items wait for it once they have {' and '.join(names)}"
    if stored.groups is not None:
        told += _of_groups(stored.groups.info(), table)
    return f"{told}; insert more{', acknowledge' if line['claimed'] and table.consumers else ''} or ask for fewer"


def _of_groups(groups: dict[str, Any], table: Table) -> str:
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


def of_credit(stored: StoredTable, ledger: Ledger) -> str:
    """What a sample of a table that lies on several shards waits for at its home."""
    table, items = stored.table, ledger.items
    if items < stored.params[f.P_MIN_SIZE]:
        least = stored.params[f.P_MIN_SIZE]
        return f"table {table.name!r} holds {items} items on all its shards and its limiter wants at least {least}"
    return f"the limiter {table.limiter} of table {table.name!r} waits for inserts ({ledger.balance})"


def of_insert(stored: StoredTable, ledger: Ledger | None = None) -> str:
    """What an insert waits for that the limiter holds back, or open trajectories do."""
    table, counters = stored.table, stored.counters
    if isinstance(table.limiter, StalenessBudget) and not stored.admits:
        counted = int(counters[f.INSERTED_ITEMS] - counters[f.RETURNED_ITEMS])
        return (
            f"the limiter {table.limiter} of table {table.name!r} waits for a newer version: {counted} items are in at "
            f"version {int(counters[f.VERSION])}; call set_version when the policy is updated"
        )
    if stored.admits and counters[f.OPENED]:
        return (
            f"table {table.name!r} has no room beside {int(counters[f.OPENED])} open trajectories; seal them, or wait "
            "until open_ttl drops them"
        )
    what = "samples, or for room that they make" if isinstance(table.limiter, (Queue, Stack)) else "samples"
    if table.consumers:
        what = f"acknowledgements of {', '.join(table.consumers)}"
    balance = _balance(stored) if ledger is None else ledger.balance
    return f"the limiter {table.limiter} of table {table.name!r} waits for {what} ({balance})"


def of_attempt(stored: StoredTable, waits: Waits) -> str:
    """What a request about an open trajectory waits for."""
    if waits is Waits.MEMORY:
        return of_memory(stored)
    if waits is Waits.CREDIT:
        return of_insert(stored)
    counters, table = stored.counters, stored.table
    return (
        f"open trajectories of table {table.name!r} ({int(counters[f.OPENED])} with {int(counters[f.OPENED_STEPS])} "
        "steps) take at most half of it; seal some, raise the capacity, or wait until open_ttl drops idle ones"
    )


def of_memory(stored: StoredTable) -> str:
    """Who keeps blocks from being reused."""
    info = stored.info()
    names = ", ".join(stored.client_name(client) for client in stored.pins.blocking()) or "writers with leased blocks"
    return (
        f"table {stored.table.name!r} is out of blocks: {info['held_blocks']} evicted ones are still read and "
        f"{info['leased_blocks']} are leased; held by {names}"
    )


def _balance(stored: StoredTable) -> str:
    counters = stored.counters
    if stored.table.lines:
        left = int(counters[f.DELETED_ITEMS])
        return f"{int(counters[f.INSERTED_ITEMS])} items inserted, {left} of them have left"
    sampled = int(counters[f.SAMPLED_ITEMS] + counters[f.RESERVED_ITEMS])
    return f"{int(counters[f.INSERTED_ITEMS])} items inserted, {sampled} sampled or promised"

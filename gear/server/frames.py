"""Frames of `gear top`: a picture of what a server does, with a unit on every figure.

A frame is made of two measurements; everything per second is the difference of both over the time between.
Frames are drawn by `rich`, which is imported when one is drawn.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gear.server.figures import Figures, fill, total
from gear.server.latency import quantile
from gear.server.units import count, duration, nbytes, percent, seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

LEAST = 80
"""Columns that a frame needs, and those it has where there is no terminal."""

_FIGURES = 64
"""Columns that the figures of a table take; the rest is for its name."""

_ONLOOKERS = ("attach", "goodbye", "measure")
"""Requests of who comes, goes and watches: they say nothing of the tables, and every frame makes some."""


@dataclass
class Measurement:
    """What the shards said at one moment.

    Attributes
    ----------
    at : `time.monotonic()`.
    shards : figures by shard, silent ones left out.
    there : how many shards the server has.
    """

    at: float
    name: str
    there: int
    shards: dict[int, Figures] = field(default_factory=dict)

    def since(self, before: Measurement | None) -> tuple[Figures, Figures | None, float]:
        """(figures of all shards now, those before or None, seconds between).

        Shards that were started or went silent in between have no before.
        """
        now = total(self.shards.values())
        if before is None or self.at <= before.at or self.shards.keys() != before.shards.keys():
            return now, None, math.nan
        if any(self.shards[index]["pid"] != before.shards[index]["pid"] for index in self.shards):
            return now, None, math.nan
        return now, total(before.shards.values()), self.at - before.at


class _Rates:
    """Differences per second; not a number where there was no measurement before."""

    def __init__(self, now: Figures, before: Figures | None, span: float) -> None:
        self.now, self.before, self.span = now, before, span

    def __call__(self, name: str) -> float:
        if self.before is None or name not in self.before:
            return math.nan
        return max(0.0, (self.now[name] - self.before[name]) / self.span)


def frame(address: str, now: Measurement, before: Measurement | None, trouble: str = "") -> RenderableType:
    """One picture of the server, at least 80 columns wide.

    Parameters
    ----------
    trouble : str
        Why nothing newer is known.
    """
    from rich.console import Group
    from rich.constrain import Constrain
    from rich.text import Text

    figures, earlier, span = now.since(before)
    parts: list[RenderableType] = [_head(address, now, figures)]
    if trouble:
        parts.append(Text(trouble, style="bold red"))
    if not figures:
        return Group(*parts)
    tables, was = figures["tables"], earlier["tables"] if earlier else {}
    rates = {name: _Rates(table, was.get(name), span) for name, table in tables.items()}
    if tables:
        shown = [_flow(tables, rates), _waits(tables, rates), _consumers(tables), _course(tables, rates)]
        parts += [part for part in shown if part is not None]
    else:
        parts.append(Text("no tables", style="yellow"))
    requests = _requests(figures, earlier, span)
    if requests is not None:
        parts.append(requests)
    names = [name + max(table.get("consumers", {}), key=len, default="") for name, table in tables.items()]
    # figures far from the names of their tables are hard to read: no wider than it takes
    return Constrain(Group(*parts), max(LEAST, _FIGURES + max(map(len, names), default=0)))


def fitted(picture: RenderableType, console: Console) -> RenderableType:
    """A picture for a terminal that may be too low for it: the last line then says what is missing."""
    from rich.console import Group
    from rich.segment import SegmentLines
    from rich.text import Text

    lines = console.render_lines(picture, pad=False)
    there = max(0, console.height - 1)
    if len(lines) <= there + 1:
        return picture
    text = f"{len(lines) - there} more lines: make the terminal higher, or use --once"
    return Group(SegmentLines(lines[:there], new_lines=True), Text(text, style="bold yellow", no_wrap=True))


def _head(address: str, now: Measurement, figures: Figures) -> RenderableType:
    from rich.text import Text

    text = Text.assemble(("gear top ", "bold"), (address, "bold cyan"), f"  {now.name}\n")
    up = len(now.shards)
    text.append(f"{up} of {now.there} shard{'s' * (now.there != 1)} up", "green" if up == now.there else "bold red")
    if figures:
        clients = figures["clients"]
        oldest = max(shard["uptime"] for shard in now.shards.values())
        limit = sum(shard["memory_limit"] for shard in now.shards.values())
        text.append(f" for {duration(oldest)}  memory {nbytes(figures['segment_bytes'])} of {nbytes(limit)}\n")
        text.append(f"clients {clients['connected']} connected, ")
        text.append(f"{clients['silent']} silent", "yellow" if clients["silent"] else "")
        text.append(f"  messages refused {count(figures['messages']['refused'])}")
        _mishaps(text, figures)
        if up < now.there:  # whole tables may be missing
            text.append("\nwhat follows is of the shards that answer", "bold red")
    return text


def _mishaps(text: Text, figures: Figures) -> None:
    """What went wrong since the server started, and when all was saved last; nothing where there is nothing."""
    saves = figures.get("checkpoint", {})
    told = [("shards restarted", figures.get("restarts", 0)), ("checkpoints failed", saves.get("failures", 0))]
    mishaps = [f"{words} {count(number)}" for words, number in told if number]
    if mishaps:
        text.append("\n" + "  ".join(mishaps), "yellow")
    lost = figures.get("lost_with_device", {}).get("trajectories", 0)
    if lost:
        text.append(f"\nlost with the memory of a device {count(lost)} trajectories", "yellow")
    if saves.get("last_time"):
        ago = duration(max(0.0, time.time() - saves["last_time"]))
        text.append(f"\ncheckpoint {nbytes(saves['bytes'])} {ago} ago")


def _table(*columns: str, names: int = 1) -> Any:
    """A table without rules, under a bar that names its columns; the first `names` share the room that is left."""
    from rich.table import Table

    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1), header_style="bold black on white")
    for number, column in enumerate(columns):
        ends = {"overflow": "ellipsis"} if number < names else {"justify": "right"}
        table.add_column(column, no_wrap=True, ratio=1 if number < names else None, **ends)  # type: ignore[arg-type]
    return table


def _flow(tables: Figures, rates: dict[str, _Rates]) -> RenderableType:
    shown = _table(
        "FLOW\ntable", "\nfill", "data\nstored", "items\ninserted", "bytes\ninserted", "items\nsampled",
        "bytes\nsampled",
    )  # fmt: skip
    for name, table in tables.items():
        rate = rates[name]
        shown.add_row(
            name,
            percent(fill(table)),
            nbytes(table["payload_bytes"]),
            count(rate("inserted_items"), "/s"),
            nbytes(rate("inserted_bytes"), "/s"),
            count(rate("draws"), "/s"),  # of consumers too, which limiters do not count
            nbytes(rate("sampled_bytes"), "/s"),
        )
    return shown  # type: ignore[no-any-return]


def _waits(tables: Figures, rates: dict[str, _Rates]) -> RenderableType:
    """Seconds waited per second: how many waited on average."""
    shown = _table(
        "WAIT AND LOSS\ntable", "writers\nblocked", "readers\nblocked", "stale\nupdates", "evicted\nearly",
        "in quar-\nantine",
    )  # fmt: skip
    for name, table in tables.items():
        rate = rates[name]
        lost = [rate("blocked_writer_seconds"), rate("blocked_reader_seconds"), rate("stale_updates")]
        quarantined = table["quarantined_blocks"] * table["block_bytes"]
        shown.add_row(
            name,
            _marked(count(lost[0], " s/s"), lost[0]),
            _marked(count(lost[1], " s/s"), lost[1]),
            count(lost[2], "/s"),
            _marked(count(rate("evicted_early"), "/s"), rate("evicted_early")),
            _marked(nbytes(quarantined), quarantined),
        )
    return shown  # type: ignore[no-any-return]


def _consumers(tables: Figures) -> RenderableType | None:
    """What waits for each consumer and what it has not acknowledged; nothing where no table has consumers."""
    shown = _table(
        "CONSUMERS\ntable", "\nconsumer", "items\nwaiting", "items\nclaimed", "items ack-\nnowledged", "items\ndropped",
        names=2,
    )  # fmt: skip
    for name, table in tables.items():
        for consumer, line in table.get("consumers", {}).items():
            shown.add_row(
                name,
                consumer or "-",
                count(line["waiting"]),
                count(line["claimed"]),
                count(line["acknowledged"]),
                _marked(count(line["dropped"]), line["dropped"]),
            )
    for column in shown.columns[:2]:  # room by need, so that none is cut while the other has some left
        column.ratio = max(map(len, (*column.header.splitlines(), *column.cells)))
    return shown if shown.row_count else None


def _course(tables: Figures, rates: dict[str, _Rates]) -> RenderableType | None:
    """What comes after the insert: versions, late columns, groups, open trajectories; of tables that have any of it."""
    shown = _table(
        "AFTER THE INSERT\ntable", "policy\nversion", "traject.\ntoo old", "traject.\nfilled", "groups in-\ncomplete",
        "groups\ndropped", "traject.\nopen",
    )  # fmt: skip
    names = ("version", "expired_trajectories", "filled_trajectories", "gathering_groups", "filtered_groups",
             "late_groups", "completed_groups", "open_trajectories")  # fmt: skip
    for name, table in tables.items():
        version, expired, filled, gathering, filtered, late, _, growing = of_table = [table.get(n, 0) for n in names]
        if not any(of_table):
            continue
        shown.add_row(
            name,
            count(version),
            _marked(count(expired), expired),
            count(rates[name]("filled_trajectories") if filled else 0, "/s"),
            count(gathering),
            _marked(count(filtered + late), filtered + late),
            count(growing),
        )
    return shown if shown.row_count else None


def _marked(text: str, value: float) -> str:
    return f"[yellow]{text}[/]" if value > 0.005 else text


def _requests(figures: Figures, earlier: Figures | None, span: float) -> RenderableType | None:
    """Latencies of what was answered between the measurements; of the shard's whole life where there is one only."""
    shown = _table("REQUESTS\nkind", "requests\nanswered", "p50 with\nwaits", "p99 with\nwaits", "requests\nin all")
    rows = []
    for kind, row in figures["requests"].items():
        was = (earlier or {}).get("requests", {}).get(kind)
        buckets = [a - b for a, b in zip(row["buckets"], was["buckets"], strict=True)] if was else row["buckets"]
        rows.append((sum(buckets), kind, buckets, sum(row["buckets"])))
    for number, kind, buckets, every in sorted(rows, reverse=True):
        if kind in _ONLOOKERS or not number:
            continue
        rate = count(number / span if earlier else math.nan, "/s")
        shown.add_row(kind, rate, seconds(quantile(0.5, buckets)), seconds(quantile(0.99, buckets)), count(every))
    return shown if shown.row_count else None

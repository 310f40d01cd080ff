"""`gear top`: what a server does, live in the terminal.

A frame is made of two measurements; everything per second is the difference of both over the time between.
Frames are drawn by `rich`, which is imported when the command runs.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gear.errors import ConnectionLost, GearError, SchemaError
from gear.server.figures import Figures, fill, measure, total
from gear.server.latency import quantile
from gear.server.units import count, duration, nbytes, percent, seconds
from gear.transport.discovery import parse_address
from gear.transport.finding import find

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gear.transport.keys import ClientKeys

WIDTH = 80
"""Columns of a frame where there is no terminal."""

_PATIENCE = 1.0
"""Seconds that a frame waits for the server."""


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


def look(address: str, token: str, timeout: float, keys: ClientKeys | None = None) -> Measurement:
    """Measure the server at `address`.

    Raises
    ------
    ConnectionLost, AuthenticationError, ProtocolError
    """
    found = find(address, token, timeout, keys)
    shards = measure(found.shards, parse_address(address)[0], token, timeout, keys)
    return Measurement(time.monotonic(), found.name, found.count, shards)


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
    from rich.text import Text

    figures, earlier, span = now.since(before)
    parts: list[RenderableType] = [_head(address, now, figures)]
    if trouble:
        parts.append(Text(trouble, style="bold red"))
    if figures:
        tables, was = figures["tables"], earlier["tables"] if earlier else {}
        rates = {name: _Rates(table, was.get(name), span) for name, table in tables.items()}
        parts += [_flow(tables, rates), _waits(tables, rates)]
        parts += [shown for shown in (_consumers(tables, was), _course(tables, rates)) if shown is not None]
        parts.append(_requests(figures, earlier, span))
    return Group(*parts)


def _head(address: str, now: Measurement, figures: Figures) -> RenderableType:
    from rich.text import Text

    text = Text.assemble(("gear top ", "bold"), (address, "bold cyan"), f"  {now.name}  ")
    up = len(now.shards)
    text.append(f"{up} of {now.there} shard{'s' * (now.there != 1)} up", "green" if up == now.there else "bold red")
    if figures:
        clients = figures["clients"]
        oldest = max(shard["uptime"] for shard in now.shards.values())
        limit = sum(shard["memory_limit"] for shard in now.shards.values())
        text.append(f" for {duration(oldest)}\n")
        text.append(f"memory {nbytes(figures['segment_bytes'])} of {nbytes(limit)}  ")
        text.append(f"clients {clients['connected']} connected, ")
        text.append(f"{clients['silent']} silent", "yellow" if clients["silent"] else "")
        text.append(f"  messages refused {count(figures['messages']['refused'])}")
    return text


def _table(*columns: str) -> Any:
    """A table without rules, under a bar that names its columns; the first gets the room that is left."""
    from rich.table import Table

    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1), header_style="bold black on white")
    for number, column in enumerate(columns):
        ends = {"overflow": "ellipsis"} if number == 0 else {"justify": "right"}
        table.add_column(column, no_wrap=True, ratio=1 if number == 0 else None, **ends)  # type: ignore[arg-type]
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
            count(rate("sampled_items"), "/s"),
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


def _consumers(tables: Figures, was: Figures) -> RenderableType | None:
    """What waits for each consumer and what it has not acknowledged; nothing where no table has consumers."""
    shown = _table(
        "CONSUMERS\ntable", "\nconsumer", "\nwaiting", "not acknow-\nledged", "acknow-\nledged", "dropped\nfor it"
    )
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
    return shown if shown.row_count else None


def _course(tables: Figures, rates: dict[str, _Rates]) -> RenderableType | None:
    """What comes after the insert: versions, late columns, groups, open trajectories; of tables that have any of it."""
    shown = _table(
        "AFTER THE INSERT\ntable", "\nversion", "too old,\nexpired", "late cols\nfilled", "groups in-\ncomplete",
        "groups\ndropped", "\nopen",
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


def _requests(figures: Figures, earlier: Figures | None, span: float) -> RenderableType:
    """Latencies of what was answered between the measurements; of the shard's whole life where there is one only."""
    shown = _table("REQUESTS\nkind", "\nrate", "p50 with\nwaits", "p99 with\nwaits", "since the\nstart")
    rows = []
    for kind, row in figures["requests"].items():
        was = (earlier or {}).get("requests", {}).get(kind)
        buckets = [a - b for a, b in zip(row["buckets"], was["buckets"], strict=True)] if was else row["buckets"]
        rows.append((sum(buckets), kind, buckets, sum(row["buckets"])))
    for number, kind, buckets, every in sorted(rows, reverse=True):
        if kind == "measure" or not number:  # nothing of it, or nothing but what asks for this
            continue
        rate = count(number / span if earlier else math.nan, "/s")
        shown.add_row(kind, rate, seconds(quantile(0.5, buckets)), seconds(quantile(0.99, buckets)), count(every))
    return shown  # type: ignore[no-any-return]


# The command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--interval", type=_interval, default=1.0, help="seconds between frames (default 1)")
    parser.add_argument("--once", action="store_true", help="print one frame, measured over one interval, and end")


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.01 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected 0.01 to 3600 seconds, got {text!r}")
    return value


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C as KeyboardInterrupt, and noted in the list: raised in a finalizer or a weakref's callback, it gets lost.

    It ends the command also where SIGINT was ignored when the process began, as for what scripts start in the
    background.
    """
    noted: list[int] = []

    def interrupt(number: int, _: object) -> None:
        noted.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield noted  # signals are not its own
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def run(options: argparse.Namespace, token: str) -> int:
    """Show frames until Ctrl-C.

    Raises
    ------
    GearError
        If the server cannot be asked at all, or `rich` is not installed.
    """
    try:
        from rich.console import Console
    except ImportError:
        raise SchemaError("gear top needs the package rich; pip install 'gear-replay[watch]'") from None
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else WIDTH, highlight=False)
    try:
        with _interrupts() as interrupts:
            before = look(options.address, token, options.timeout, options.keys)
            if options.once:
                time.sleep(options.interval)
                now = look(options.address, token, options.timeout, options.keys)
                console.print(frame(options.address, now, before))
            else:
                _live(console, options, token, before, interrupts)
    except KeyboardInterrupt:
        pass
    return 0


def _live(
    console: Console, options: argparse.Namespace, token: str, before: Measurement, interrupts: list[int]
) -> None:
    """Draw frames until something is noted in `interrupts`, or raised."""
    from rich.live import Live

    now, due = before, time.monotonic()
    with Live(console=console, auto_refresh=False, screen=console.is_terminal, vertical_overflow="crop") as live:
        live.update(frame(options.address, now, None), refresh=True)
        while not interrupts:
            due = max(due + options.interval, time.monotonic())
            time.sleep(due - time.monotonic() if due > time.monotonic() else 0.0)
            trouble = ""
            try:
                now, before = look(options.address, token, _PATIENCE, options.keys), now
            except ConnectionLost:
                trouble = f"the server does not answer for {duration(time.monotonic() - now.at)}; still asking"
            except GearError as error:
                trouble = str(error)
            picture = frame(options.address, now, before, trouble)
            if console.is_terminal:
                live.update(picture, refresh=True)
            else:
                live.console.print(picture)

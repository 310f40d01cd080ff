"""`gear top`: what a server does, live in the terminal.

It measures again and again; `frames` draws what came. `rich` is imported when the command runs.
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
from typing import TYPE_CHECKING

from gear.errors import ConnectionLost, GearError, SchemaError
from gear.server.figures import measure
from gear.server.frames import LEAST, Measurement, fitted, frame
from gear.server.units import duration
from gear.transport.discovery import parse_address
from gear.transport.finding import find

if TYPE_CHECKING:
    from rich.console import Console

    from gear.transport.keys import ClientKeys

_PATIENCE = 1.0
"""Seconds that a frame waits for the server."""


def look(address: str, token: str, timeout: float, keys: ClientKeys | None = None) -> Measurement:
    """Measure the server at `address`.

    Raises
    ------
    ConnectionLost, AuthenticationError, ProtocolError
    """
    found = find(address, token, timeout, keys)
    shards = measure(found.shards, parse_address(address)[0], token, timeout, keys)
    return Measurement(time.monotonic(), found.name, found.count, shards)


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
    console = Console(file=sys.stdout, width=None if terminal else LEAST, highlight=False)
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
        live.update(fitted(frame(options.address, now, None), console), refresh=True)
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
                live.update(fitted(picture, console), refresh=True)
            else:
                live.console.print(picture)

"""`gear checkpoint`: look at checkpoints on this host's disk, check them, insert one, have a server save one.

A directory may be a checkpoint or the directory that holds them; then the newest complete one is meant.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gear.errors import CheckpointError
from gear.storage import manifest, shelf
from gear.storage.memory import size_text

_DIRECTORY = "a checkpoint, or a directory of checkpoints: its newest one"


def add_commands(commands: Any) -> None:
    """The command and what it can do."""
    text = "look at checkpoints, check them, save one"
    group = commands.add_parser("checkpoint", help=text, description=text)
    verbs = group.add_subparsers(dest="verb", required=True)
    for name, help_, run in (
        ("inspect", "what a checkpoint holds", inspect),
        ("verify", "read every file of a checkpoint and compare it with its checksum", verify),
    ):
        verb = verbs.add_parser(name, help=help_, description=help_)
        verb.add_argument("directory", metavar="DIR", help=_DIRECTORY)
        if name == "inspect":
            verb.add_argument("--json", action="store_true", help="as JSON")
        verb.set_defaults(run=run)
    help_ = (
        "insert the trajectories of a checkpoint into the tables of a running server, which may be declared otherwise"
    )
    verb = verbs.add_parser("restore", help=help_, description=help_)
    verb.add_argument("directory", metavar="DIR", help=_DIRECTORY)
    _add_server(verb, restore)
    help_ = "have a running server save one"
    _add_server(verbs.add_parser("save", help=help_, description=help_), save)


def _add_server(verb: argparse.ArgumentParser, run: Callable[[argparse.Namespace, str], str]) -> None:
    """The server that a command is about, and what it wants of its clients."""
    verb.add_argument("address", help="HOST:PORT")
    verb.add_argument("--token-file", default=None, help="file with the server's token (default: GEAR_TOKEN)")
    verb.add_argument(
        "--curve-keys", default=None, metavar="DIR", help="directory of the client's keys (default: GEAR_CURVE_KEYS)"
    )
    verb.set_defaults(run=run)


def checkpoint_at(directory: str) -> Path:
    """The checkpoint that is meant.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    path = Path(directory)
    if (path / manifest.MANIFEST).exists():
        return path
    there = shelf.listed(path)
    if not there:
        raise CheckpointError(f"{directory} is no checkpoint and holds none that is complete")
    return there[-1].path


def inspect(options: argparse.Namespace, token: str) -> str:
    """What a checkpoint holds."""
    path = checkpoint_at(options.directory)
    whole = manifest.load(path)
    if options.json:
        return json.dumps({"path": str(path), **msgspec.to_builtins(whole)}, indent=2)
    made = datetime.datetime.fromtimestamp(whole.created, datetime.timezone.utc).isoformat(timespec="seconds")
    lines = [
        f"path: {path}",
        f"saved: {made} by server {whole.name} (gear {whole.gear}), {whole.shards} shards",
        f"bytes: {size_text(whole.nbytes)}, {size_text(whole.written)} of it new",
    ]
    for part in whole.parts:
        for table in part.tables:
            left_out = f", {table.left_out} left out" * bool(table.left_out)
            held = f"{table.trajectories} trajectories, {table.steps} steps{left_out}"
            lines.append(f"shard {part.shard} table {table.name}: {held}")
        lines += [f"shard {part.shard} weights {one.name}: version {one.version}" for one in part.weights]
    directory = path.parent
    others = [one.path.name for one in shelf.listed(directory) if one.path != path]
    incomplete = [one.name for one in shelf.incomplete(directory)]
    lines += [f"beside it: {', '.join(others)}"] if others else []
    lines += [f"never completed: {', '.join(incomplete)}"] if incomplete else []
    return "\n".join(lines)


def verify(options: argparse.Namespace, token: str) -> str:
    """Check a checkpoint from its first to its last bit."""
    path, began = checkpoint_at(options.directory), time.monotonic()
    show = _Bar(manifest.load(path).nbytes)
    whole = manifest.verify(path, show.add)
    show.end()
    seconds = time.monotonic() - began
    count = sum(1 for _ in whole.files())
    return f"{path}: {count} files, {size_text(whole.nbytes)}, all as they were saved ({seconds:.2f} s)"


def restore(options: argparse.Namespace, token: str) -> str:
    """Insert the trajectories of a checkpoint into a running server."""
    from gear.client import connect
    from gear.server.reinsert import reinsert

    path = checkpoint_at(options.directory)
    with connect(options.address, token=token, curve_keys=options.curve_keys) as client:
        counts = reinsert(path, client)
    said = ", ".join(f"{count} trajectories into table {name}" for name, count in counts.items()) or "nothing"
    return f"{path}: inserted {said}"


def save(options: argparse.Namespace, token: str) -> str:
    """Have a server save a checkpoint."""
    from gear.transport.negotiation import connect

    session = connect(options.address, token, curve_keys=options.keys)
    try:
        show = _Bar(0)
        done = session.checkpoint(None, show.become)
        show.end()
    finally:
        session.close()
    left_out = f" ({done.left_out} left out)" * bool(done.left_out)
    return (
        f"{done.path}: {size_text(done.nbytes)}, {size_text(done.written)} of it new, {done.trajectories} "
        f"trajectories{left_out}, {done.seconds:.2f} s ({size_text(done.written / max(done.seconds, 1e-9))}/s)"
    )


class _Bar:
    """How far something has come, on a terminal: bytes, share and rate, on one line."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._began, self._due = total, 0, time.monotonic(), 0.0
        self._on = sys.stderr.isatty()

    def add(self, nbytes: int) -> None:
        self.become(self._done + nbytes, self._total)

    def become(self, done: int, total: int) -> None:
        self._done, self._total, now = done, total, time.monotonic()
        if self._on and now >= self._due:
            self._due = now + 0.2
            rate = size_text(done / max(now - self._began, 1e-9))
            sys.stderr.write(f"\r{size_text(done)} of {size_text(total)}, {rate}/s   ")
            sys.stderr.flush()

    def end(self) -> None:
        if self._on:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

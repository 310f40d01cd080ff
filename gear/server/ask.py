"""`gear info` and `gear tables`: one question to a running server, one answer on standard output."""

from __future__ import annotations

import argparse
import json
from typing import Any

from gear.server.figures import declared
from gear.toml import to_toml
from gear.transport.discovery import parse_address
from gear.transport.finding import find


def add_info_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `gear info`."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def info(options: argparse.Namespace, token: str) -> str:
    """Figures of a server and of its tables."""
    from gear.transport.negotiation import connect

    session = connect(options.address, token, options.timeout, curve_keys=options.keys)
    try:
        figures = session.info(options.timeout)
    finally:
        session.close()
    return json.dumps(figures, indent=2) if options.json else "\n".join(_lines(figures))


def _lines(figures: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {value:.6g}" if isinstance(value, float) else f"{indent}{name}: {value}")
    return lines


def tables(options: argparse.Namespace, token: str) -> str:
    """The tables of a server as TOML that `gear-server --tables` takes."""
    found = find(options.address, token, options.timeout, options.keys)
    there = declared(found.shards, parse_address(options.address)[0], token, options.timeout, options.keys)
    head = f"# {len(there)} table{'s' * (len(there) != 1)} of server {found.name} at {options.address}\n"
    return (head + "\n" + to_toml(there) if there else head).rstrip("\n")

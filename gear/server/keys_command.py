"""`gear keys new` and `gear keys client`: make CURVE keys, say who gets which file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command `keys` to those of `gear`."""
    text = "make CURVE keys for gear-server --curve-keys and its clients"
    kinds = commands.add_parser("keys", help=text, description=text).add_subparsers(dest="kind", required=True)
    new = kinds.add_parser("new", help="keys of a server and of a first client, in a new directory")
    new.add_argument("directory", metavar="DIR")
    new.set_defaults(run=_new)
    client = kinds.add_parser("client", help="keys of one more client of that server, in a directory of their own")
    client.add_argument("directory", metavar="DIR")
    client.add_argument("to", metavar="NEW_DIR")
    client.set_defaults(run=_client)


def _new(options: argparse.Namespace) -> str:
    from gear.server.keys import make_keys

    where = Path(options.directory)
    make_keys(where)
    return (
        f"made keys in {where}\n"
        f"server: gear-server --curve-keys {where} --token-file TOKEN --host ADDRESS\n"
        f"clients: copy client.key (mode 0600) and server.pub into a directory there, and pass it as curve_keys= or "
        "GEAR_CURVE_KEYS\n"
        f"server.key stays here"
    )


def _client(options: argparse.Namespace) -> str:
    from gear.server.keys import ALLOWED, make_client

    where, to = Path(options.directory), Path(options.to)
    make_client(where, to)
    allowed = where / ALLOWED / f"{to.resolve().name}.pub"
    return f"made keys in {to}: move that directory to the client\nremove {allowed} to let it connect no more"

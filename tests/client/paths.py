"""A client over one table of given fields on every data path."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import gear

_BY_TABLE = {
    "insert", "insert_many", "sample", "select", "scan", "reset", "writer", "loader", "version", "open", "append",
    "seal", "length", "drop",
}  # fmt: skip


class Named:
    """A client of a server that has other tests' tables too: the table's name is given where it is left out."""

    def __init__(self, client: gear.Client, name: str) -> None:
        self.client, self.name = client, name

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.client, verb)
        if verb in _BY_TABLE:
            return lambda *given, **more: method(*given, **{"table": self.name, **more})
        if verb == "set_version":
            return lambda *given, **more: method(self.name, *given, **more)
        return method


@pytest.fixture(params=["inproc", "shm", "tcp"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients over one table and closes them; ``of=`` a client makes another one of its table."""
    with ExitStack() as stack:

        def one(of: Any = None, **fields: Any) -> Any:
            if of is None:
                declared = {"capacity": gear.Trajectories(20), **fields}
                table = gear.Table(f"t-{uuid.uuid4().hex[:8]}", **declared)
            if request.param == "inproc":
                return of or Named(stack.enter_context(gear.embedded([table])), table.name)
            address = request.getfixturevalue("server").address
            client = stack.enter_context(gear.connect(address, path=request.param))
            if of is None:
                client.create_table(table)
            return Named(client, of.name if of is not None else table.name)

        yield one

"""The tables one client has opened: a port to insert and a reader to sample, each made when first needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.client.port import Port
from gear.client.spread import Spread
from gear.errors import DataError, SchemaError, TableNotFound
from gear.storage.fields import ID_SHARD_SHIFT, ID_TABLE_SHIFT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from gear.batch import NewBatch
    from gear.client.reader import Reader
    from gear.query import Query
    from gear.transport.base import OpenTable, Service


class Tables:
    """Ports and readers by table name; the name None stands for the only table.

    Parameters
    ----------
    session : Service
    new_batch : Plan, buffer or None -> Batch
        Makes the kind of batch the client's device wants.
    """

    def __init__(self, session: Service, new_batch: NewBatch) -> None:
        self._session, self._new_batch = session, new_batch
        self._lock = threading.Lock()
        self.ports: dict[str | None, Port | Spread] = {}
        self.readers: dict[str | None, Reader] = {}
        self._by_key: dict[int, Port | Spread] = {}  # of `by_id`; ports come, and none goes

    def __iter__(self) -> Iterator[Port | Spread]:
        return iter(set(self.ports.values()))

    def port(
        self, name: str | None, timeout: float | None, trajectory: Mapping[str, Any] | None = None
    ) -> Port | Spread:
        """The port of a table.

        Raises
        ------
        TableNotFound
            Showing the line that creates a table for `trajectory`.
        """
        port = self.ports.get(name)
        if port is not None:
            return port
        if name is not None and not isinstance(name, str):
            raise SchemaError(f"table: expected the name of a table, got {name!r}")
        try:
            table = self._session.open_table(name, timeout)
        except TableNotFound as error:
            if trajectory is None:
                raise
            from gear.infer import suggest

            why, create, _ = str(error).partition("create it first: ")  # without a word of columns
            if not create:
                raise
            raise TableNotFound(f"{why}{create}{suggest(name or 'replay', trajectory)}") from None
        with self._lock:
            port = self.ports.get(table.table.name) or self._new_port(table)
            self.ports[port.name] = self.ports[name] = port
        return port

    def _new_port(self, table: OpenTable) -> Port | Spread:
        parts = [Port(session, part) for session, part in self._session.parts(table)]
        return Spread(self._session, table, parts) if len(table.layouts) > 1 else parts[0]

    def reader(self, name: str | None, query: Query | None, timeout: float | None) -> Reader:
        """The reader of the table that a call or its query names."""
        if query is not None and query.table:
            if name not in (None, query.table):
                raise SchemaError(f"the query is for table {query.table!r}, the call names table {name!r}; name one")
            name = query.table
        reader = self.readers.get(name)
        if reader is not None:
            return reader
        from gear.client.reader import Reader

        port = self.port(name, timeout)
        with self._lock:
            reader = self.readers.get(port.name) or Reader(port.session, port.open, self._new_batch)
            self.readers[port.name] = self.readers[name] = reader
        return reader

    def forget_default(self) -> None:
        """A table was created: there may now be more than one."""
        self.ports.pop(None, None)
        self.readers.pop(None, None)

    def by_id(self, ids: npt.NDArray[np.int64]) -> list[tuple[Port | Spread, npt.NDArray[np.bool_] | None]]:
        """The tables that the ids belong to, each with where (None: everywhere)."""
        if not len(ids):
            return []
        # Table and shard: tables have numbers of their own on each shard.
        least = int(np.minimum.reduce(ids)) >> ID_SHARD_SHIFT
        alone = least == int(np.maximum.reduce(ids)) >> ID_SHARD_SHIFT
        if not alone or least not in self._by_key:
            self._by_key = {key: port for port in self for key in port.id_keys}
        ports = self._by_key
        if alone and least in ports:
            return [(ports[least], None)]
        numbers = ids >> ID_SHARD_SHIFT
        unknown = sorted(set(numbers.tolist()) - ports.keys())
        if unknown:
            raise DataError(
                f"ids name table number {unknown[0] >> ID_TABLE_SHIFT - ID_SHARD_SHIFT}, from which this "
                "client has neither sampled nor inserted; "
                "pass ids as they came in batch.ids"
            )
        found: dict[Port | Spread, npt.NDArray[np.bool_]] = {}
        for number in sorted(set(numbers.tolist())):
            port, there = ports[number], numbers == number
            found[port] = found[port] | there if port in found else there
        return list(found.items()) if len(found) > 1 else [(next(iter(found)), None)]

    def forget(self) -> None:
        """Drop everything without a word, in the child of a fork."""
        self._lock = threading.Lock()
        for port in self:
            port.forget()
        for reader in set(self.readers.values()):
            reader.forget()

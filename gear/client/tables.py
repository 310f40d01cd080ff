"""The tables one client has opened: a port to insert and a reader to sample, each made when first needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.client.port import Port
from gear.errors import DataError, SchemaError, TableNotFound
from gear.storage.fields import ID_TABLE_SHIFT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from gear.batch import Batch
    from gear.client.reader import Reader
    from gear.query import Plan, Query
    from gear.transport.base import Session


class Tables:
    """Ports and readers by table name; the name None stands for the only table.

    Parameters
    ----------
    session : Session
    new_batch : Plan -> Batch
        Makes the kind of batch the client's device wants.
    """

    def __init__(self, session: Session, new_batch: Callable[[Plan], Batch]) -> None:
        self._session, self._new_batch = session, new_batch
        self._lock = threading.Lock()
        self.ports: dict[str | None, Port] = {}
        self.readers: dict[str | None, Reader] = {}

    def __iter__(self) -> Iterator[Port]:
        return iter(set(self.ports.values()))

    def port(self, name: str | None, timeout: float | None, trajectory: Mapping[str, Any] | None = None) -> Port:
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

            raise TableNotFound(f"{error}\nfor this trajectory: {suggest(name or 'replay', trajectory)}") from None
        with self._lock:
            port = self.ports.get(table.table.name) or Port(self._session, table)
            self.ports[port.name] = self.ports[name] = port
        return port

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
            reader = self.readers.get(port.name) or Reader(self._session, port.open, self._new_batch)
            self.readers[port.name] = self.readers[name] = reader
        return reader

    def forget_default(self) -> None:
        """A table was created: there may now be more than one."""
        self.ports.pop(None, None)
        self.readers.pop(None, None)

    def by_id(self, ids: npt.NDArray[np.int64]) -> list[tuple[Port, npt.NDArray[np.bool_] | None]]:
        """The tables that the ids belong to, each with where (None: everywhere)."""
        if not len(ids):
            return []
        numbers = ids >> ID_TABLE_SHIFT
        ports = {port.layout.index: port for port in self}
        unknown = (
            sorted(set(numbers.tolist()) - ports.keys())
            if numbers.max() != numbers.min()
            else ([] if int(numbers[0]) in ports else [int(numbers[0])])
        )
        if unknown:
            raise DataError(
                f"ids name table number {unknown[0]}, from which this client has neither sampled nor inserted; "
                "pass ids as they came in batch.ids"
            )
        if numbers.max() == numbers.min():
            return [(ports[int(numbers[0])], None)]
        return [(ports[number], numbers == number) for number in sorted(set(numbers.tolist()))]

    def forget(self) -> None:
        """Drop everything without a word, in the child of a fork."""
        self._lock = threading.Lock()
        for port in self:
            port.forget()
        for reader in set(self.readers.values()):
            reader.forget()
